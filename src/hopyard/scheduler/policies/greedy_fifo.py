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

Group = tuple[QueueName, str, GangClassKey]  # of one queue, user and shape: if one is refused, all are


class GreedyFifo:
    """Gangs by priority, submission and id; each goes on the best node by one rule (`placement.score_rules`),
    or waits.

    With the rule `best-fit`: where the least is left. With `fgd`: fragmentation gradient descent (Weng et
    al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent, USENIX
    ATC'23).
    """

    def __init__(self, score: str) -> None:
        self._score = score
        self._incremental_state: IncrementalState[Group] = IncrementalState(_group)
        self._skipped: set[Group] = set()
        self._planned_starts: frozenset[GangId] = frozenset()

    def __call__(self, snapshot: Snapshot) -> Plan:
        known = self._incremental_state
        known.update(snapshot)
        if known.may_have_freed or not self._planned_starts <= known.running.keys():
            self._skipped.clear()
        now = TentativePlan(known, self._score)
        for group, gang in merge_in_order(known.pending, self._skipped):
            if (
                known.never_fits_cause(gang) is not None
                or now.quota_usage.refusal(gang) is not None
                or now.try_start(gang) is None
            ):
                self._skipped.add(group)  # and stay there: room only shrinks until something grew
        self._planned_starts = frozenset(placement.gang.id for placement in now.placed)
        return Plan(
            snapshot.version,
            tuple(now.placed),
            BaselineHolds(snapshot.pending, now.placed, BaselineHoldCauses(now, known.never_fits_cause)),
        )


def _group(gang: Gang) -> Group:
    return gang.queue, gang.user, class_of(gang)
