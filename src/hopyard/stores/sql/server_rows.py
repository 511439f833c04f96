"""Rows of servers that share the database."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, insert, select, update
from sqlalchemy import delete as sql_delete

from hopyard.domain.cluster import ServerRecord
from hopyard.stores.sql.codec import from_us, to_us
from hopyard.stores.sql.tables import servers


def write_server(conn: Connection, server: ServerRecord) -> None:
    values = {"place": server.place, "seen_at": to_us(server.seen_at), "url": server.url, "key": server.key}
    if not conn.execute(update(servers).where(servers.c.engine == server.engine).values(values)).rowcount:
        conn.execute(insert(servers).values(engine=server.engine, **values))


def list_servers(conn: Connection) -> Sequence[ServerRecord]:
    rows = conn.execute(
        select(servers.c.engine, servers.c.place, servers.c.seen_at, servers.c.url, servers.c.key).order_by(
            servers.c.engine
        )
    )
    return [
        ServerRecord(engine, place, from_us(seen_at), url, key) for engine, place, seen_at, url, key in rows
    ]


def delete_server(conn: Connection, engine: str) -> None:
    conn.execute(sql_delete(servers).where(servers.c.engine == engine))
