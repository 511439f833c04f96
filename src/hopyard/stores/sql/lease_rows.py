"""The row that says who decides."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from hopyard.errors import NotLeader
from hopyard.interfaces.cluster_store import Lease
from hopyard.stores.sql.codec import from_us
from hopyard.stores.sql.raw_statements import RawStatement
from hopyard.stores.sql.tables import lease

# Locked until the transaction ends, so that nobody takes the lease between the look at it and what is written
# under it.
_SELECT_LEASE = RawStatement(select(lease.c.holder, lease.c.epoch, lease.c.expires_at).with_for_update())


def acquire_lease(conn: Connection, holder: str, now: int, until: int) -> Lease | None:
    """See ClusterStore.lead; times in microseconds."""
    ((before, epoch, expires_at),) = _SELECT_LEASE.fetch_all(conn)
    if before is not None and before != holder and now < expires_at <= until + (until - now):
        return None
    if before != holder:
        epoch += 1
    conn.execute(update(lease).values(holder=holder, epoch=epoch, expires_at=until))
    return Lease(holder, epoch, from_us(until))


def release_lease(conn: Connection, holder: str) -> None:
    """The next one to lead has another epoch, also when it is the same holder."""
    conn.execute(update(lease).where(lease.c.holder == holder).values(holder=None))


def check_epoch(conn: Connection, epoch: int) -> None:
    """Raises NotLeader unless somebody leads under this epoch."""
    ((holder, now, _),) = _SELECT_LEASE.fetch_all(conn)
    if holder is None or now != epoch:
        raise NotLeader(
            f"epoch {epoch} is over, it is {now} now", hints=("another server decides: nothing was written",)
        )
