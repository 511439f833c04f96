"""Finds the closest matches for an unknown name. The work is bounded for any length and number of names: a
server does it for every client."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

_MAX_WORD_LENGTH = 64  # characters of a name that are compared
_MAX_COMPARED_NAMES = 2000  # names
_MAX_RATIO_CANDIDATES = 8  # candidates with an exact comparison, which takes up to milliseconds each
_MIN_RATIO = 0.6


def close_names(given_name: str, candidates: Iterable[str], *, limit: int = 3) -> list[str]:
    """Returns the closest `candidates`, the closest first."""
    import difflib  # only needed for errors

    given_name = given_name[:_MAX_WORD_LENGTH]
    names = {name[:_MAX_WORD_LENGTH]: name for name in islice(candidates, _MAX_COMPARED_NAMES)}
    bounds = {name: _similarity_bound(given_name, name) for name in names}
    likely = sorted((name for name in names if bounds[name] >= _MIN_RATIO), key=lambda name: -bounds[name])[
        :_MAX_RATIO_CANDIDATES
    ]
    return [names[name] for name in difflib.get_close_matches(given_name, likely, n=limit, cutoff=_MIN_RATIO)]


def _similarity_bound(first: str, second: str) -> float:
    """Returns an upper bound of difflib's ratio: twice the longest common subsequence over the characters of
    both.

    All positions of `first` are processed at once, as bits of a number (Hyyrö 2004, "Bit-parallel LCS-length
    computation revisited", section 3).
    """
    if not first or not second:
        return 0.0
    positions: dict[str, int] = {}
    for index, character in enumerate(first):
        positions[character] = positions.get(character, 0) | 1 << index
    all_bits = rest = (1 << len(first)) - 1
    for character in second:
        matches = rest & positions.get(character, 0)
        rest = (rest + matches | rest - matches) & all_bits
    return 2 * (len(first) - bin(rest).count("1")) / (len(first) + len(second))


def closest_name(given_name: str, candidates: Iterable[str]) -> str | None:
    """Returns the closest candidate, or None if none is close."""
    names = {name.lower(): name for name in candidates}
    closest = close_names(given_name.lower(), names, limit=1)
    return names[closest[0]] if closest else None


def unknown_name_hints(
    given_name: str, allowed: Iterable[str], *, subject: str = "allowed"
) -> tuple[str, ...]:
    """Returns hints for an unknown name: the closest allowed name, then all allowed names."""
    names = list(allowed)
    closest = closest_name(given_name, names)
    hints = (f"did you mean `{closest}`?",) if closest else ()
    return (*hints, f"{subject}: {', '.join(names)}") if names else hints
