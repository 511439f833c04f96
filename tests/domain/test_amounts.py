"""Decay of past usage, also while the usage continues."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.amounts import decayed_share_seconds, decayed_use_at_end, past_usage_after
from hopyard.domain.queue import PastUsage

T0 = datetime(2026, 1, 1, tzinfo=UTC)
shares = st.floats(0.001, 1)
half_lives = st.floats(1, 1e8)
held = st.floats(0, 1e7)


@given(shares, held, held, half_lives)
def test_usage_of_two_parts_equals_usage_of_the_total(
    share: float, first_s: float, second_s: float, half_life_s: float
) -> None:
    first = PastUsage(decayed_use_at_end(share, first_s, half_life_s), T0)
    in_pieces = decayed_share_seconds(
        first, T0 + timedelta(seconds=second_s), half_life_s
    ) + decayed_use_at_end(share, second_s, half_life_s)
    assert in_pieces == pytest.approx(
        decayed_use_at_end(share, first_s + second_s, half_life_s), rel=1e-6, abs=1e-6
    )


@given(shares, held, half_lives)
def test_decayed_usage_is_bounded_by_usage_and_by_the_steady_state(
    share: float, held_s: float, half_life_s: float
) -> None:
    weight = decayed_use_at_end(share, held_s, half_life_s)
    # nothing is smaller than that
    assert 0 <= weight <= min(share * held_s, share * half_life_s / math.log(2)) * (1 + 1e-9) + 1e-12


@given(shares, half_lives, st.floats(0, 1e-4))
def test_usage_shorter_than_the_half_life_counts_in_full(
    share: float, half_life_s: float, part: float
) -> None:
    held_s = part * half_life_s
    assert decayed_use_at_end(share, held_s, half_life_s) == pytest.approx(share * held_s, rel=1e-4)


def test_clock_set_back_counts_no_usage() -> None:
    assert decayed_use_at_end(0.5, -10.0, 60.0) == 0.0


def test_past_usage_gets_no_newer_after_a_clock_set_back() -> None:
    before = PastUsage(100.0, T0)
    assert past_usage_after(before, 0.5, 10, T0 - timedelta(hours=1), 3600) == PastUsage(
        100.0 + decayed_use_at_end(0.5, 10, 3600), T0
    )
    assert past_usage_after(before, 0.5, 10, T0 + timedelta(hours=1), 3600) == PastUsage(
        50.0 + decayed_use_at_end(0.5, 10, 3600), T0 + timedelta(hours=1)
    )
