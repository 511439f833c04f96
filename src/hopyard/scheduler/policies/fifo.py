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
        known = self._incremental_state
        known.update(snapshot)
        now = TentativePlan(known, "best-fit")
        causes = BaselineHoldCauses(now, known.never_fits_cause, strict=True)
        claimed: set[NodeId] = set()
        for gang in known.pending.get(None, ()):
            if known.never_fits_cause(gang) is not None or now.quota_usage.refusal(gang) is not None:
                continue
            if now.try_start(gang) is None:
                able = known.capable_nodes(gang)
                if not claimed & able:
                    causes.capacity_at_refusal[gang.id] = now.capacity.copy()
                claimed |= able
                if len(claimed) == known.open_nodes:
                    break
                now.capacity.close_nodes(able)
        return Plan(snapshot.version, tuple(now.placed), BaselineHolds(snapshot.pending, now.placed, causes))
