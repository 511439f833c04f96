"""The timeline of each worker."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hopyard.studies.view.gantt import BREAK, as_data, gantt, timeline_strips
from hopyard.studies.view.study_view import StudyView
from tests.studies.view.test_study_view import SPEC, hop_record


def test_idle_time_and_pauses_of_two_workers() -> None:
    view = StudyView.from_records(
        [
            SPEC,
            hop_record(0, "0", "0", at=0.0),
            hop_record(1, "1", "0", at=1.5),
            hop_record(2, "1", "1", at=0.0),
        ]
    )
    chart = gantt(view)
    assert chart.span_s == 2.5
    assert [(row.worker, row.busy_s, row.idle_s) for row in chart.rows] == [("0", 2.0, 0.5), ("1", 1.0, 1.5)]
    assert chart.gaps_s == (0.5,)
    assert math.isclose(chart.idle_share, 2.0 / 5.0)
    assert timeline_strips(chart, 5) == [["0", "0", None, "1", "1"], ["1", "1", None, None, None]]


def test_gap_between_attempts_is_not_idle_time() -> None:
    """Another driver of the same attempt is not a new attempt."""
    first, second = {**SPEC, "attempt": "run.1"}, {**SPEC, "attempt": "run.2"}
    units = [
        hop_record(0, "0", "0", at=0.0),
        hop_record(1, "1", "1", at=0.5),
        hop_record(2, "1", "0", at=10.0),
        hop_record(3, "0", "1", at=10.0),
    ]
    chart = gantt(StudyView.from_records([first, *units[:2], first, second, *units[2:]]))
    assert chart.breaks == ((1.5, 10.0),)
    assert (chart.span_s, chart.attended_s) == (11.0, 2.5)
    assert [(row.busy_s, row.idle_s) for row in chart.rows] == [(2.0, 0.5), (2.0, 0.5)]
    assert chart.gaps_s == ()
    assert math.isclose(chart.idle_share, 0.2)
    assert as_data(chart)["breaks"] == [{"from_s": 1.5, "to_s": 10.0}]
    assert timeline_strips(chart, 11) == [["0", None, *[BREAK] * 8, "1"], ["1", "1", *[BREAK] * 8, "0"]]
    assert gantt(StudyView.from_records([first, *units[:2], first, *units[2:]])).breaks == ()
    assert (
        gantt(StudyView.from_records([first, *units[:2], second, *units[2:]]), epochs=(0, 0)).breaks
        == chart.breaks
    )


def test_workers_are_ordered_by_number() -> None:
    view = StudyView.from_records([SPEC, *(hop_record(n, "0", str(n), at=float(n)) for n in (10, 2, 1))])
    assert [row.worker for row in gantt(view).rows] == ["1", "2", "10"]


def test_epochs_can_be_selected() -> None:
    view = StudyView.from_records(
        [SPEC, hop_record(0, "0", epoch=0, at=0.0), hop_record(1, "0", epoch=1, at=5.0)]
    )
    assert gantt(view, epochs=(1, 1)).began_at == 5.0


def test_a_study_without_units_has_an_empty_chart() -> None:
    chart = gantt(StudyView.from_records([SPEC]))
    assert (chart.rows, chart.idle_share, chart.gap_s(0.5)) == ((), 0.0, None)
    assert as_data(chart)["workers"] == []
    assert timeline_strips(chart, 10) == []


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.floats(0.0, 50.0)), min_size=1, max_size=25),
    st.integers(1, 40),
    st.sets(st.integers(0, 25)),
)
def test_busy_idle_and_pause_times_add_up(
    units: list[tuple[int, int, float]], columns: int, attempts: set[int]
) -> None:
    """Also with overlapping units, which skewed clocks of several machines can produce.
    attempts: the units before which an attempt starts."""
    records = [SPEC]
    for n, (worker, trial, at) in enumerate(units):
        records += [{**SPEC, "attempt": f"run.{n}"}] if n in attempts else []
        records.append(hop_record(n, str(trial), str(worker), at=at))
    chart = gantt(StudyView.from_records(records))
    for row in chart.rows:
        assert math.isclose(row.busy_s + row.idle_s, chart.attended_s, abs_tol=1e-9)
        assert row.idle_s >= -1e-9
    assert all(gap > 0 for gap in chart.gaps_s)
    assert all(len(strip) == columns for strip in timeline_strips(chart, columns))
