"""Pending gangs, grouped into classes of scheduling equivalence that are examined once."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from datetime import datetime

from hopyard.domain.gang import Gang, Role, Topology
from hopyard.domain.ids import GangId, QueueName

Rank = tuple[int, int]  # minus the priority, then the service class: smaller comes first
RankFunction = Callable[[Gang], Rank]


class GangClass:
    """Everything that decides where a gang fits (Kueue: scheduling equivalence hash). Compared by identity;
    each `PendingGangs` has one instance per class.

    representative: a gang of this shape. pending_count: the number of pending gangs.
    """

    __slots__ = ("pending_count", "representative", "requests_gpus")

    def __init__(self, representative: Gang) -> None:
        self.representative, self.pending_count = representative, 0
        self.requests_gpus = any(
            role.resources.gpus or role.resources.is_gpu_share for role in representative.roles
        )

    @property
    def key(self) -> GangClassKey:
        return self.representative.roles, self.representative.topology


GangClassKey = tuple[tuple[Role, ...], Topology | None]
# one shape, script and time limit: for one user, these gangs have similar expected durations
GangGroup = tuple[GangClass, str, float | None]
PendingByGroup = dict[GangGroup, list[Gang]]  # of one rank and user: each list by submission, then id


class QueuePending:
    """Pending gangs of one queue, by rank, user and class. class_counts: the number of gangs per class."""

    __slots__ = ("by_rank", "class_counts")

    def __init__(self) -> None:
        self.by_rank: dict[Rank, dict[str, PendingByGroup]] = {}
        self.class_counts: dict[GangClass, int] = {}


class PendingGangs:
    """All pending gangs. The cost of an update depends on the number of added and removed gangs, not on the
    number of pending gangs.

    rank_function: returns the rank of a gang in its queue, which must not change.
    """

    def __init__(self, gangs: Iterable[Gang], rank_function: RankFunction) -> None:
        self.queues: dict[QueueName, QueuePending] = {}
        self._rank_function = rank_function
        self._classes: dict[GangClassKey, GangClass] = {}
        self._gangs: dict[GangId, tuple[Gang, GangClass]] = {}
        unsorted: dict[int, list[Gang]] = {}
        for gang in gangs:
            group = self._gangs_in_group(gang)
            group.append(gang)
            if len(group) == 2:
                unsorted[id(group)] = group
        for group in unsorted.values():
            group.sort(key=submission_order)

    def __len__(self) -> int:
        return len(self._gangs)

    def __contains__(self, gang: GangId) -> bool:
        return gang in self._gangs

    @property
    def classes(self) -> Iterable[GangClass]:
        return self._classes.values()

    def find(self, gang: GangId) -> Gang | None:
        entry = self._gangs.get(gang)
        return None if entry is None else entry[0]

    def rank_of(self, gang: Gang) -> Rank:
        """Returns the rank of any gang of these queues."""
        return self._rank_function(gang)

    def class_of(self, gang: Gang) -> GangClass:
        """Returns the class of a pending gang."""
        return self._gangs[gang.id][1]

    def group_of(self, gang: Gang) -> GangGroup:
        """Returns the group of a pending gang."""
        return self.class_of(gang), gang.script, gang.time_limit_s

    def add(self, gang: Gang) -> None:
        insort(self._gangs_in_group(gang), gang, key=submission_order)

    def remove(self, gang: Gang) -> None:
        """Removes a pending gang. Raises KeyError if it is not pending."""
        gang_group = self.group_of(gang)
        del self._gangs[gang.id]
        queue_pending, rank = self.queues[gang.queue], self._rank_function(gang)
        users = queue_pending.by_rank[rank]
        groups = users[gang.user]
        gangs = groups[gang_group]
        del gangs[bisect_left(gangs, submission_order(gang), key=submission_order)]
        if not gangs:
            del groups[gang_group]
        if not groups:
            del users[gang.user]
        if not users:
            del queue_pending.by_rank[rank]
        self._decrement_class(gang.queue, queue_pending, gang_group[0])

    def _gangs_in_group(self, gang: Gang) -> list[Gang]:
        """Returns the list that the gang belongs to, and counts the gang in it."""
        class_key = gang.roles, gang.topology
        gang_class = self._classes.get(class_key)
        if gang_class is None:
            gang_class = self._classes[class_key] = GangClass(gang)
        self._gangs[gang.id] = gang, gang_class
        gang_class.pending_count += 1
        queue_pending = self.queues.get(gang.queue)
        if queue_pending is None:
            queue_pending = self.queues[gang.queue] = QueuePending()
        queue_pending.class_counts[gang_class] = queue_pending.class_counts.get(gang_class, 0) + 1
        rank = self._rank_function(gang)
        users = queue_pending.by_rank.get(rank)
        if users is None:
            users = queue_pending.by_rank[rank] = {}
        groups = users.get(gang.user)
        if groups is None:
            groups = users[gang.user] = {}
        gang_group = gang_class, gang.script, gang.time_limit_s
        gangs = groups.get(gang_group)
        if gangs is None:
            gangs = groups[gang_group] = []
        return gangs

    def _decrement_class(self, queue: QueueName, queue_pending: QueuePending, gang_class: GangClass) -> None:
        """Decrements the count of a class, and removes the class at zero."""
        gang_class.pending_count -= 1
        queue_pending.class_counts[gang_class] -= 1
        if not queue_pending.class_counts[gang_class]:
            del queue_pending.class_counts[gang_class]
        if not queue_pending.class_counts:
            del self.queues[queue]
        if not gang_class.pending_count:
            del self._classes[gang_class.key]


def submission_order(gang: Gang) -> tuple[datetime, GangId]:
    """Orders gangs first come, first served."""
    return gang.submitted_at, gang.id
