"""First come, first served with overtaking: a gang that fits overtakes gangs that do not fit."""

from __future__ import annotations

from hopyard.domain.cluster import Plan, Snapshot
from hopyard.domain.gang import Gang
from hopyard.domain.ids import GangId, QueueName
from hopyard.scheduler.policies.baseline_holds import BaselineHoldCauses, BaselineHolds
from hopyard.scheduler.policies.incremental_state import (
    GangClassKey,
    IncrementalState,
    TentativePlan,
    class_of,
    merge_in_order,
)

Group = tuple[QueueName, str, GangClassKey]  # one queue, user and shape: if one gang is refused, all are


class GreedyFifo:
    """Starts gangs by priority, submission and id. Each gang starts on the best node by one rule
    (`placement.score_rules`), or waits.

    With the rule `best-fit`: the node with the least left. With `fgd`: fragmentation gradient descent (Weng
    et al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent,
    USENIX ATC'23).
    """

    def __init__(self, score: str) -> None:
        self._score = score
        self._incremental_state: IncrementalState[Group] = IncrementalState(_group)
        self._skipped: set[Group] = set()
        self._planned_starts: frozenset[GangId] = frozenset()

    def __call__(self, snapshot: Snapshot) -> Plan:
        state = self._incremental_state
        state.update(snapshot)
        if state.may_have_freed or not self._planned_starts <= state.running.keys():
            self._skipped.clear()
        tentative_plan = TentativePlan(state, self._score)
        for group, gang in merge_in_order(state.pending, self._skipped):
            if (
                state.never_fits_cause(gang) is not None
                or tentative_plan.quota_usage.refusal(gang) is not None
                or tentative_plan.try_start(gang) is None
            ):
                # stays skipped: free capacity only shrinks until resources are released
                self._skipped.add(group)
        self._planned_starts = frozenset(placement.gang.id for placement in tentative_plan.placed)
        return Plan(
            snapshot.version,
            tuple(tentative_plan.placed),
            BaselineHolds(
                snapshot.pending,
                tentative_plan.placed,
                BaselineHoldCauses(tentative_plan, state.never_fits_cause),
            ),
        )


def _group(gang: Gang) -> Group:
    return gang.queue, gang.user, class_of(gang)
