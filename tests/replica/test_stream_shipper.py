"""How often a replica speaks to the server."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hopyard.replica.stream_shipper import RateLimiter


@given(st.lists(st.floats(0, 0.2), min_size=1, max_size=60), st.integers(1, 5))
def test_rate_limit_allows_burst_then_average(gaps: list[float], burst: int) -> None:
    pace, now, sent_sizes = RateLimiter(0.05, burst), 1000.0, []
    for gap in gaps:
        now += gap
        if pace.wait_s(now) <= 0:
            pace.record(now)
            sent_sizes.append(now)
    assert sent_sizes[0] == 1000.0 + gaps[0]
    for first in range(len(sent_sizes)):
        for last in range(first, len(sent_sizes)):
            assert last - first + 1 <= burst + (sent_sizes[last] - sent_sizes[first]) / 0.05 + 1e-6


def test_rate_limit_refills_burst_after_pause() -> None:
    pace = RateLimiter(0.5, 3)  # a power of two, so that sums are exact
    for rest_over in (10.0, 20.0):
        for _ in range(3):
            assert pace.wait_s(rest_over) <= 0
            pace.record(rest_over)
        assert pace.wait_s(rest_over) == 0.5
