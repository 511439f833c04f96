"""The row of the lease of the leader."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from hopyard.errors import NotLeader
from hopyard.interfaces.cluster_store import Lease
from hopyard.stores.sql.codec import from_us
from hopyard.stores.sql.raw_statements import RawStatement
from hopyard.stores.sql.tables import lease

# Locked until the transaction ends, so that no other server acquires the lease between the check and the
# writes under it.
_SELECT_LEASE = RawStatement(select(lease.c.holder, lease.c.epoch, lease.c.expires_at).with_for_update())


def acquire_lease(conn: Connection, holder: str, now: int, until: int) -> Lease | None:
    """See ClusterStore.acquire_lease; times in microseconds."""
    ((current_holder, epoch, expires_at),) = _SELECT_LEASE.fetch_all(conn)
    if current_holder is not None and current_holder != holder and now < expires_at <= until + (until - now):
        return None
    if current_holder != holder:
        epoch += 1
    conn.execute(update(lease).values(holder=holder, epoch=epoch, expires_at=until))
    return Lease(holder, epoch, from_us(until))


def release_lease(conn: Connection, holder: str) -> None:
    """Releases the lease. The next leader gets another epoch, even if it is the same holder."""
    conn.execute(update(lease).where(lease.c.holder == holder).values(holder=None))


def check_epoch(conn: Connection, epoch: int) -> None:
    """Raises NotLeader unless the lease is held under this epoch."""
    ((holder, current_epoch, _),) = _SELECT_LEASE.fetch_all(conn)
    if holder is None or current_epoch != epoch:
        raise NotLeader(
            f"epoch {epoch} is over, the current epoch is {current_epoch}",
            hints=("another server is the leader: nothing was written",),
        )
