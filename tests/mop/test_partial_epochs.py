"""Budgets and reports within an epoch, simulated with durations from a seed."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from heapq import heappop, heappush

import pytest

from hopyard.domain.ids import PartitionId, TrialId, WorkerId
from hopyard.mop.coordinator import MopCoordinator
from hopyard.mop.events import (
    EpochEvaluated,
    EvaluateState,
    EvaluationFinished,
    Event,
    HopFinished,
    Instruction,
    TrainHop,
    TrialAdmitted,
    UnitFailed,
    WorkerJoined,
)
from hopyard.mop.fixed_order import make_fixed_order
from hopyard.mop.report_schedule import ReportSchedule

COUNT = 6
PARTITIONS = [PartitionId(index) for index in range(COUNT)]
LARGEST_RATIO = 1.05  # of the makespan to its lower bound


def simulate(
    seed: int, *, report_visits: int, fixed: bool = False, failures: float = 0.0
) -> tuple[float, float, dict[TrialId, list[tuple[int, int]]], dict[TrialId, list[int]], dict[TrialId, int]]:
    """Returns the makespan, its lower bound, and by trial its visits, its reports (in visits) and its
    budget."""
    draw = random.Random(seed)
    budgets = {TrialId(str(number)): draw.randint(1, 2 * COUNT + 3) for number in range(4 * COUNT)}
    costs = {trial: draw.uniform(0.5, 2.0) for trial in budgets}
    coordinator = MopCoordinator(
        PARTITIONS,
        validation=PARTITIONS[:1] if failures else (),
        report_visits=report_visits,
        fixed_order=make_fixed_order(PARTITIONS, seed) if fixed else None,
    )
    visits: dict[TrialId, list[tuple[int, int]]] = defaultdict(list)
    reports: dict[TrialId, list[int]] = defaultdict(list)
    visits_of_state = dict.fromkeys(("",), 0)
    ends: list[tuple[float, int, Instruction]] = []
    now = 0.0

    def handle(*events: Event) -> None:
        for instruction in coordinator.handle(*events):
            if isinstance(instruction, TrainHop):
                heappush(ends, (now + costs[instruction.trial], instruction.hop, instruction))
            elif isinstance(instruction, EvaluateState):
                heappush(ends, (now + 0.01, instruction.unit, instruction))
            elif isinstance(instruction, EpochEvaluated):
                reports[instruction.trial].append(visits_of_state[instruction.checkpoint])

    handle(
        *(
            WorkerJoined(WorkerId(f"w{each}"), frozenset({each}), None, frozenset({each}))
            for each in PARTITIONS
        )
    )
    handle(
        *(
            TrialAdmitted(trial, budget // COUNT, "", costs[trial], extra_visits=budget % COUNT)
            for trial, budget in budgets.items()
        )
    )
    while ends:
        now, number, unit = heappop(ends)
        if draw.random() < failures:
            handle(UnitFailed(number))
        elif isinstance(unit, TrainHop):
            visits[unit.trial] += [(unit.epoch, int(partition)) for partition in unit.partitions]
            visits_of_state[f"s{number}"] = len(visits[unit.trial])
            handle(HopFinished(number, f"s{number}", costs[unit.trial]))
        else:
            handle(EvaluationFinished(number))
    work = {trial: costs[trial] * budget for trial, budget in budgets.items()}
    return now, max(*work.values(), sum(work.values()) / COUNT), visits, reports, budgets


@pytest.mark.parametrize("seed", range(8))
def test_partial_epochs_keep_the_bound_of_the_schedule(seed: int) -> None:
    makespan_s, bound_s, visits, _, budgets = simulate(seed, report_visits=2)
    assert makespan_s <= LARGEST_RATIO * bound_s
    for trial, budget in budgets.items():
        assert len(visits[trial]) == len(set(visits[trial])) == budget, "no partition twice in an epoch"
        assert sorted(visits[trial], key=lambda visit: visit[0]) == visits[trial]
        assert Counter(epoch for epoch, _ in visits[trial])[0] == min(budget, COUNT)


def test_reports_come_once_at_their_visits_in_spite_of_failed_units() -> None:
    for report_visits in (1, 2, 4, COUNT):
        schedule = ReportSchedule(COUNT, 1, report_visits)
        _, _, _, reports, budgets = simulate(7, report_visits=report_visits, failures=0.2)
        for trial, budget in budgets.items():
            expected = [0]
            while expected[-1] < budget:
                expected.append(schedule.next_report(expected[-1], budget))
            assert sorted(reports[trial]) == expected[1:]


def test_fixed_order_of_a_partial_epoch_is_that_of_the_seed() -> None:
    order = make_fixed_order(PARTITIONS, 3)
    calm, failing = (simulate(3, report_visits=2, fixed=True, failures=rate)[2] for rate in (0.0, 0.3))
    for trial, visits in failing.items():
        circle = [(epoch, int(each)) for epoch in range(3) for each in order(trial, epoch)]
        assert visits == calm[trial] == circle[: len(visits)]
