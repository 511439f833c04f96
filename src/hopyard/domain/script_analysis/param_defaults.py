"""The defaults of parameters that a script declares by `hop.params`."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from hopyard.domain.script_analysis.source_tree import SourceTree


def literal_defaults(sources: Iterable[SourceTree]) -> dict[str, object]:
    """Returns defaults that are literals, by name. A name that several calls declare with different types is
    left out, since it is not known which of them runs."""
    defaults: dict[str, object] = {}
    types: dict[str, set[type | None]] = {}
    for source in sources:
        for name, call in source.calls():
            if name not in ("hopyard.params", "hopyard.sdk.api.params"):
                continue
            for keyword in call.keywords:
                if keyword.arg is None:
                    continue
                try:
                    value = ast.literal_eval(keyword.value)
                except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                    types.setdefault(keyword.arg, set()).add(None)
                    continue
                defaults[keyword.arg] = value
                types.setdefault(keyword.arg, set()).add(type(value))
    return {name: value for name, value in defaults.items() if len(types[name]) == 1}
