"""Closest names: as difflib has them, with bounded work."""

from __future__ import annotations

import difflib
import string

from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain import suggest
from hopyard.domain.suggest import close_names, closest_name

WORDS = st.text(string.ascii_lowercase[:6] + "/-1", min_size=1, max_size=20)


@given(WORDS, st.lists(WORDS, max_size=8, unique=True))
def test_few_short_names_are_compared_like_difflib(word: str, names_: list[str]) -> None:
    assert close_names(word, names_) == difflib.get_close_matches(word, names_, n=3, cutoff=0.6)


@given(WORDS, WORDS)
def test_similarity_bound_is_never_below_the_exact_ratio(one: str, other: str) -> None:
    assert suggest._similarity_bound(one, other) >= difflib.SequenceMatcher(None, other, one).ratio() - 1e-9


def test_long_and_many_names_are_compared_in_part() -> None:
    compared: list[int] = []

    class Counting(difflib.SequenceMatcher[str]):
        def ratio(self) -> float:
            compared.append(len(self.a) + len(self.b))
            return super().ratio()

    original, difflib.SequenceMatcher = difflib.SequenceMatcher, Counting  # type: ignore[misc]
    try:
        assert close_names("ab" * 64, [f"{i}{'ba' * 64}" for i in range(5000)])
    finally:
        difflib.SequenceMatcher = original  # type: ignore[misc]
    assert 0 < len(compared) <= 16  # difflib computes the ratio twice for close names
    assert max(compared) <= 128


def test_closest_name_ignores_case() -> None:
    assert closest_name("MNIT", ["Mnist", "cifar"]) == "Mnist"
