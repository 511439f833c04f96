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
    """Seconds until every trial was on every worker, each of which holds one partition: worker i partition i.

    costs and speeds: a hop takes cost / speed seconds. known_times: the coordinator is told both beforehand.
    Hops that end in the same moment are told together.
    """
    workers = sorted(speeds)
    ends: list[tuple[float, int, float]] = []
    now = 0.0

    def tell(*events: Event) -> None:
        for said in coordinator.handle(*events):
            if isinstance(said, TrainHop):
                seconds = costs[said.trial] / speeds[said.workers[0]]
                heappush(ends, (now + seconds, said.hop, seconds))

    tell(
        *(
            WorkerJoined(w, frozenset({PartitionId(i)}), speeds[w] if known_times else None)
            for i, w in enumerate(workers)
        )
    )
    tell(
        *(TrialAdmitted(trial, 1, "start", costs[trial] if known_times else None) for trial in sorted(costs))
    )
    while ends:
        now = ends[0][0]
        over: list[Event] = []
        while ends and ends[0][0] <= now:
            _, hop, seconds = heappop(ends)
            over.append(HopFinished(hop, "next", seconds))
        tell(*over)
    return now


def makespan_lower_bound(costs: Mapping[TrialId, float], speeds: Mapping[WorkerId, float]) -> float:
    """Returns the total of the longest trial or of the busiest worker, whichever is larger (open shop)."""
    slowness = sum(1.0 / speed for speed in speeds.values())
    return max(max(costs.values()) * slowness, sum(costs.values()) / min(speeds.values()))
