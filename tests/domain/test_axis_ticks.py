from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from hopyard.domain.axis_ticks import choose_ticks

FINITE = st.floats(-1e12, 1e12, allow_nan=False)


@given(FINITE, st.floats(1e-9, 1e12), st.integers(2, 12))
@example(30.0, 1e-9, 2)  # closer together than floats can distinguish
def test_ticks_are_inside_and_rising(low: float, span: float, about: int) -> None:
    high = low + span
    if high - low <= abs(high) * 1e-12:
        return
    ticks = choose_ticks(low, high, about)
    assert len(ticks) >= 2
    assert all(low <= tick <= high for tick in ticks)
    assert ticks == sorted(ticks)
