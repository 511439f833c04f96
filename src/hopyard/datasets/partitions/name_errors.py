"""Saying which names there are."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_MAX_NAMES_SHOWN = 10


def unknown_name_hints(name: str, known: Collection[str]) -> tuple[str, ...]:
    """Hints for a name that is not one of these: the closest, and the first few."""
    near = difflib.get_close_matches(name, known, n=1)
    return (
        *(f"did you mean `{one}`?" for one in near),
        f"there are {shortened_list(known)}" if known else "there is none",
    )


def shortened_list(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_MAX_NAMES_SHOWN])
    return f"{shown} and {len(names) - _MAX_NAMES_SHOWN} more" if len(names) > _MAX_NAMES_SHOWN else shown


def count_text(number: int, what: str = "row") -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
