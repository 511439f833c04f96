"""Leader election: the server that holds the lease schedules."""

from __future__ import annotations

from datetime import datetime, timedelta

from hopyard.interfaces.clock import Clock
from hopyard.interfaces.cluster_store import ClusterStore, Lease

LEASE_TTL = timedelta(seconds=15)


class Leadership:
    """The lease as one server knows it.

    It is renewed by use, once a third of its time has passed. An idle server writes nothing, so that a server
    with work takes over.
    """

    def __init__(
        self, cluster: ClusterStore, clock: Clock, *, holder: str, ttl: timedelta = LEASE_TTL
    ) -> None:
        self._cluster, self._clock, self._holder, self._ttl = cluster, clock, holder, ttl
        self._lease: Lease | None = None
        self._renew_at: datetime | None = None

    @property
    def retry_after(self) -> timedelta:
        """When to try again after another server was found to lead."""
        return self._ttl / 3

    @property
    def is_leader(self) -> bool:
        """Whether this server led at its latest check."""
        return self._lease is not None

    async def acquire_epoch(self) -> int | None:
        """Returns the epoch under which this server may decide; None while another server leads."""
        now = self._clock.now()
        if (
            self._lease is None
            or self._renew_at is None
            or not self._renew_at - self._ttl / 3 <= now < self._renew_at
        ):
            self._lease = await self._cluster.acquire_lease(self._holder, now=now, ttl=self._ttl)
            self._renew_at = now + self._ttl / 3
        return None if self._lease is None else self._lease.epoch

    async def release(self) -> None:
        """Releases the lease, so that another server can lead at once."""
        self._lease = None
        await self._cluster.release_lease(self._holder)

    def mark_lost(self) -> None:
        """Drops the lease, because the store refused its epoch."""
        self._lease = None
