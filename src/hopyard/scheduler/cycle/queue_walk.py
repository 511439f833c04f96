"""The order within one queue."""

from __future__ import annotations

from collections.abc import Callable, Set
from datetime import datetime
from heapq import heapify, heappop, heapreplace

from hopyard.domain.gang import Gang
from hopyard.domain.ids import GangId, QueueName
from hopyard.scheduler.cycle.line import Kind, Leaf, Rank, Shape, Waiting
from hopyard.scheduler.fairness.accounts import Accounts

Entry = tuple[datetime, GangId, int, Kind, list[Gang]]


class QueueWalk:
    """The order within one queue. over, full: shapes to pass over."""

    def __init__(
        self,
        queue: QueueName,
        leaf: Leaf,
        accounts: Accounts,
        over_all: set[Shape],
        held: Callable[[QueueName, str, Shape], bool],
    ) -> None:
        self.queue, self._leaf, self._accounts, self._over_all, self._held = (
            queue,
            leaf,
            accounts,
            over_all,
            held,
        )
        self.over: set[Shape] = set()
        self.full: Set[Shape] = frozenset()
        self.over_users: set[tuple[str, Shape]] = set()
        self._closed = False
        self.begin_again()

    def begin_again(self) -> None:
        """From the first, as things are charged by now."""
        self._ranks: list[Rank] = [] if self._closed else sorted(self._leaf.ranks, reverse=True)
        self._users: list[UserEntry] = []
        self._head: Gang | None = None

    def close(self) -> None:
        """Pass over everybody."""
        self._closed = True
        self.begin_again()

    @property
    def priority(self) -> int:
        """The highest that waits."""
        return -min(self._leaf.ranks)[0]

    @property
    def shape(self) -> Shape | None:
        """Of the head as it was last seen."""
        return self._users[0][2].shape if self._head is not None else None

    def passes(self, user: str, shape: Shape) -> bool:
        if (
            shape in self.full
            or shape in self.over
            or shape in self._over_all
            or (user, shape) in self.over_users
        ):
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
        """Users all of whose gangs are passed over are left out: to compare them costs more than to see
        that."""
        key = self._accounts.user_key if len(users) > 1 else _alone
        walks = [(user, _UserWalk(user, kinds, self)) for user, kinds in users.items()]
        found: list[UserEntry] = [
            (key(self.queue, user), user, walk) for user, walk in walks if walk.head() is not None
        ]
        heapify(found)
        return found


class _UserWalk:
    """The order of one user's gangs of one rank."""

    __slots__ = ("_heap", "_kinds", "_leaf", "_user", "over_kinds")

    def __init__(self, user: str, kinds: Waiting, leaf: QueueWalk) -> None:
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


def _alone(_queue: QueueName, _user: str) -> tuple[float, ...]:
    """The key of a user who is compared with nobody."""
    return (0.0,)


UserEntry = tuple[tuple[float, ...], str, _UserWalk]
