"""What is kept up as nodes change is as if it were worked out anew."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.cluster import Node
from hopyard.domain.gang import ANYWHERE
from hopyard.domain.ids import NodeId
from hopyard.domain.resources import WHOLE_GPU, Gpu, Resources
from hopyard.scheduler.placement.fitting import Fitting, Shape
from hopyard.scheduler.placement.free import Free
from hopyard.scheduler.placement.gradient import ONE_BY_ONE, Gradient
from hopyard.scheduler.placement.ground import Ground
from hopyard.scheduler.placement.mix import Mix
from hopyard.scheduler.placement.scores import NOT_HERE
from hopyard.scheduler.placement.worth import Worth

GIB = 1 << 30
CORES, MEMORY_GIB, COUNT = 32, 64, 3 * ONE_BY_ONE
REQUESTS = [
    Resources(1000, 2 * GIB, 1),
    Resources(8000, GIB, 1),
    Resources(1000, 40 * GIB, 1),
    Resources(4000, 8 * GIB, 2),
    Resources(2000, 6 * GIB, gpu_milli=300),
    Resources(500, 20 * GIB, gpu_milli=500),
    Resources(2000, GIB),
]


def ground() -> Ground:
    models = ("A100", "T4")
    return Ground(
        Node(
            NodeId(f"n{n:02}"),
            "local",
            CORES * 1000,
            MEMORY_GIB * GIB,
            tuple(Gpu(i, models[n % 2], 16 * GIB) for i in range(4)),
        )
        for n in range(COUNT)
    )


@pytest.mark.parametrize("fluid", [True, False])
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_nodes_that_changed_one_by_one_or_many_at_once_are_worth_what_they_are_anew(
    fluid: bool, data: st.DataObject
) -> None:
    on = ground()
    counts = data.draw(st.lists(st.integers(0, 5), min_size=len(REQUESTS), max_size=len(REQUESTS)))
    worth = Worth(
        on, Mix.of([(one, ANYWHERE, count) for one, count in zip(REQUESTS, counts, strict=True)]), fluid=fluid
    )
    free = Free.whole(on)
    kept = Gradient(worth, free)
    fittings = [Fitting(on, Shape(one, ANYWHERE)) for one in REQUESTS]
    before = [kept.everywhere(free, fitting) for fitting in fittings]
    for _ in range(data.draw(st.integers(1, 4))):
        rows = data.draw(
            st.lists(st.integers(0, COUNT - 1), min_size=1, max_size=2 * ONE_BY_ONE, unique=True)
        )
        for row in rows:
            free.cpu[row] = data.draw(st.integers(0, CORES)) * 1000
            free.memory[row] = data.draw(st.integers(0, MEMORY_GIB)) * GIB
            free.gpu[row] = data.draw(
                st.lists(st.sampled_from([0, 200, 500, 700, WHOLE_GPU]), min_size=4, max_size=4)
            )
        kept.refresh(free, rows)
        anew = Gradient(worth, free, kept.weights)
        for fitting, (values, columns) in zip(fittings, before, strict=True):
            kept.again(free, fitting, np.array(rows), values, columns)
            told, cards = anew.everywhere(free, fitting)
            np.testing.assert_array_equal(values, told)
            there = told != NOT_HERE
            np.testing.assert_array_equal(columns[there], cards[there])
