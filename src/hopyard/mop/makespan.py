"""Simulates one epoch with known durations, and computes a lower bound of its makespan."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Protocol

from hopyard.domain.ids import PartitionId, TrialId, WorkerId
from hopyard.mop.events import Event, HopFinished, Instruction, TrainHop, TrialAdmitted, WorkerJoined


class EventHandler(Protocol):
    def handle(self, *events: Event) -> list[Instruction]: ...


def simulate_epoch(
    coordinator: EventHandler,
    costs: Mapping[TrialId, float],
    speeds: Mapping[WorkerId, float],
    *,
    known_times: bool,
) -> float:
    """Returns the seconds until every trial was on every worker. Each worker holds one partition: worker i
    partition i.

    costs and speeds: a hop takes cost / speed seconds. known_times: the coordinator gets both in advance.
    Hops that end at the same moment are passed in one call.
    """
    workers = sorted(speeds)
    ends: list[tuple[float, int, float]] = []
    now = 0.0

    def handle(*events: Event) -> None:
        for instruction in coordinator.handle(*events):
            if isinstance(instruction, TrainHop):
                seconds = costs[instruction.trial] / speeds[instruction.workers[0]]
                heappush(ends, (now + seconds, instruction.hop, seconds))

    handle(
        *(
            WorkerJoined(worker, frozenset({PartitionId(i)}), speeds[worker] if known_times else None)
            for i, worker in enumerate(workers)
        )
    )
    handle(
        *(TrialAdmitted(trial, 1, "start", costs[trial] if known_times else None) for trial in sorted(costs))
    )
    while ends:
        now = ends[0][0]
        finished: list[Event] = []
        while ends and ends[0][0] <= now:
            _, hop, seconds = heappop(ends)
            finished.append(HopFinished(hop, "next", seconds))
        handle(*finished)
    return now


def makespan_lower_bound(costs: Mapping[TrialId, float], speeds: Mapping[WorkerId, float]) -> float:
    """Returns the total of the longest trial or of the busiest worker, whichever is larger (open shop)."""
    slowness = sum(1.0 / speed for speed in speeds.values())
    return max(max(costs.values()) * slowness, sum(costs.values()) / min(speeds.values()))
