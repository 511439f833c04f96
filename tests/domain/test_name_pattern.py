"""Patterns of the names of metrics."""

from __future__ import annotations

import pytest

from hopyard.domain.name_pattern import compile_name_pattern


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("loss", "loss", True),
        ("loss", "losses", False),
        ("*loss", "val/loss", True),
        ("a*b*c", "a1b2b3c4c", True),
        ("a*b*b", "a1b", False),
        ("ab*ba", "aba", False),
        ("a**b", "ab", True),
        ("*", "", True),
        ("a*.x", "abbx", False),
        ("*a" * 30 + "*b", "a" * 1000, False),  # with a search for each place it would take years
    ],
)
def test_pattern_fits_whole_names(pattern: str, name: str, fits: bool) -> None:
    assert (compile_name_pattern(pattern).fullmatch(name) is not None) is fits
