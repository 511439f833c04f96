"""Markers of lock files mean the same as to the library of packaging standards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.client.lock_markers import choose_marker
from hopyard.errors import SpecError

markers = pytest.importorskip("packaging.markers")

TERMS = st.sampled_from(
    [
        "'plot' in extras",
        '"dev" not in extras',
        "'Dev_Tools' in dependency_groups",
        "python_version > '3.0'",
        "sys_platform == 'or and ('",
        "os_name not in 'a, b'",
        "python_version < '3'",
    ]
)
MARKERS = st.recursive(
    TERMS,
    lambda inner: st.builds(
        lambda left, word, right, deep: f"({left} {word} {right})" if deep else f"{left} {word} {right}",
        inner,
        st.sampled_from(["and", "or"]),
        inner,
        st.booleans(),
    ),
    max_leaves=6,
)
CHOSEN = st.sets(st.sampled_from(["plot", "dev", "dev-tools"]))


@given(MARKERS, CHOSEN, CHOSEN)
def test_same_packages_as_the_standard(marker: str, extras: set[str], groups: set[str]) -> None:
    names = {"extras": extras, "dependency_groups": groups}
    expected = markers.Marker(marker).evaluate(names, context="lock_file")
    chosen = choose_marker(marker, extras, groups, name="six")
    assert (markers.Marker(chosen).evaluate() if chosen else chosen is not None) == expected


@pytest.mark.parametrize(
    "marker", ["", "'a' in", "('a' in extras", "a; b", "'a' in extras or", "'a' in extras)"]
)
def test_other_texts_are_refused(marker: str) -> None:
    with pytest.raises(SpecError, match="is not a marker"):
        choose_marker(marker, (), (), name="six")
