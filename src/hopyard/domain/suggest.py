"""Closest matches for a word that nobody knows. The work is bounded, however long the word and however many
the names: a server does it for anybody who asks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

_MAX_WORD_LENGTH = 64  # characters of a name that are compared
_MAX_COMPARED_NAMES = 2000  # names
_MAX_RATIO_CANDIDATES = 8  # of them that are compared exactly, which takes up to milliseconds each
_MIN_RATIO = 0.6


def close_names(given_name: str, candidates: Iterable[str], *, limit: int = 3) -> list[str]:
    """Those of `candidates` that `given_name` may have been meant to be, the closest first."""
    import difflib  # only needed when something is wrong already

    given_name = given_name[:_MAX_WORD_LENGTH]
    names = {name[:_MAX_WORD_LENGTH]: name for name in islice(candidates, _MAX_COMPARED_NAMES)}
    shared = {name: _similarity_bound(given_name, name) for name in names}
    likely = sorted((name for name in names if shared[name] >= _MIN_RATIO), key=lambda name: -shared[name])[
        :_MAX_RATIO_CANDIDATES
    ]
    return [names[name] for name in difflib.get_close_matches(given_name, likely, n=limit, cutoff=_MIN_RATIO)]


def _similarity_bound(first: str, second: str) -> float:
    """As difflib's ratio, or more: twice the longest common subsequence by the characters of both. All
    positions of `first` are looked at together, as bits of a number (Hyyrö 2004, "Bit-parallel LCS-length
    computation revisited", section 3)."""
    if not first or not second:
        return 0.0
    places: dict[str, int] = {}
    for at, letter in enumerate(first):
        places[letter] = places.get(letter, 0) | 1 << at
    every = rest = (1 << len(first)) - 1
    for letter in second:
        here = rest & places.get(letter, 0)
        rest = (rest + here | rest - here) & every
    return 2 * (len(first) - rest.bit_count()) / (len(first) + len(second))


def closest_name(given_name: str, candidates: Iterable[str]) -> str | None:
    """The one of `candidates` that `given_name` was probably meant to be, None where nothing is near."""
    names = {name.lower(): name for name in candidates}
    found = close_names(given_name.lower(), names, limit=1)
    return names[found[0]] if found else None


def unknown_name_hints(
    given_name: str, allowed: Iterable[str], *, subject: str = "allowed"
) -> tuple[str, ...]:
    """Hint lines for an unknown `given_name`: the closest, then all that is allowed."""
    names = list(allowed)
    near = closest_name(given_name, names)
    hints = (f"did you mean `{near}`?",) if near else ()
    return (*hints, f"{subject}: {', '.join(names)}") if names else hints
