"""The order of pending gangs within one queue."""

from __future__ import annotations

from collections.abc import Callable, Set
from datetime import datetime
from heapq import heapify, heappop, heapreplace

from hopyard.domain.gang import Gang
from hopyard.domain.ids import GangId, QueueName
from hopyard.scheduler.cycle.pending_gangs import GangClass, GangGroup, PendingByGroup, QueuePending, Rank
from hopyard.scheduler.quota.quota_usage import QuotaUsage

GangEntry = tuple[datetime, GangId, int, GangGroup, list[Gang]]


class QueueIterator:
    """The order of pending gangs within one queue. skipped, no_capacity: shapes to skip."""

    def __init__(
        self,
        queue: QueueName,
        pending: QueuePending,
        quota_usage: QuotaUsage,
        skipped_everywhere: set[GangClass],
        is_held_back: Callable[[QueueName, str, GangClass], bool],
    ) -> None:
        self.queue, self._pending, self._quota_usage, self._skipped_everywhere, self._is_held_back = (
            queue,
            pending,
            quota_usage,
            skipped_everywhere,
            is_held_back,
        )
        self.skipped: set[GangClass] = set()
        self.no_capacity: Set[GangClass] = frozenset()
        self.skipped_users: set[tuple[str, GangClass]] = set()
        self._closed = False
        self.restart()

    def restart(self) -> None:
        """Starts again from the first gang, with the current usage."""
        self._ranks: list[Rank] = [] if self._closed else sorted(self._pending.by_rank, reverse=True)
        self._users: list[UserEntry] = []
        self._head: Gang | None = None

    def close(self) -> None:
        """Skips all gangs."""
        self._closed = True
        self.restart()

    @property
    def priority(self) -> int:
        """Returns the highest pending priority."""
        return -min(self._pending.by_rank)[0]

    @property
    def head_class(self) -> GangClass | None:
        """Returns the class of the last head."""
        return self._users[0][2].head_class if self._head is not None else None

    def skips(self, user: str, gang_class: GangClass) -> bool:
        if (
            gang_class in self.no_capacity
            or gang_class in self.skipped
            or gang_class in self._skipped_everywhere
            or (user, gang_class) in self.skipped_users
        ):
            return True
        return self._is_held_back(self.queue, user, gang_class)

    def head(self) -> Gang | None:
        if self._head is None or self.is_stale():
            self._head = self._find_head()
        return self._head

    def is_stale(self) -> bool:
        """Returns whether the head has been skipped since it was found."""
        return self._head is not None and self._users[0][2].head() is not self._head

    def advance(self) -> None:
        _, user, user_iterator = self._users[0]
        user_iterator.advance()
        self._head = None
        heapreplace(self._users, (self._quota_usage.user_key(self.queue, user), user, user_iterator))

    def skip_group(self, gang_group: GangGroup) -> None:
        self._users[0][2].skipped_groups.add(gang_group)
        self._head = None

    def skip_user(self, user: str, gang_class: GangClass) -> None:
        self.skipped_users.add((user, gang_class))
        self._head = None

    def _find_head(self) -> Gang | None:
        while True:
            while self._users:
                head = self._users[0][2].head()
                if head is not None:
                    return head
                heappop(self._users)
            if not self._ranks:
                return None
            self._users = self._build_user_heap(self._pending.by_rank[self._ranks.pop()])

    def _build_user_heap(self, users: dict[str, PendingByGroup]) -> list[UserEntry]:
        """Leaves out users whose gangs are all skipped, because comparing users costs more than this
        check."""
        key = self._quota_usage.user_key if len(users) > 1 else _no_user_key
        user_iterators = [(user, _UserIterator(user, groups, self)) for user, groups in users.items()]
        heap: list[UserEntry] = [
            (key(self.queue, user), user, user_iterator)
            for user, user_iterator in user_iterators
            if user_iterator.head() is not None
        ]
        heapify(heap)
        return heap


class _UserIterator:
    """The order of one user's gangs of one rank."""

    __slots__ = ("_groups", "_heap", "_queue_iterator", "_user", "skipped_groups")

    def __init__(self, user: str, groups: PendingByGroup, queue_iterator: QueueIterator) -> None:
        self._user, self._groups, self._queue_iterator = user, groups, queue_iterator
        self._heap: list[GangEntry] | None = None
        self.skipped_groups: set[GangGroup] = set()

    @property
    def head_class(self) -> GangClass | None:
        return self._heap[0][3][0] if self._heap else None

    def head(self) -> Gang | None:
        heap = self._build_heap() if self._heap is None else self._heap
        while heap:
            _, _, index, gang_group, gangs = heap[0]
            if not self._skips(gang_group):
                return gangs[index]
            heappop(heap)
        return None

    def advance(self) -> None:
        assert self._heap
        _, _, index, gang_group, gangs = self._heap[0]
        if index + 1 < len(gangs):
            heapreplace(self._heap, _gang_entry(index + 1, gang_group, gangs))
        else:
            heappop(self._heap)

    def _build_heap(self) -> list[GangEntry]:
        self._heap = [
            _gang_entry(0, gang_group, gangs)
            for gang_group, gangs in self._groups.items()
            if not self._skips(gang_group)
        ]
        heapify(self._heap)
        return self._heap

    def _skips(self, gang_group: GangGroup) -> bool:
        return gang_group in self.skipped_groups or self._queue_iterator.skips(self._user, gang_group[0])


def _gang_entry(index: int, gang_group: GangGroup, gangs: list[Gang]) -> GangEntry:
    gang = gangs[index]
    return gang.submitted_at, gang.id, index, gang_group, gangs


def _no_user_key(_queue: QueueName, _user: str) -> tuple[float, ...]:
    """Returns the key of a user who is the only one in the queue."""
    return (0.0,)


UserEntry = tuple[tuple[float, ...], str, _UserIterator]
