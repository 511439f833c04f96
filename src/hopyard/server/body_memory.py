"""Memory for request bodies and responses, shared by all users. A user gets at most half of the memory that
other users leave free, so that no user starves the others."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from hopyard.errors import ServerUnavailable

# bodies and responses up to this size are not counted: the limit of connections bounds them
_UNLEASED_BYTES = 64 * 1024
_LEASE_STEP_BYTES = 1024 * 1024  # growth of a body of unknown size
MEMORY_TIMEOUT_S = 30.0
ABORT_KEY = "abort"  # in the state of a request: aborts its connection
GIVE_UP_KEY = "give_up"  # in the state of a request: aborts its connection, since the client is too slow
CLOSED_KEY = "closed"  # in the state of a request: whether its connection is closed
# a client must read so many bytes of a response that uses memory within the time for one body
LONG_BODY_BYTES = 16 * 1024 * 1024
_RETRY_AFTER_S = 5.0


class BodyMemory:
    """Grants memory leases. total_bytes: of all bodies in use, and of all responses that are not sent yet."""

    def __init__(self, total_bytes: int, *, timeout_s: float = MEMORY_TIMEOUT_S) -> None:
        self.total_bytes, self._timeout_s = total_bytes, timeout_s
        self.used_bytes = 0
        self._by_user: dict[str, int] = defaultdict(int)
        self._waiters: list[asyncio.Future[None]] = []

    def lease(self, user: str = "") -> MemoryLease:
        return MemoryLease(self, user)

    async def acquire(self, user: str, size: int) -> None:
        """Waits until `size` more bytes are available to the user. Raises ServerUnavailable when that takes
        too long."""
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
        """As `acquire`, without waiting, for data that is in memory already. required: raises
        ServerUnavailable if it does not fit."""
        if required and not self._fits(user, size):
            raise _out_of_memory_error()
        self._add(user, size)

    def _add(self, user: str, size: int) -> None:
        self.used_bytes += size
        self._by_user[user] += size

    def _fits(self, user: str, size: int) -> bool:
        """Returns whether the user may get `size` more bytes.

        While no memory is in use, a body of any size fits, since it could never be sent otherwise. A user who
        already uses memory gets at most half of what other users leave free. Some memory is therefore free
        for the next user, for any number of users.
        """
        user_bytes = self._by_user.get(user, 0)
        other_bytes = self.used_bytes - user_bytes
        return (not self.used_bytes or self.used_bytes + size <= self.total_bytes) and (
            not user_bytes or user_bytes + size <= (self.total_bytes - other_bytes) // 2
        )

    def release(self, user: str, size: int) -> None:
        self.used_bytes -= size
        self._by_user[user] -= size
        if not self._by_user[user]:
            del self._by_user[user]
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _out_of_memory_error() -> ServerUnavailable:
    message = "the memory for uploads and unread responses is full"
    return ServerUnavailable(message, hints=("retry later",), retry_after_s=_RETRY_AFTER_S)


class MemoryLease:
    """The memory that one request and its response use, until `release`. user: set before any memory is
    acquired."""

    __slots__ = ("_memory", "held_bytes", "user")

    def __init__(self, memory: BodyMemory, user: str) -> None:
        self._memory, self.user, self.held_bytes = memory, user, 0

    async def announce_size(self, size: int) -> None:
        """Acquires memory for a body of this size."""
        if size > _UNLEASED_BYTES:
            await self._resize(size)

    async def add_received(self, size: int) -> None:
        """Acquires more memory when the received bytes exceed the announced size."""
        if size > max(self.held_bytes, _UNLEASED_BYTES):
            await self._resize(-(-size // _LEASE_STEP_BYTES) * _LEASE_STEP_BYTES - self.held_bytes)

    async def reserve_response(self, size: int) -> None:
        """Acquires memory for a response of up to this size. Raises ServerUnavailable."""
        if size > self.held_bytes:
            await self._resize(size - self.held_bytes)

    def set_response_size(self, size: int, *, required: bool) -> None:
        """Replaces the lease of the body by that of a response of this size, until it is sent.

        required: raises ServerUnavailable if there is no memory. The response to a completed change is sent
        in any case.
        """
        leased_bytes = size if size > _UNLEASED_BYTES else 0
        if leased_bytes > self.held_bytes:
            self._memory.acquire_nowait(self.user, leased_bytes - self.held_bytes, required=required)
        elif leased_bytes < self.held_bytes:
            self._memory.release(self.user, self.held_bytes - leased_bytes)
        self.held_bytes = leased_bytes

    async def _resize(self, size: int) -> None:
        await self._memory.acquire(self.user, size)
        self.held_bytes += size

    def release(self) -> None:
        if self.held_bytes:
            self._memory.release(self.user, self.held_bytes)
            self.held_bytes = 0
