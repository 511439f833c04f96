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
# of one shape, script and time limit: of one user, they are expected to take alike
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
        longer: dict[int, list[Gang]] = {}
        for gang in gangs:
            alike = self._gangs_in_group(gang)
            alike.append(gang)
            if len(alike) == 2:
                longer[id(alike)] = alike
        for alike in longer.values():
            alike.sort(key=submission_order)

    def __len__(self) -> int:
        return len(self._gangs)

    def __contains__(self, gang: GangId) -> bool:
        return gang in self._gangs

    @property
    def classes(self) -> Iterable[GangClass]:
        return self._classes.values()

    def find(self, gang: GangId) -> Gang | None:
        found = self._gangs.get(gang)
        return None if found is None else found[0]

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
        kind = self.group_of(gang)
        del self._gangs[gang.id]
        leaf, rank = self.queues[gang.queue], self._rank_function(gang)
        users = leaf.by_rank[rank]
        kinds = users[gang.user]
        alike = kinds[kind]
        del alike[bisect_left(alike, submission_order(gang), key=submission_order)]
        if not alike:
            del kinds[kind]
        if not kinds:
            del users[gang.user]
        if not users:
            del leaf.by_rank[rank]
        self._decrement_class(gang.queue, leaf, kind[0])

    def _gangs_in_group(self, gang: Gang) -> list[Gang]:
        """Returns the list that the gang belongs to, and counts the gang in it."""
        shape_key = gang.roles, gang.topology
        shape = self._classes.get(shape_key)
        if shape is None:
            shape = self._classes[shape_key] = GangClass(gang)
        self._gangs[gang.id] = gang, shape
        shape.pending_count += 1
        leaf = self.queues.get(gang.queue)
        if leaf is None:
            leaf = self.queues[gang.queue] = QueuePending()
        leaf.class_counts[shape] = leaf.class_counts.get(shape, 0) + 1
        rank = self._rank_function(gang)
        users = leaf.by_rank.get(rank)
        if users is None:
            users = leaf.by_rank[rank] = {}
        kinds = users.get(gang.user)
        if kinds is None:
            kinds = users[gang.user] = {}
        kind = shape, gang.script, gang.time_limit_s
        alike = kinds.get(kind)
        if alike is None:
            alike = kinds[kind] = []
        return alike

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
