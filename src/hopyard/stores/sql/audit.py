"""The audit log, in SQL."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, or_, select, update

from hopyard.domain.audit import AuditFilter, AuditRecord, Outcome
from hopyard.stores.sql.codec import from_us, to_us
from hopyard.stores.sql.database import Database, JoinedWrite
from hopyard.stores.sql.tables import audit

_RESULT_COLUMNS = ("target", "target_id", "outcome", "detail")
_PRUNE_BATCH = 5000  # records removed in one transaction, while other writes wait


class _JoinedRecord:
    """The record of a write that joined another write."""

    def __init__(self, write: JoinedWrite[int]) -> None:
        self._write = write

    @property
    def stored_id(self) -> int | None:
        return self._write.outcome


class SqlAuditStore:
    """AuditStore over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def record(self, entry: AuditRecord, /) -> None:
        await self._database.write_together(_insert, entry, vital=True)

    @contextmanager
    def record_with_change(self, entry: AuditRecord, /) -> Iterator[_JoinedRecord]:
        row = insert(audit).values(**_to_row(entry)).returning(audit.c.id)
        with self._database.join_next_write(lambda conn: int(conn.execute(row).scalar_one())) as write:
            yield _JoinedRecord(write)

    async def update_record(self, stored_id: int, entry: AuditRecord, /) -> None:
        values = {name: value for name, value in _to_row(entry).items() if name in _RESULT_COLUMNS}
        corrected = update(audit).where(audit.c.id == stored_id).values(**values)
        await self._database.write(lambda conn: conn.execute(corrected), vital=True)

    async def list(self, where: AuditFilter, /) -> Sequence[AuditRecord]:
        query = select(audit).order_by(audit.c.id.desc()).limit(max(0, where.limit))
        if where.user is not None:
            query = query.where(audit.c.user_name == where.user)
        if where.action is not None:
            query = query.where(
                or_(
                    audit.c.action == where.action,
                    audit.c.action.startswith(where.action + ".", autoescape=True),
                )
            )
        if where.target is not None:
            query = query.where(or_(audit.c.target == where.target, audit.c.target_id == where.target))
        if where.outcome is not None:
            query = query.where(audit.c.outcome == str(where.outcome))
        if where.since is not None:
            query = query.where(audit.c.at >= to_us(where.since))
        if where.until is not None:
            query = query.where(audit.c.at < to_us(where.until))
        if where.before is not None:
            query = query.where(audit.c.id < where.before)

        def read(conn: Connection) -> list[AuditRecord]:
            return [_to_record(row) for row in conn.execute(query)]

        return await self._database.read(read)

    async def prune(self, before: datetime, /) -> int:
        batch = select(audit.c.id).where(audit.c.at < to_us(before)).order_by(audit.c.id).limit(_PRUNE_BATCH)

        def write(conn: Connection) -> int:
            return conn.execute(delete(audit).where(audit.c.id.in_(batch.scalar_subquery()))).rowcount

        total = 0
        while removed := await self._database.write(write):
            total += removed
        return total


def _insert(conn: Connection, entries: Sequence[AuditRecord]) -> list[None]:
    conn.execute(insert(audit), [_to_row(entry) for entry in entries])
    return [None] * len(entries)


def _to_row(entry: AuditRecord) -> dict[str, Any]:
    return {
        "at": to_us(entry.at),
        "user_name": entry.user,
        "action": entry.action,
        "target": entry.target,
        "target_id": entry.target_id,
        "outcome": str(entry.outcome),
        "origin": entry.origin,
        "token": entry.token,
        "detail": json.dumps(dict(entry.detail), separators=(",", ":")),
    }


def _to_record(row: Row[Any]) -> AuditRecord:
    return AuditRecord(
        at=from_us(row.at),
        user=row.user_name,
        action=row.action,
        target=row.target,
        target_id=row.target_id,
        outcome=Outcome(row.outcome),
        origin=row.origin,
        token=row.token,
        detail=json.loads(row.detail),
        id=row.id,
    )
