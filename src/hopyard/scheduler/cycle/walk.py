"""The order in which one turn looks at the gangs that wait."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Set
from datetime import datetime
from heapq import heapify, heappop, heappush, heapreplace

from hopyard.domain.gang import Gang
from hopyard.domain.ids import GangId, QueueName
from hopyard.scheduler.cycle.line import Kind, Leaf, Line, Rank, Shape, Waiting
from hopyard.scheduler.fairness.accounts import Accounts

QueueKey = tuple[tuple[int, float, QueueName], ...]
Entry = tuple[datetime, GangId, int, Kind, list[Gang]]


class Walk:
    """Between queues by `Accounts.queue_key`, which looks from the top of the tree down; in a queue by priority, service class,
    `Accounts.user_key`, submission, id. Keys follow what is charged during the turn, and charging only ever makes them larger.

    What is passed over is so for the rest of the turn: whoever was refused once would be again, since room only shrinks.
    """

    def __init__(
        self, line: Line, queues: Iterable[QueueName], accounts: Accounts, held: Callable[[QueueName, str, Shape], bool]
    ) -> None:
        """held: whether those of this queue, user and shape are passed over for now, which may become so during the turn."""
        self._accounts = accounts
        self._over: set[Shape] = set()
        self._leaves = {
            queue: _LeafWalk(queue, line.leaves[queue], accounts, self._over, held) for queue in queues if queue in line.leaves
        }
        self._full: Set[Shape] = frozenset()
        self._impatient: list[_LeafWalk] | None = None
        self._heap: list[tuple[QueueKey, QueueName]] = []
        for queue in self._leaves:
            self._push(queue)

    def head(self) -> Gang | None:
        """Who is next; the same one until something is said of it."""
        while self._heap:
            key, queue = self._heap[0]
            leaf = self._leaves[queue]
            head = leaf.head()
            if head is None or leaf.key != key:  # it was pushed again since, or has nobody left
                heappop(self._heap)
                continue
            now = self._accounts.queue_key(queue, head)
            if now == key:
                return head
            leaf.key = now
            heapreplace(self._heap, (now, queue))
        return None

    def step(self, gang: Gang) -> None:
        """The head was decided on its own, unless it has been passed over since; accounts may have changed."""
        leaf = self._leaves[gang.queue]
        if leaf.head() is gang:
            leaf.step()
        self._push(gang.queue)

    def pass_kind(self, gang: Gang, kind: Kind) -> None:
        """Look no more at those of this kind of its user in its queue, as long as they are of its rank."""
        leaf = self._leaves[gang.queue]
        if leaf.head() is gang:
            leaf.pass_kind(kind)
        self._push(gang.queue)

    def pass_user(self, gang: Gang, shape: Shape) -> None:
        """Look no more at those of this shape of its user in its queue."""
        self._leaves[gang.queue].pass_user(gang.user, shape)
        self._push(gang.queue)

    def pass_queue(self, queue: QueueName, shape: Shape) -> None:
        """Look no more at those of this shape in this queue."""
        self._leaves[queue].over.add(shape)
        self._push(queue)

    def pass_all(self, shapes: Iterable[Shape]) -> None:
        """Look no more at those of these shapes in any queue."""
        self._over.update(shapes)
        for queue, leaf in self._leaves.items():
            if leaf.key is not None and leaf.stale():
                self._push(queue)

    def begin_passing(self, shapes: Set[Shape], patient: Callable[[list[tuple[QueueName, int]]], Collection[QueueName]]) -> None:
        """From now on, look no more at those of these shapes, in any queue but those that are patient. The set may grow: see
        `grown`. patient: of all queues with the highest priority that waits in each."""
        chosen = patient([(queue, leaf.priority) for queue, leaf in self._leaves.items()])
        self._full, self._impatient = shapes, []
        for queue in self._leaves.keys() - {*chosen}:
            self._hurry(queue)

    def patient(self, queue: QueueName) -> bool:
        return self._impatient is None or self._leaves[queue] not in self._impatient

    def grown(self, shape: Shape) -> None:
        """The set of shapes to pass over grew by this one."""
        for leaf in self._impatient or ():
            if leaf.key is not None and leaf.shape is shape:
                self._push(leaf.queue)

    def hurry(self) -> None:
        """Nobody is patient any more."""
        assert self._impatient is not None
        for queue in self._leaves.keys() - {leaf.queue for leaf in self._impatient}:
            self._hurry(queue)

    def _hurry(self, queue: QueueName) -> None:
        assert self._impatient is not None
        leaf = self._leaves[queue]
        leaf.full = self._full
        self._impatient.append(leaf)
        if leaf.key is not None and leaf.stale():
            self._push(queue)

    def heads(self) -> list[Gang]:
        """Who is next in each queue."""
        return [head for leaf in self._leaves.values() if (head := leaf.head()) is not None]

    def _push(self, queue: QueueName) -> None:
        leaf = self._leaves[queue]
        head = leaf.head()
        leaf.key = None if head is None else self._accounts.queue_key(queue, head)
        if leaf.key is not None:
            heappush(self._heap, (leaf.key, queue))


class _LeafWalk:
    """The order within one queue. over, full: shapes to pass over."""

    def __init__(
        self,
        queue: QueueName,
        leaf: Leaf,
        accounts: Accounts,
        over_all: set[Shape],
        held: Callable[[QueueName, str, Shape], bool],
    ) -> None:
        self.queue, self._leaf, self._accounts, self._over_all, self._held = queue, leaf, accounts, over_all, held
        self.over: set[Shape] = set()
        self.full: Set[Shape] = frozenset()
        self.over_users: set[tuple[str, Shape]] = set()
        self.key: QueueKey | None = None
        self._ranks: list[Rank] = sorted(leaf.ranks, reverse=True)
        self._users: list[UserEntry] = []
        self._head: Gang | None = None

    @property
    def priority(self) -> int:
        """The highest that waits."""
        return -min(self._leaf.ranks)[0]

    @property
    def shape(self) -> Shape | None:
        """Of the head as it was last seen."""
        return self._users[0][2].shape if self._head is not None else None

    def passes(self, user: str, shape: Shape) -> bool:
        if shape in self.full or shape in self.over or shape in self._over_all or (user, shape) in self.over_users:
            return True
        return self._held(self.queue, user, shape)

    def head(self) -> Gang | None:
        if self._head is None or self.stale():
            self._head = self._find()
        return self._head

    def stale(self) -> bool:
        """Whether what was said since it was found passes over the head."""
        return self._head is not None and self._users[0][2].head() is not self._head

    def step(self) -> None:
        _, user, walk = self._users[0]
        walk.step()
        self._head = None
        heapreplace(self._users, (self._accounts.user_key(self.queue, user), user, walk))

    def pass_kind(self, kind: Kind) -> None:
        self._users[0][2].over_kinds.add(kind)
        self._head = None

    def pass_user(self, user: str, shape: Shape) -> None:
        self.over_users.add((user, shape))
        self._head = None

    def _find(self) -> Gang | None:
        while True:
            while self._users:
                head = self._users[0][2].head()
                if head is not None:
                    return head
                heappop(self._users)
            if not self._ranks:
                return None
            self._users = self._begin(self._leaf.ranks[self._ranks.pop()])

    def _begin(self, users: dict[str, Waiting]) -> list[UserEntry]:
        key = self._accounts.user_key
        found: list[UserEntry] = [(key(self.queue, user), user, _UserWalk(user, kinds, self)) for user, kinds in users.items()]
        heapify(found)
        return found


class _UserWalk:
    """The order of one user's gangs of one rank."""

    __slots__ = ("_heap", "_kinds", "_leaf", "_user", "over_kinds")

    def __init__(self, user: str, kinds: Waiting, leaf: _LeafWalk) -> None:
        self._user, self._kinds, self._leaf = user, kinds, leaf
        self._heap: list[Entry] | None = None
        self.over_kinds: set[Kind] = set()

    @property
    def shape(self) -> Shape | None:
        return self._heap[0][3][0] if self._heap else None

    def head(self) -> Gang | None:
        heap = self._begin() if self._heap is None else self._heap
        while heap:
            _, _, at, kind, alike = heap[0]
            if not self._passes(kind):
                return alike[at]
            heappop(heap)
        return None

    def step(self) -> None:
        assert self._heap
        _, _, at, kind, alike = self._heap[0]
        if at + 1 < len(alike):
            heapreplace(self._heap, _entry(at + 1, kind, alike))
        else:
            heappop(self._heap)

    def _begin(self) -> list[Entry]:
        self._heap = [_entry(0, kind, alike) for kind, alike in self._kinds.items() if not self._passes(kind)]
        heapify(self._heap)
        return self._heap

    def _passes(self, kind: Kind) -> bool:
        return kind in self.over_kinds or self._leaf.passes(self._user, kind[0])


def _entry(at: int, kind: Kind, alike: list[Gang]) -> Entry:
    gang = alike[at]
    return gang.submitted_at, gang.id, at, kind, alike


UserEntry = tuple[tuple[float, ...], str, _UserWalk]
