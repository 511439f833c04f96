"""Blocks of points become the same columns as points one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.metric_records import (
    MAX_STEP,
    NO_STEP,
    POINT,
    POINT_BYTES,
    pack_definition,
    pack_point,
    series_id,
)
from hopyard.tracking import metrics
from hopyard.tracking.point_columns import POINT_RECORD

NAMES = ("loss", "acc", "val/acc")
Logged = tuple[str, int, float]
steps = st.one_of(st.integers(-5, 5), st.integers(MAX_STEP - 2, MAX_STEP), st.just(NO_STEP))
points = st.lists(st.tuples(st.sampled_from((*NAMES, "undefined")), steps, st.floats(0, 9)), max_size=40)


def read(
    blocks: list[list[Logged]], min_points: int
) -> dict[str, tuple[list[int], list[float], list[float]]]:
    """Returns steps, values and times of each series. A process restarts between two blocks."""
    selection = metrics._SeriesSelection(None)
    reader = selection.reader()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "_MIN_COLUMN_POINTS", min_points)
        for block in blocks:
            data = b"".join(pack_definition(name) for name in NAMES)
            for place, (name, step, value) in enumerate(block):
                data += pack_point(POINT, series_id(name), step, float(place), value)
            reader.feed(data)
            reader.restart()
    return {
        name: (list(found.steps), list(found.values), list(found.times))
        for name, found in selection.series.items()
    }


def test_record_has_the_bytes_of_a_point() -> None:
    assert POINT_RECORD.itemsize == POINT_BYTES


@given(st.lists(points, min_size=1, max_size=3))
def test_columns_equal_points_one_by_one(blocks: list[list[Logged]]) -> None:
    assert read(blocks, min_points=1) == read(blocks, min_points=1000)
