"""The gangs that wait, grouped so that those of one fate are looked at once."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from datetime import datetime

from hopyard.domain.gang import Gang, Role, Topology
from hopyard.domain.ids import GangId, QueueName

Rank = tuple[int, int]  # minus the priority, then the service class: smaller comes first
Ranking = Callable[[Gang], Rank]


class Shape:
    """What decides where a gang fits: gangs of one shape fit the same places.
    Equal only to itself; one per line and kind.

    example: a gang of this shape. waiting: how many there are.
    """

    __slots__ = ("asks_gpus", "example", "waiting")

    def __init__(self, example: Gang) -> None:
        self.example, self.waiting = example, 0
        self.asks_gpus = any(role.resources.gpus or role.resources.shares_gpu for role in example.roles)

    @property
    def key(self) -> ShapeKey:
        return self.example.roles, self.example.topology


ShapeKey = tuple[tuple[Role, ...], Topology | None]
# of one shape, script and time limit: of one user, they are expected to take alike
Kind = tuple[Shape, str, float | None]
Waiting = dict[Kind, list[Gang]]  # of one rank and user: each list by submission, then id


class Leaf:
    """Those of one queue, by rank, user and kind. shapes: how many of each."""

    __slots__ = ("ranks", "shapes")

    def __init__(self) -> None:
        self.ranks: dict[Rank, dict[str, Waiting]] = {}
        self.shapes: dict[Shape, int] = {}


class Line:
    """All that wait. It costs by what is added and removed, never by how many wait.

    ranking: of a gang in its queue; it must not change.
    """

    def __init__(self, gangs: Iterable[Gang], ranking: Ranking) -> None:
        self.leaves: dict[QueueName, Leaf] = {}
        self._ranking = ranking
        self._shapes: dict[ShapeKey, Shape] = {}
        self._known: dict[GangId, tuple[Gang, Shape]] = {}
        longer: dict[int, list[Gang]] = {}
        for gang in gangs:
            alike = self._alike(gang)
            alike.append(gang)
            if len(alike) == 2:
                longer[id(alike)] = alike
        for alike in longer.values():
            alike.sort(key=order)

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, gang: GangId) -> bool:
        return gang in self._known

    @property
    def shapes(self) -> Iterable[Shape]:
        return self._shapes.values()

    def find(self, gang: GangId) -> Gang | None:
        found = self._known.get(gang)
        return None if found is None else found[0]

    def rank_of(self, gang: Gang) -> Rank:
        """Of any gang of these queues."""
        return self._ranking(gang)

    def shape_of(self, gang: Gang) -> Shape:
        """Of one that waits."""
        return self._known[gang.id][1]

    def kind_of(self, gang: Gang) -> Kind:
        """Of one that waits."""
        return self.shape_of(gang), gang.script, gang.time_limit_s

    def add(self, gang: Gang) -> None:
        insort(self._alike(gang), gang, key=order)

    def remove(self, gang: Gang) -> None:
        """One that waits; raises KeyError where it does not."""
        kind = self.kind_of(gang)
        del self._known[gang.id]
        leaf, rank = self.leaves[gang.queue], self._ranking(gang)
        users = leaf.ranks[rank]
        kinds = users[gang.user]
        alike = kinds[kind]
        del alike[bisect_left(alike, order(gang), key=order)]
        if not alike:
            del kinds[kind]
        if not kinds:
            del users[gang.user]
        if not users:
            del leaf.ranks[rank]
        self._uncount(gang.queue, leaf, kind[0])

    def _alike(self, gang: Gang) -> list[Gang]:
        """The list that the gang belongs to; it is counted as in it."""
        shape_key = gang.roles, gang.topology
        shape = self._shapes.get(shape_key)
        if shape is None:
            shape = self._shapes[shape_key] = Shape(gang)
        self._known[gang.id] = gang, shape
        shape.waiting += 1
        leaf = self.leaves.get(gang.queue)
        if leaf is None:
            leaf = self.leaves[gang.queue] = Leaf()
        leaf.shapes[shape] = leaf.shapes.get(shape, 0) + 1
        rank = self._ranking(gang)
        users = leaf.ranks.get(rank)
        if users is None:
            users = leaf.ranks[rank] = {}
        kinds = users.get(gang.user)
        if kinds is None:
            kinds = users[gang.user] = {}
        kind = shape, gang.script, gang.time_limit_s
        alike = kinds.get(kind)
        if alike is None:
            alike = kinds[kind] = []
        return alike

    def _uncount(self, queue: QueueName, leaf: Leaf, shape: Shape) -> None:
        """One less; what nobody is of any more is forgotten."""
        shape.waiting -= 1
        leaf.shapes[shape] -= 1
        if not leaf.shapes[shape]:
            del leaf.shapes[shape]
        if not leaf.shapes:
            del self.leaves[queue]
        if not shape.waiting:
            del self._shapes[shape.key]


def order(gang: Gang) -> tuple[datetime, GangId]:
    """First come, first served."""
    return gang.submitted_at, gang.id
