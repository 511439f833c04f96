"""Tokens, the signing secret, and what blobs are in use, in SQL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Column, Connection, func, select, union

from hopyard.domain.ids import Digest
from hopyard.errors import Conflict, NotFound
from hopyard.interfaces.access_store import User
from hopyard.stores.sql.codec import from_us, to_us
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.tables import checkpoints, dataset_versions, run_contents, run_datasets, secrets, tokens

_SECRET = select(secrets.c.value).where(secrets.c.name == "signing")
_SECRET_BYTES = 32
_MANIFESTS: tuple[Column[Any], ...] = (
    dataset_versions.c.manifest,
    run_datasets.c.manifest,
    run_contents.c.code,
    run_contents.c.resume_manifest,
    run_contents.c.artifact,
    checkpoints.c.manifest,
)
_BLOBS: tuple[Column[Any], ...] = (run_contents.c.git_diff, run_contents.c.requirements, run_contents.c.lock)


class SqlAccessStore:
    """AccessStore over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_token(self, user: str, token_hash: str, /, *, now: datetime) -> None:
        """Idempotent. Raises Conflict when the token is another user's."""

        await self._database.write(lambda conn: _add_token(conn, user, token_hash, now))

    async def add_user(self, user: str, token_hash: str, /, *, now: datetime) -> None:
        """Raises Conflict when the user has a token already, or the token is another's."""

        def write(conn: Connection) -> None:
            if conn.execute(select(tokens.c.hash).where(tokens.c.user_name == user).limit(1)).scalar() is not None:
                raise Conflict(
                    f"there is a user `{user}`", hints=("a lost token is replaced by removing the user and adding them again",)
                )
            _add_token(conn, user, token_hash, now)

        await self._database.write(write)

    async def user_of(self, token_hash: str, /) -> str | None:
        return await self._database.read(lambda conn: _user_of(conn, token_hash))

    async def users(self) -> Sequence[User]:
        def read(conn: Connection) -> list[User]:
            found = select(tokens.c.user_name, func.min(tokens.c.created_at), func.count()).group_by(tokens.c.user_name)
            return sorted(
                (User(name, from_us(first), count) for name, first, count in conn.execute(found)), key=lambda user: user.name
            )

        return await self._database.read(read)

    async def remove_user(self, user: str, /) -> int:
        """Raises NotFound."""

        def write(conn: Connection) -> int:
            gone = conn.execute(tokens.delete().where(tokens.c.user_name == user)).rowcount
            if not gone:
                raise NotFound(f"there is no user `{user}`", hints=("`hop user ls` lists them",))
            return gone

        return await self._database.write(write)

    async def secret(self) -> bytes:
        found = await self._database.read(_find_secret)
        return found if found is not None else await self._database.write(_make_secret)

    async def manifests_in_use(self) -> Sequence[Digest]:
        return await self._database.read(lambda conn: _distinct(conn, _MANIFESTS))

    async def blobs_in_use(self) -> Sequence[Digest]:
        return await self._database.read(lambda conn: _distinct(conn, _BLOBS))


def _user_of(conn: Connection, token_hash: str) -> str | None:
    return conn.execute(select(tokens.c.user_name).where(tokens.c.hash == token_hash)).scalar()


def _add_token(conn: Connection, user: str, token_hash: str, now: datetime) -> None:
    holder = _user_of(conn, token_hash)
    if holder is None:
        conn.execute(tokens.insert().values(hash=token_hash, user_name=user, created_at=to_us(now)))
    elif holder != user:
        raise Conflict("the token belongs to another user", hints=("make a new one",))


def _find_secret(conn: Connection) -> bytes | None:
    found = conn.execute(_SECRET).scalar()
    return None if found is None else bytes(found)


def _make_secret(conn: Connection) -> bytes:
    found = _find_secret(conn)
    if found is None:  # else another server was first
        found = os.urandom(_SECRET_BYTES)
        conn.execute(secrets.insert().values(name="signing", value=found))
    return found


def _distinct(conn: Connection, columns: Sequence[Column[Any]]) -> list[Digest]:
    """What is in any of the columns, each once, in order."""
    every = union(*(select(column.label("digest")).where(column.is_not(None)) for column in columns)).subquery()
    return [Digest(found) for found in conn.execute(select(every.c.digest).order_by(every.c.digest)).scalars()]
