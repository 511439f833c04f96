"""Use is cut and summed without losing any."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.queue import CPU, GPU, MEMORY
from hopyard.domain.usage import Period, Usage, UsageKey, split_period, sum_usage, usage_between

T0 = datetime(2030, 1, 1, tzinfo=UTC)
moments = st.floats(0, 100 * 86400).map(lambda seconds: T0 + timedelta(seconds=seconds))


@given(placed=moments, ended=moments, since=moments, until=moments, period=st.sampled_from(Period))
def test_usage_of_all_periods_adds_up_to_the_total(
    placed: datetime, ended: datetime, since: datetime, until: datetime, period: Period
) -> None:
    amounts = {GPU: 2500, CPU: 500, MEMORY: 7}

    def between(begin: datetime, end: datetime) -> list[Usage]:
        result = usage_between(
            placed, ended, amounts, since=begin, until=end, user="a", queue="q", project="p"
        )
        return [] if result is None else [result]

    cut = [part for begin, end in split_period(since, until, period) for part in between(begin, end)]
    total = between(since, until)
    for name, factor in (("held_s", 1.0), ("gpu_s", 2.5), ("cpu_s", 0.5), ("memory_byte_s", 7.0)):
        sums = [sum(getattr(row, name) for row in rows) for rows in (cut, total)]
        assert sums[0] == pytest.approx(sums[1], abs=1e-3)
        assert sums[1] == pytest.approx(
            factor * max(0.0, (min(ended, until) - max(placed, since)).total_seconds()), abs=1e-3
        )


@given(since=moments, until=moments, period=st.sampled_from(Period))
def test_periods_are_contiguous_and_start_at_calendar_boundaries(
    since: datetime, until: datetime, period: Period
) -> None:
    result = list(split_period(since, until, period))
    assert (not result) == (since >= until)
    if result:
        assert (result[0][0], result[-1][1]) == (since, until)
    for (_, end), (begin, _) in pairwise(result):
        assert end == begin
        assert (begin.hour, begin.minute, begin.second, begin.microsecond) == (0, 0, 0, 0)
        assert period is not Period.WEEK or begin.weekday() == 0
        assert period is not Period.MONTH or begin.day == 1


def test_sum_usage_groups_by_keys_and_sorts_largest_first() -> None:
    rows = [
        Usage("ada", "q", "p", 1, 1, 1, 1, 1),
        Usage("bob", "q", "p", 2, 2, 5, 1, 1),
        Usage("ada", "r", "p", 1, 1, 1, 1, 1),
    ]
    assert sum_usage(rows, [UsageKey.USER]) == [
        Usage("bob", "", "", 2, 2, 5, 1, 1),
        Usage("ada", "", "", 2, 2, 2, 2, 2),
    ]
    assert sum_usage(rows, [UsageKey.QUEUE, UsageKey.PROJECT])[0] == Usage("", "q", "p", 3, 3, 6, 2, 2)
    assert sum_usage(rows, []) == [Usage("", "", "", 4, 4, 7, 3, 3)]
