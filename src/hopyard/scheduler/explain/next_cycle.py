"""Simulates the next cycle as if one pending gang had requested something else."""

from __future__ import annotations

from dataclasses import replace

from hopyard.domain.cluster import Plan, Running, Snapshot
from hopyard.domain.gang import Gang
from hopyard.domain.ids import GangId
from hopyard.scheduler.cycle.planner import Planner


def with_requested_preemptions(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """Returns the snapshot after the preemption requests of the plan."""
    preemptors = {item.gang: item.for_gang for item in plan.preempt}
    running = [
        replace(
            item,
            stopping=True,
            preempted_for=preemptors[item.gang.id] or None,
            preempt_requested_at=snapshot.now,
        )
        if item.gang.id in preemptors
        else item
        for item in snapshot.running
    ]
    return replace(snapshot, running=tuple(running)) if preemptors else snapshot


class NextCycle:
    """The snapshot after the plan. The promise of the gang is withdrawn with its request, so gangs that were
    held back for it may start before it."""

    def __init__(self, snapshot: Snapshot, plan: Plan, gang: GangId) -> None:
        """snapshot: as returned by `with_requested_preemptions`."""
        placed = {placement.gang.id for placement in plan.place}
        self._other_pending = tuple(
            pending_gang
            for pending_gang in snapshot.pending
            if pending_gang.id != gang and pending_gang.id not in placed
        )
        self._snapshot = replace(
            snapshot,
            running=(*snapshot.running, *(Running(placement, snapshot.now) for placement in plan.place)),
            promises={promise.gang: promise for promise in plan.promises if promise.gang != gang},
        )
        self._planner = Planner()

    def would_start(self, alternative: Gang) -> bool:
        """Returns whether the gang starts in that cycle with this request. The first call plans from scratch;
        later calls reuse its state."""
        plan = self._planner(replace(self._snapshot, pending=(*self._other_pending, alternative)))
        return any(placement.gang.id == alternative.id for placement in plan.place)
