"""The names of parameters that the code reads somewhere, also in branches that do not run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from hopyard.domain.script_analysis.source_tree import SourceTree

_GETTERS = frozenset({"get", "getattr", "pop"})


def names_in_params_calls(sources: Iterable[SourceTree]) -> frozenset[str]:
    """Returns the names of keywords in calls of `hop.params`."""
    return frozenset(
        keyword.arg
        for source in sources
        for name, call in source.calls()
        if name in ("hopyard.params", "hopyard.sdk.api.params")
        for keyword in call.keywords
        if keyword.arg
    )


def read_names(sources: Iterable[SourceTree]) -> frozenset[str]:
    """Returns the names of all attributes and keys that the code reads."""
    return frozenset(name for source in sources for node in ast.walk(source.tree) for name in _names_of(node))


def _names_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield node.attr
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        yield from _texts([node.slice])
    elif isinstance(node, ast.Call):
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name in _GETTERS:
            yield from _texts(node.args)


def _texts(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
