"""Closest matches for a word that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `word` was probably meant to be, None where nothing is near."""
    import difflib  # only needed when something is wrong already

    names = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    return names[found[0]] if found else None


def hints_for(word: str, known: Iterable[str], *, what: str = "allowed") -> tuple[str, ...]:
    """Hint lines for an unknown `word`: the closest, then all that is allowed."""
    names = list(known)
    near = closest(word, names)
    hints = (f"did you mean `{near}`?",) if near else ()
    return (*hints, f"{what}: {', '.join(names)}") if names else hints
