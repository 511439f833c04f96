"""Saying which names there are."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_MOST = 10


def instead_of(name: str, there: Collection[str]) -> tuple[str, ...]:
    """Hints for a name that is not one of these: the closest, and the first few."""
    near = difflib.get_close_matches(name, there, n=1)
    return (
        *(f"did you mean `{one}`?" for one in near),
        f"there are {listed(there)}" if there else "there is none",
    )


def listed(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_MOST])
    return f"{shown} and {len(names) - _MOST} more" if len(names) > _MOST else shown


def counted(number: int, what: str = "row") -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
