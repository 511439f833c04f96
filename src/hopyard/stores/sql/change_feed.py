"""The log of changes, in SQL. The triggers of `change_triggers` write it."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, delete, func, select

from hopyard.domain.change import Change, ChangeKind, Position, newest_row
from hopyard.interfaces.change_feed import ChangePage
from hopyard.stores.sql.codec import from_us
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.tables import changes

_NEWEST = select(changes.c.seq, changes.c.tag).order_by(changes.c.seq.desc()).limit(1)
_OLDEST = select(func.min(changes.c.seq))
_SELECT = select(
    changes.c.seq,
    changes.c.tag,
    changes.c.at,
    changes.c.kind,
    changes.c.subject,
    changes.c.change,
    changes.c.detail,
    changes.c.frequent,
).order_by(changes.c.seq)


class SqlChangeFeed:
    """ChangeFeed over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def on_commit(self, listener: Callable[[], None], /) -> None:
        self._database.on_commit(listener)

    async def newest(self) -> Position:
        def read(conn: Connection) -> Position:
            seq, tag = conn.execute(_NEWEST).one()
            return Position(seq, seq, tag)

        return await self._database.read(read)

    async def is_complete_after(self, position: Position, /) -> bool:
        def read(conn: Connection) -> bool:
            tag = conn.execute(select(changes.c.tag).where(changes.c.seq == position.last)).scalar()
            return tag == position.tag and conn.execute(_OLDEST).scalar_one() <= position.first

        return await self._database.read(read)

    async def read(self, after: int, /, *, limit: int, frequent: bool | None = None) -> ChangePage:
        query = _SELECT.where(changes.c.seq > after).limit(limit)
        if frequent is not None:
            query = query.where(changes.c.frequent == int(frequent))

        def read(conn: Connection) -> ChangePage:
            newest_seq, newest_tag = conn.execute(_NEWEST).one()
            oldest = conn.execute(_OLDEST).scalar_one()
            rows = [
                Change(seq, tag, from_us(at), ChangeKind(kind), subject, change, detail, bool(is_frequent))
                for seq, tag, at, kind, subject, change, detail, is_frequent in conn.execute(query)
            ]
            seq, tag = (
                newest_row(rows, seq=newest_seq, tag=newest_tag)
                if len(rows) == limit
                else (newest_seq, newest_tag)
            )
            return ChangePage(rows, seq, tag, oldest)

        return await self._database.read(read)

    async def prune(self, keep: int, /) -> None:
        def write(conn: Connection) -> None:
            newest, _ = conn.execute(_NEWEST).one()
            conn.execute(delete(changes).where(changes.c.seq <= newest - keep))

        await self._database.write(write, joinable=False)
