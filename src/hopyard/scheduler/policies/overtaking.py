"""First come, first served, but whoever does not fit is overtaken by whoever does."""

from __future__ import annotations

from hopyard.domain.cluster import Plan, Snapshot
from hopyard.domain.gang import Gang
from hopyard.domain.ids import GangId, QueueName
from hopyard.scheduler.policies.followed import Followed, ShapeKey, Tentative, in_order, shape_of
from hopyard.scheduler.policies.holds import Holds, Reasons

Group = tuple[QueueName, str, ShapeKey]  # of one queue, user and shape: if one is refused, all are


class Overtaking:
    """Gangs by priority, submission and id; each goes on the best node by one rule (`placement.scores`), or
    waits.

    With the rule `best-fit`: where the least is left. With `fgd`: fragmentation gradient descent (Weng et
    al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent, USENIX
    ATC'23).
    """

    def __init__(self, score: str) -> None:
        self._score = score
        self._known: Followed[Group] = Followed(_group)
        self._over: set[Group] = set()
        self._expected: frozenset[GangId] = frozenset()

    def __call__(self, snapshot: Snapshot) -> Plan:
        known = self._known
        known.follow(snapshot)
        if known.grew or not self._expected <= known.running.keys():
            self._over.clear()
        now = Tentative(known, self._score)
        for group, gang in in_order(known.waiting, self._over):
            if (
                known.hopeless(gang) is not None
                or now.accounts.refusal(gang) is not None
                or now.start(gang) is None
            ):
                self._over.add(group)  # and stay there: room only shrinks until something grew
        self._expected = frozenset(placement.gang.id for placement in now.placed)
        return Plan(
            snapshot.version,
            tuple(now.placed),
            Holds(snapshot.pending, now.placed, Reasons(now, known.hopeless)),
        )


def _group(gang: Gang) -> Group:
    return gang.queue, gang.user, shape_of(gang)
