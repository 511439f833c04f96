"""Memory for the bodies of requests and for answers: shared by all, with at most half of what is free for one
user, so that no user starves the rest."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from hopyard.errors import ServerUnavailable

# bodies and answers of this size are not counted: they are many, and connections bound them
_UNLEASED_BYTES = 64 * 1024
_LEASE_STEP_BYTES = 1024 * 1024  # by which a body grows whose size was not announced
MEMORY_TIMEOUT_S = 30.0
GIVE_UP_KEY = "give_up"  # in the state of a request: breaks its connection off, since the client is too slow
CLOSED_KEY = "closed"  # in the state of a request: whether its connection is closed
# of an answer that holds memory, which are to be read within the time for one body
LONG_BODY_BYTES = 16 * 1024 * 1024
_RETRY_AFTER_S = 5.0


class BodyMemory:
    """total_bytes: of all bodies that are being received or used, and of all answers until they are sent."""

    def __init__(self, total_bytes: int, *, timeout_s: float = MEMORY_TIMEOUT_S) -> None:
        self.total_bytes, self._timeout_s = total_bytes, timeout_s
        self.used_bytes = 0
        self._by_user: dict[str, int] = defaultdict(int)
        self._waiters: list[asyncio.Future[None]] = []

    def lease(self, user: str = "") -> MemoryLease:
        return MemoryLease(self, user)

    async def acquire(self, user: str, size: int) -> None:
        """Wait until `size` more bytes may be held for the user.
        Raises ServerUnavailable when that takes too long."""
        if not self._fits(user, size):
            try:
                async with asyncio.timeout(self._timeout_s):
                    while not self._fits(user, size):
                        self._waiters.append(freed := asyncio.get_running_loop().create_future())
                        await freed
            except TimeoutError:
                raise _out_of_memory_error() from None
        self._add(user, size)

    def acquire_nowait(self, user: str, size: int, *, required: bool) -> None:
        """As `take`, for what is in memory already, so it does not wait.
        required: raises ServerUnavailable where it does not fit."""
        if required and not self._fits(user, size):
            raise _out_of_memory_error()
        self._add(user, size)

    def _add(self, user: str, size: int) -> None:
        self.used_bytes += size
        self._by_user[user] += size

    def _fits(self, user: str, size: int) -> bool:
        """One body fits always where nothing else is held, or it could never be sent. A user who holds some
        gets more only up to half of what other users leave, so that however many users there are, some is
        free for the next one."""
        mine = self._by_user.get(user, 0)
        others = self.used_bytes - mine
        return (not self.used_bytes or self.used_bytes + size <= self.total_bytes) and (
            not mine or mine + size <= (self.total_bytes - others) // 2
        )

    def release(self, user: str, size: int) -> None:
        self.used_bytes -= size
        self._by_user[user] -= size
        if not self._by_user[user]:
            del self._by_user[user]
        waiting, self._waiters = self._waiters, []
        for one in waiting:
            if not one.done():
                one.set_result(None)


def _out_of_memory_error() -> ServerUnavailable:
    message = "the memory for uploads and unread responses is full"
    return ServerUnavailable(message, hints=("try again in a while",), retry_after_s=_RETRY_AFTER_S)


class MemoryLease:
    """What one request and its answer hold of the memory, until `release`.
    user: set before anything is held."""

    __slots__ = ("_memory", "held_bytes", "user")

    def __init__(self, memory: BodyMemory, user: str) -> None:
        self._memory, self.user, self.held_bytes = memory, user, 0

    async def announce_size(self, size: int) -> None:
        """The body will have this size."""
        if size > _UNLEASED_BYTES:
            await self._resize(size)

    async def add_received(self, size: int) -> None:
        """So many bytes are here: more memory is needed where they were not announced."""
        if size > max(self.held_bytes, _UNLEASED_BYTES):
            await self._resize(-(-size // _LEASE_STEP_BYTES) * _LEASE_STEP_BYTES - self.held_bytes)

    async def reserve_response(self, size: int) -> None:
        """An answer of up to this size is read next. Raises ServerUnavailable."""
        if size > self.held_bytes:
            await self._resize(size - self.held_bytes)

    def set_response_size(self, size: int, *, required: bool) -> None:
        """The body is used up, and the answer has this size; it is held until it is sent. required: raises
        ServerUnavailable where there is no memory for it. A change that was made is answered in any case."""
        wanted = size if size > _UNLEASED_BYTES else 0
        if wanted > self.held_bytes:
            self._memory.acquire_nowait(self.user, wanted - self.held_bytes, required=required)
        elif wanted < self.held_bytes:
            self._memory.release(self.user, self.held_bytes - wanted)
        self.held_bytes = wanted

    async def _resize(self, size: int) -> None:
        await self._memory.acquire(self.user, size)
        self.held_bytes += size

    def release(self) -> None:
        if self.held_bytes:
            self._memory.release(self.user, self.held_bytes)
            self.held_bytes = 0
