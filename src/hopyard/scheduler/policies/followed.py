"""What a policy to compare with remembers between turns, kept up by what changed."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime
from heapq import heapify, heappop, heapreplace
from typing import Generic, TypeVar

from hopyard.domain.cluster import Running, Snapshot
from hopyard.domain.gang import Gang, Placement, Role, Topology
from hopyard.domain.ids import GangId, NodeId
from hopyard.scheduler.cycle.changes import changed_keys, difference
from hopyard.scheduler.fairness.accounts import Accounts
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.fit import never_fits
from hopyard.scheduler.placement.fitting import Fitting, Shape
from hopyard.scheduler.placement.free import Free
from hopyard.scheduler.placement.ground import Ground

K = TypeVar("K", bound=Hashable)
Order = tuple[int, datetime, GangId]
ShapeKey = tuple[tuple[Role, ...], Topology | None]


def order(gang: Gang) -> Order:
    """Priority, then first come, first served."""
    return -gang.priority, gang.submitted_at, gang.id


def shape_of(gang: Gang) -> ShapeKey:
    """Gangs of one shape fit in the same places."""
    return gang.roles, gang.topology


class Followed(Generic[K]):
    """Of the newest snapshot that it was told; the first one has no version before it.

    capacity, accounts: what is free and used now. waiting: who waits, in groups, each in order. running: who
    holds resources. grew: whether something may be free, or allowed, that was not in the snapshot before.
    """

    def __init__(self, group: Callable[[Gang], K]) -> None:
        """group: of a gang that waits; it must not change while it does."""
        self._group = group
        self._snapshot: Snapshot | None = None
        self._hopeless: dict[ShapeKey, str | None] = {}
        self._able: dict[tuple[Role, ...], frozenset[NodeId]] = {}
        self.waiting: dict[K, list[Gang]] = {}
        self.running: dict[GangId, Running] = {}
        self.grew = True

    def follow(self, snapshot: Snapshot) -> None:
        """Take in what is different in this snapshot."""
        before, self._snapshot = self._snapshot, snapshot
        gone, come = difference(() if before is None else before.pending, snapshot.pending)
        for gang in gone:
            self._leave(gang)
        for gang in come:
            insort(self.waiting.setdefault(self._group(gang), []), gang, key=order)
        ended, begun = difference(() if before is None else before.running, snapshot.running)
        anew = before is None or snapshot.queues != before.queues or _differ(before, snapshot)
        self.grew = anew
        for running in ended:
            del self.running[running.gang.id]
        for running in begun:
            self.running[running.gang.id] = running
        if anew:
            self._hopeless.clear()
            self._able.clear()
            self._open = Free.whole(Ground(node for node in snapshot.nodes.values() if node.open))
            self.capacity = Capacity.of(
                snapshot.nodes.values(), (running.placement for running in snapshot.running)
            )
            self.accounts = Accounts.of(
                snapshot.queues, snapshot.nodes.values(), snapshot.running, {}, snapshot.now
            )
        else:
            self._move(ended, begun)

    def hopeless(self, gang: Gang) -> str | None:
        """Why it never fits, or None."""
        shape = shape_of(gang)
        if shape not in self._hopeless:
            assert self._snapshot is not None
            self._hopeless[shape] = never_fits(gang, self._snapshot.nodes.values())
        return self._hopeless[shape]

    @property
    def open_nodes(self) -> int:
        """How many nodes something may start on."""
        return len(self._open.ground.nodes)

    def able(self, gang: Gang) -> frozenset[NodeId]:
        """The open nodes that could hold at least one of its replicas if nothing ran on them."""
        if gang.roles not in self._able:
            rooms = [
                Fitting(self._open.ground, Shape(role.resources, role.where)).fits(self._open)
                for role in gang.roles
            ]
            nodes = self._open.ground.nodes
            self._able[gang.roles] = frozenset(
                node.id for row, node in enumerate(nodes) if any(room[row] for room in rooms)
            )
        return self._able[gang.roles]

    def _leave(self, gang: Gang) -> None:
        group = self._group(gang)
        alike = self.waiting[group]
        del alike[bisect_left(alike, order(gang), key=order)]
        if not alike:
            del self.waiting[group]

    def _move(self, ended: Iterable[Running], begun: Iterable[Running]) -> None:
        """What was held and is not, and the other way round; news of an attempt alone moves nothing."""
        gone = {running.gang.id: running.placement for running in ended}
        for running in begun:
            if gone.get(running.gang.id) == running.placement:
                del gone[running.gang.id]
            else:
                self.capacity.take(running.placement)
                self.accounts.charge(running.placement)
        for placement in gone.values():
            self.capacity.give_back(placement)
            self.accounts.credit(placement)
            self.grew = True


def _differ(before: Snapshot, after: Snapshot) -> bool:
    return any(
        before.nodes.get(name) != after.nodes.get(name) for name in changed_keys(before.nodes, after.nodes)
    )


def in_order(groups: Mapping[K, Sequence[Gang]], over: Set[K]) -> Iterator[tuple[K, Gang]]:
    """The gangs of all groups in one order, but no more of a group once it is in `over`, which may grow
    meanwhile."""
    heap = [(order(gangs[0]), 0, gangs, group) for group, gangs in groups.items() if group not in over]
    heapify(heap)
    while heap:
        _, at, gangs, group = heap[0]
        if group not in over:
            yield group, gangs[at]
        if group in over or at + 1 == len(gangs):
            heappop(heap)
        else:
            heapreplace(heap, (order(gangs[at + 1]), at + 1, gangs, group))


class Tentative:
    """What is free and used while a plan is made. score: the rule by which nodes are chosen."""

    def __init__(self, known: Followed[K], score: str) -> None:
        self.capacity, self.accounts, self._score = known.capacity.copy(), known.accounts.copy(), score
        self.placed: list[Placement] = []

    def find(self, gang: Gang) -> Placement | None:
        """A place for a gang that no limit refuses; nothing is taken."""
        return self.capacity.place_largest(self.accounts.sizes(gang), score=self._score)

    def start(self, gang: Gang) -> Placement | None:
        """Place it if there is room."""
        found = self.find(gang)
        if found is not None:
            self.capacity.take(found)
            self.accounts.charge(found)
            self.placed.append(found)
        return found
