"""Time slicing: which run is preempted for which gang, and that preemptions end."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.cluster import Running
from hopyard.domain.gang import Gang, Placement, Role
from hopyard.domain.ids import GangId, QueueName
from hopyard.domain.queue import Queue, QueueTree
from hopyard.domain.resources import Resources
from hopyard.scheduler.cycle.time_slices import TimeSlices
from hopyard.scheduler.time_slicing import (
    CLASS_COUNT,
    CLASS_GROWTH_FACTOR,
    FIRST_CLASS_END_S,
    QUANTUM_S,
    preemptible_after_s,
    served_s,
    service_class,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
seconds = st.floats(0, 1e9, allow_nan=False)
gpus = st.sampled_from([0, 1, 2, 8, 64])


def gang(name: str, served: float = 0.0, *, gpus: int = 1) -> Gang:
    return Gang(GangId(name), (Role("main", 1, Resources(gpus=gpus)),), NOW, served_s=served)


def running(name: str, *, served: float = 0.0, for_s: float | None = 0.0, gpus: int = 1) -> Running:
    began = None if for_s is None else NOW - timedelta(seconds=for_s)
    return Running(Placement(gang(name, served, gpus=gpus), ()), NOW - timedelta(days=1), started_at=began)


def class_of(gang: Gang) -> int:
    return service_class(gang, gang.served_s)


def test_service_classes_grow_by_a_factor_and_the_last_is_unbounded() -> None:
    served = (
        0.0,
        FIRST_CLASS_END_S - 0.001,
        FIRST_CLASS_END_S,
        FIRST_CLASS_END_S * CLASS_GROWTH_FACTOR - 0.001,
        FIRST_CLASS_END_S * CLASS_GROWTH_FACTOR,
    )
    assert [class_of(gang("a", s)) for s in served] == [0, 0, 1, 1, 2]
    assert class_of(gang("a", 1e300)) == CLASS_COUNT - 1


def test_gpus_count_by_their_square_root_and_zero_as_one() -> None:
    assert [class_of(gang("a", FIRST_CLASS_END_S / 2 - 1, gpus=count)) for count in (0, 1, 4, 64)] == [
        0,
        0,
        0,
        1,
    ]
    assert class_of(gang("a", FIRST_CLASS_END_S / 2, gpus=4)) == 1


@given(seconds, seconds, gpus)
def test_more_service_never_improves_the_class(a: float, b: float, gpus: int) -> None:
    assert class_of(gang("a", min(a, b), gpus=gpus)) <= class_of(gang("a", max(a, b), gpus=gpus))


def test_earlier_attempts_count_as_service_and_preparation_does_not() -> None:
    assert served_s(running("a", served=100.0, for_s=30.0), NOW) == 130.0
    assert served_s(running("a", served=100.0, for_s=None), NOW) == 100.0
    assert served_s(running("a", served=100.0, for_s=-30.0), NOW) == 100.0, "the clock was set back"


@pytest.mark.parametrize(
    ("served", "waits", "after_s"),
    [
        (0.0, 0, QUANTUM_S),  # the quantum is longer than the first class
        (5000.0, 0, QUANTUM_S),  # much service, but it has just restarted
        (0.0, 3, 3840.0),  # class 3 ends at 3840 s
        (3000.0, 3, 840.0),
    ],
)
def test_preemptible_after_s_by_class(served: float, waits: int, after_s: float) -> None:
    assert preemptible_after_s(gang("r", served))[waits] == pytest.approx(after_s)


@given(seconds, gpus)
def test_run_is_preemptible_by_better_classes_once_it_is_in_a_worse_one(served: float, gpus: int) -> None:
    served_gang = gang("r", served, gpus=gpus)
    after = preemptible_after_s(served_gang)
    assert len(after) == CLASS_COUNT - 1, "the last class preempts no run"
    assert after == sorted(after)
    for waits, after_s in enumerate(after):
        assert service_class(served_gang, served + after_s + 1e-3) > waits
        assert after_s == QUANTUM_S or service_class(served_gang, (served + after_s) * 0.999 - 1e-3) <= waits


@given(st.floats(0, 1e6), st.floats(0, 1e6), gpus, gpus)
def test_two_gangs_on_one_place_swap_rarely(first: float, second: float, gpus: int, others: int) -> None:
    """Two endless gangs for one placement: the pending one starts as soon as the other is preemptible."""
    active, pending, swaps = gang("a", first, gpus=gpus), gang("b", second, gpus=others), 0
    while class_of(pending) < CLASS_COUNT - 1:
        ran_s = preemptible_after_s(active)[class_of(pending)] + 1e-2
        assert ran_s >= QUANTUM_S
        active, pending, swaps = pending, replace(active, served_s=active.served_s + ran_s), swaps + 1
    assert swaps <= 2 * CLASS_COUNT


QUEUES = QueueTree(
    {name: Queue(name, time_slices=name != "still") for name in map(QueueName, ("sliced", "other", "still"))}
)
held = st.builds(
    lambda served, for_s, gpus, queue, priority, preemptible: (
        served,
        for_s,
        gpus,
        queue,
        priority,
        preemptible,
    ),
    st.sampled_from([0.0, 100.0, 5000.0, 1e6]),
    st.sampled_from([None, -5.0, 0.0, 599.0, 600.0, 4000.0, 1e5]),
    st.sampled_from([1, 4]),
    st.sampled_from(["sliced", "sliced", "other", "still"]),
    st.sampled_from([50, 50, 60]),
    st.booleans(),
)


@given(st.lists(held, max_size=12), st.data())
def test_time_slices_list_current_and_next_preemptions(
    rows: list[tuple[float, float | None, int, str, int, bool]], data: st.DataObject
) -> None:
    slices, runs = TimeSlices(QUEUES), {}
    for number, (served, for_s, gpus, queue, priority, preemptible) in enumerate(rows):
        run = running(f"r{number}", served=served, for_s=for_s, gpus=gpus)
        of = replace(run.gang, queue=QueueName(queue), priority=priority, preemptible=preemptible)
        runs[of.id] = replace(run, placement=Placement(of, ()))
        slices.add(replace(runs[of.id], started_at=None))
        slices.add(runs[of.id])
    for name in data.draw(st.sets(st.sampled_from(sorted(runs)))) if runs else ():
        slices.drop(runs.pop(name))
    for waits in range(CLASS_COUNT):
        result = {
            run.gang.id: worst for worst, run in slices.preemptible_runs(QueueName("sliced"), 50, waits, NOW)
        }
        expected, next_in = {}, []
        for name, run in runs.items():
            if (
                run.gang.queue != "sliced"
                or run.gang.priority != 50
                or not run.gang.preemptible
                or run.started_at is None
            ):
                continue
            ran_s = (NOW - run.started_at).total_seconds()
            due = [ran_s - after_s for after_s in preemptible_after_s(run.gang)]
            if waits < len(due):
                if due[waits] >= 0:
                    expected[name] = sum(since >= 0 for since in due) - 1
                else:
                    next_in.append(-due[waits])
        assert result == expected
        assert slices.next_preemptible_in_s(QueueName("sliced"), 50, waits, NOW) == (
            pytest.approx(min(next_in), abs=1e-3) if next_in else None
        )
    assert not list(slices.preemptible_runs(QueueName("still"), 50, 0, NOW))
