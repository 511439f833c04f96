"""First come, first served: a gang never overtakes a gang that waits for the same nodes."""

from __future__ import annotations

from hopyard.domain.cluster import Plan, Snapshot
from hopyard.domain.ids import NodeId
from hopyard.scheduler.policies.baseline_holds import BaselineHoldCauses, BaselineHolds
from hopyard.scheduler.policies.incremental_state import IncrementalState, TentativePlan


class Fifo:
    """Priority, then submission time, then id.

    A pending gang claims every node that could hold one of its replicas, and later gangs do not use these
    nodes. A gang that is larger than all nodes, or whose queue is at its limit, claims none and delays no
    gang.
    """

    def __init__(self) -> None:
        self._incremental_state: IncrementalState[None] = IncrementalState(lambda _: None)

    def __call__(self, snapshot: Snapshot) -> Plan:
        state = self._incremental_state
        state.update(snapshot)
        tentative_plan = TentativePlan(state, "best-fit")
        causes = BaselineHoldCauses(tentative_plan, state.never_fits_cause, strict=True)
        claimed: set[NodeId] = set()
        for gang in state.pending.get(None, ()):
            if (
                state.never_fits_cause(gang) is not None
                or tentative_plan.quota_usage.refusal(gang) is not None
            ):
                continue
            if tentative_plan.try_start(gang) is None:
                capable_nodes = state.capable_nodes(gang)
                if not claimed & capable_nodes:
                    causes.capacity_at_refusal[gang.id] = tentative_plan.capacity.copy()
                claimed |= capable_nodes
                if len(claimed) == state.open_nodes:
                    break
                tentative_plan.capacity.close_nodes(capable_nodes)
        return Plan(
            snapshot.version,
            tuple(tentative_plan.placed),
            BaselineHolds(snapshot.pending, tentative_plan.placed, causes),
        )
