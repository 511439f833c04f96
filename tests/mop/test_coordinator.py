"""Results of the coordinator's rule: makespans, order, groups, stragglers, hints."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.ids import PartitionId, TrialId, WorkerId
from hopyard.mop.coordinator import MopCoordinator
from hopyard.mop.events import (
    EvaluateState,
    EvaluationFinished,
    HopFinished,
    Instruction,
    PrefetchHint,
    SpareWorkersChanged,
    TrainHop,
    TrialAdmitted,
    TrialWithdrawn,
    WorkerJoined,
)
from hopyard.mop.makespan import makespan_lower_bound, simulate_epoch

ONE = frozenset({PartitionId(0)})
amounts = st.floats(0.1, 20.0)


def workers(count: int) -> list[WorkerJoined]:
    return [WorkerJoined(WorkerId(f"w{i}"), frozenset({PartitionId(i)})) for i in range(count)]


def trials(*names: str, epochs: int = 1) -> list[TrialAdmitted]:
    return [TrialAdmitted(TrialId(name), epochs, f"new {name}") for name in names]


def train_hops(instructions: list[Instruction]) -> list[TrainHop]:
    return [instruction for instruction in instructions if isinstance(instruction, TrainHop)]


@settings(max_examples=60, deadline=None)
@given(st.lists(amounts, min_size=1, max_size=12), st.lists(amounts, min_size=1, max_size=6), st.booleans())
def test_makespan_is_between_lower_bound_and_twice_lower_bound(
    costs: list[float], speeds: list[float], known: bool
) -> None:
    """No worker idles when it could work, and such an open-shop schedule is below the sum of the two
    totals."""
    of_trials = {TrialId(f"t{i:02d}"): cost for i, cost in enumerate(costs)}
    of_workers = {WorkerId(f"w{i}"): speed for i, speed in enumerate(speeds)}
    took = simulate_epoch(
        MopCoordinator(PartitionId(i) for i in range(len(speeds))), of_trials, of_workers, known_times=known
    )
    least = makespan_lower_bound(of_trials, of_workers)
    assert least * (1 - 1e-9) <= took <= 2 * least


def test_equal_units_form_a_latin_square() -> None:
    for size in (2, 3, 5, 8, 16):
        costs = {TrialId(f"t{i:02d}"): 1.0 for i in range(size)}
        speeds = {WorkerId(f"w{i:02d}"): 1.0 for i in range(size)}
        for known in (True, False):
            assert (
                simulate_epoch(
                    MopCoordinator(PartitionId(i) for i in range(size)), costs, speeds, known_times=known
                )
                == size
            )


def test_partition_order_is_independent_of_earlier_admissions() -> None:
    """Like a trial that is resumed without the earlier trials."""
    everything = frozenset(PartitionId(at) for at in range(3))
    orders = []
    for before in ([], trials("zero")):
        coordinator = MopCoordinator(everything)
        for entry in before:
            coordinator.handle(entry, TrialWithdrawn(entry.trial))
        coordinator.handle(TrialAdmitted(TrialId("two"), 2, "new", first_partition=2))
        instructions, order = coordinator.handle(WorkerJoined(WorkerId("w"), everything)), []
        while hop := next(iter(train_hops(instructions)), None):
            order.append(hop.partitions[0])
            instructions = coordinator.handle(HopFinished(hop.hop, f"after {len(order)}", 1.0))
        orders.append(order)
    assert orders[0] == orders[1] == [2, 0, 1] * 2


def test_learned_durations_decide_trial_order() -> None:
    """Two trials were slow in the first epoch; in the next epoch they go first."""
    coordinator = MopCoordinator(ONE)
    out = coordinator.handle(*workers(1), *trials("a", "b", "c", epochs=2))
    seconds = {"a": 1.0, "b": 9.0, "c": 3.0}
    order = []
    while started := train_hops(out):
        (hop,) = started
        order.append((hop.epoch, hop.trial))
        out = coordinator.handle(HopFinished(hop.hop, "next", seconds[hop.trial]))
    assert [trial for epoch, trial in order if epoch == 1] == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("count", "parts"), [(1, [4]), (2, [2, 2]), (3, [2, 1, 1]), (4, [1, 1, 1, 1]), (5, [1, 1, 1, 1])]
)
def test_spare_workers_are_shared_among_waiting_trials(count: int, parts: list[int]) -> None:
    coordinator = MopCoordinator(PartitionId(i) for i in range(4))
    instructions = coordinator.handle(*workers(4), *trials(*"abcde"[:count]), SpareWorkersChanged(True))
    assert [len(hop.partitions) for hop in train_hops(instructions)] == parts
    assert sorted(worker for hop in train_hops(instructions) for worker in hop.workers) == [
        f"w{i}" for i in range(4)
    ]


def test_group_over_all_partitions_completes_epoch() -> None:
    coordinator = MopCoordinator([PartitionId(0), PartitionId(1)])
    (hop,) = train_hops(coordinator.handle(*workers(2), *trials("a", epochs=2), SpareWorkersChanged(True)))
    assert hop.partitions == (0, 1)
    (next_hop,) = train_hops(coordinator.handle(HopFinished(hop.hop, "after", 1.0)))
    assert (next_hop.epoch, next_hop.start_from, next_hop.partitions) == (1, "after", (0, 1))


def test_single_trial_waits_for_its_evaluations() -> None:
    """Otherwise the first free worker would take it alone, and all others would idle."""
    both = [PartitionId(0), PartitionId(1)]
    joined = [WorkerJoined(event.worker, event.partitions, None, event.partitions) for event in workers(2)]
    coordinator = MopCoordinator(both, validation=both)
    (hop,) = train_hops(coordinator.handle(*joined, *trials("a", epochs=2), SpareWorkersChanged(True)))
    evaluations = [
        instruction
        for instruction in coordinator.handle(HopFinished(hop.hop, "s", 1.0))
        if isinstance(instruction, EvaluateState)
    ]
    assert len(evaluations) == 2
    other = MopCoordinator(both, validation=both)
    (hop,) = train_hops(other.handle(*joined, *trials("a", epochs=2), SpareWorkersChanged(True)))
    first, _ = [
        instruction
        for instruction in other.handle(HopFinished(hop.hop, "s", 1.0))
        if isinstance(instruction, EvaluateState)
    ]
    assert not train_hops(other.handle(EvaluationFinished(first.unit)))
    assert train_hops(other.handle(SpareWorkersChanged(False))), "where somebody may come, it goes at once"
    assert not train_hops(coordinator.handle(EvaluationFinished(evaluations[0].unit)))
    (hop,) = train_hops(coordinator.handle(EvaluationFinished(evaluations[1].unit)))
    assert hop.partitions == (0, 1)


def test_trial_trains_elsewhere_during_its_evaluation() -> None:
    coordinator = MopCoordinator([PartitionId(0), PartitionId(1)], validation=[PartitionId(0)])
    first, second = workers(2)
    evaluator = WorkerJoined(first.worker, first.partitions, None, ONE)
    (hop,) = train_hops(coordinator.handle(evaluator, second, *trials("a", epochs=2)))
    (hop,) = train_hops(coordinator.handle(HopFinished(hop.hop, "s1", 1.0)))
    evaluation, hop = coordinator.handle(HopFinished(hop.hop, "s2", 1.0))[-2:]
    assert isinstance(evaluation, EvaluateState) and isinstance(hop, TrainHop)
    assert (evaluation.checkpoint, evaluation.worker, hop.start_from, hop.workers) == (
        "s2",
        "w0",
        "s2",
        ("w1",),
    )


def test_straggler_hands_unit_to_faster_worker() -> None:
    """And takes part if there is enough work for both."""
    slow, fast = WorkerJoined(WorkerId("slow"), ONE, 1.0), WorkerJoined(WorkerId("fast"), ONE, 10.0)
    coordinator = MopCoordinator(ONE)
    (hop,) = train_hops(coordinator.handle(slow, fast, *trials("a", "b")))
    assert hop.workers == ("fast",)
    (hop,) = train_hops(coordinator.handle(HopFinished(hop.hop, "s", 0.1)))
    assert hop.workers == ("fast",)
    many = MopCoordinator(ONE).handle(slow, fast, *trials(*(f"t{i:02d}" for i in range(30))))
    assert {hop.workers for hop in train_hops(many)} == {("slow",), ("fast",)}


def test_prefetch_hint_names_next_unit() -> None:
    coordinator = MopCoordinator([PartitionId(0), PartitionId(1)])
    out = coordinator.handle(*workers(2), *trials("a", "b", "c", "d"))
    first, second = train_hops(out)
    assert coordinator.hints({first.hop: 5.0, second.hop: 0.0}) == [
        PrefetchHint(WorkerId("w0"), "new c"),
        PrefetchHint(WorkerId("w1"), "new d"),
    ]
    (after,) = train_hops(coordinator.handle(HopFinished(first.hop, "s", 6.0)))
    assert (after.workers, after.start_from) == (("w0",), "new c")
