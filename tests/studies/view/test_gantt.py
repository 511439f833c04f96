"""What each worker did when."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hopyard.studies.view.gantt import as_data, gantt, strips
from hopyard.studies.view.standing import StudyView
from tests.studies.view.test_standing import SPEC, hop


def test_idle_time_and_pauses_of_two_workers() -> None:
    view = StudyView.of([SPEC, hop(0, "0", "0", at=0.0), hop(1, "1", "0", at=1.5), hop(2, "1", "1", at=0.0)])
    chart = gantt(view)
    assert chart.span_s == 2.5
    assert [(row.worker, row.busy_s, row.idle_s) for row in chart.rows] == [("0", 2.0, 0.5), ("1", 1.0, 1.5)]
    assert chart.gaps_s == (0.5,)
    assert math.isclose(chart.idle_share, 2.0 / 5.0)
    assert strips(chart, 5) == [["0", "0", None, "1", "1"], ["1", "1", None, None, None]]


def test_workers_stand_in_the_order_of_their_numbers() -> None:
    view = StudyView.of([SPEC, *(hop(n, "0", str(n), at=float(n)) for n in (10, 2, 1))])
    assert [row.worker for row in gantt(view).rows] == ["1", "2", "10"]


def test_epochs_can_be_picked() -> None:
    view = StudyView.of([SPEC, hop(0, "0", epoch=0, at=0.0), hop(1, "0", epoch=1, at=5.0)])
    assert gantt(view, epochs=(1, 1)).began_at == 5.0


def test_a_study_without_units_has_an_empty_chart() -> None:
    chart = gantt(StudyView.of([SPEC]))
    assert (chart.rows, chart.idle_share, chart.gap_s(0.5)) == ((), 0.0, None)
    assert as_data(chart)["workers"] == []
    assert strips(chart, 10) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.floats(0.0, 50.0)), min_size=1, max_size=25), st.integers(1, 40))
def test_busy_and_idle_make_the_whole(units: list[tuple[int, int, float]], columns: int) -> None:
    """Also where units overlap, which clocks of several machines can make it seem."""
    view = StudyView.of([SPEC, *(hop(n, str(trial), str(worker), at=at) for n, (worker, trial, at) in enumerate(units))])
    chart = gantt(view)
    for row in chart.rows:
        assert math.isclose(row.busy_s + row.idle_s, chart.span_s, abs_tol=1e-9)
        assert row.idle_s >= -1e-9
    assert all(gap > 0 for gap in chart.gaps_s)
    assert all(len(strip) == columns for strip in strips(chart, columns))
