"""Hints that list the valid names."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_MAX_NAMES_SHOWN = 10


def unknown_name_hints(name: str, names: Collection[str]) -> tuple[str, ...]:
    """Returns hints for an unknown name: the closest of `names`, and the first few."""
    matches = difflib.get_close_matches(name, names, n=1)
    return (
        *(f"did you mean `{match}`?" for match in matches),
        f"available: {shortened_list(names)}" if names else "none is available",
    )


def shortened_list(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_MAX_NAMES_SHOWN])
    return f"{shown} and {len(names) - _MAX_NAMES_SHOWN} more" if len(names) > _MAX_NAMES_SHOWN else shown


def count_text(number: int, what: str = "row") -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
