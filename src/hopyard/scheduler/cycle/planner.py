"""The scheduling policy: `plan` keeps no state, `Planner` keeps state between cycles."""

from __future__ import annotations

from hopyard.domain.cluster import Plan, Snapshot
from hopyard.scheduler.cycle.cluster_state import ClusterState
from hopyard.scheduler.cycle.scheduling_cycle import SchedulingCycle


class Planner:
    """Keeps the last snapshot, and computes only the changes of the next one. Returns the same plans as
    `plan`."""

    def __init__(self) -> None:
        self._cluster_state: ClusterState | None = None

    def __call__(self, snapshot: Snapshot, /) -> Plan:
        # dropped after an error: then the next cycle starts from scratch
        state, self._cluster_state = self._cluster_state, None
        if state is None:
            state = ClusterState(snapshot)
        else:
            state.update(snapshot)
        plan = SchedulingCycle(state).plan()
        self._cluster_state = state
        return plan


def plan(snapshot: Snapshot, /) -> Plan:
    """Returns the plan for a snapshot. Pure: equal snapshots give equal plans, in any order of their
    items."""
    return SchedulingCycle(ClusterState(snapshot)).plan()
