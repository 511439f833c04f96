"""Closest matches for a word that nobody knows. The work is bounded, however long the word and however many
the names: a server does it for anybody who asks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

_LONGEST = 64  # characters of a name that are compared
_COMPARED = 2000  # names
_FINALISTS = 8  # of them that are compared exactly, which takes up to milliseconds each
_CUTOFF = 0.6


def close_names(word: str, known: Iterable[str], *, most: int = 3) -> list[str]:
    """Those of `known` that `word` may have been meant to be, the closest first."""
    import difflib  # only needed when something is wrong already

    word = word[:_LONGEST]
    names = {name[:_LONGEST]: name for name in islice(known, _COMPARED)}
    shared = {name: _ratio(word, name) for name in names}
    likely = sorted((name for name in names if shared[name] >= _CUTOFF), key=lambda name: -shared[name])[
        :_FINALISTS
    ]
    return [names[name] for name in difflib.get_close_matches(word, likely, n=most, cutoff=_CUTOFF)]


def _ratio(one: str, other: str) -> float:
    """As difflib's ratio, or more: twice the longest common subsequence by the characters of both. All
    positions of `one` are looked at together, as bits of a number (Hyyrö 2004, "Bit-parallel LCS-length
    computation revisited", section 3)."""
    if not one or not other:
        return 0.0
    places: dict[str, int] = {}
    for at, letter in enumerate(one):
        places[letter] = places.get(letter, 0) | 1 << at
    every = rest = (1 << len(one)) - 1
    for letter in other:
        here = rest & places.get(letter, 0)
        rest = (rest + here | rest - here) & every
    return 2 * (len(one) - rest.bit_count()) / (len(one) + len(other))


def closest(word: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `word` was probably meant to be, None where nothing is near."""
    names = {name.lower(): name for name in known}
    found = close_names(word.lower(), names, most=1)
    return names[found[0]] if found else None


def hints_for(word: str, known: Iterable[str], *, what: str = "allowed") -> tuple[str, ...]:
    """Hint lines for an unknown `word`: the closest, then all that is allowed."""
    names = list(known)
    near = closest(word, names)
    hints = (f"did you mean `{near}`?",) if near else ()
    return (*hints, f"{what}: {', '.join(names)}") if names else hints
