"""Tokens, secrets of users, and what blobs are in use, in SQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from secrets import token_hex
from typing import Any

from sqlalchemy import Column, Connection, Row, func, select, union, update

from hopyard.domain.access import ALL_SCOPES, Scope, Token
from hopyard.domain.ids import Digest
from hopyard.errors import Conflict, NotFound
from hopyard.interfaces.access_store import TOKEN_ID_DIGITS, User
from hopyard.stores.sql.codec import from_us, to_us
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.tables import (
    checkpoints,
    dataset_versions,
    former_users,
    run_contents,
    run_datasets,
    run_numbers,
    secrets,
    tokens,
    user_secrets,
)

_SIGNING_KEY, _SIGNING_TAKEN_KEY, DATABASE_ID_KEY = (
    "signing",
    "signing-taken",
    "database-id",
)  # names in the table of secrets
_SHARED_SECRET_GRACE = timedelta(days=2)
FIRST_TOKEN_NAME = "first"  # the name of the token that a user is made with
MANIFEST_COLUMNS: tuple[Column[Any], ...] = (
    dataset_versions.c.manifest,
    run_datasets.c.manifest,
    run_contents.c.code,
    run_contents.c.resume_manifest,
    run_contents.c.artifact,
    checkpoints.c.manifest,
)
BLOB_COLUMNS: tuple[Column[Any], ...] = (
    run_contents.c.git_diff,
    run_contents.c.requirements,
    run_contents.c.lock,
)


class SqlAccessStore:
    """AccessStore over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_token(
        self,
        user: str,
        token_hash: str,
        /,
        *,
        now: datetime,
        name: str,
        scopes: Collection[Scope] = ALL_SCOPES,
        expires_at: datetime | None = None,
    ) -> Token:
        """Raises Conflict when the user has a token of this name, or the token is there already."""

        def write(conn: Connection) -> Token:
            if (
                conn.execute(_ANY_TOKEN.where(tokens.c.user_name == user, tokens.c.name == name)).scalar()
                is not None
            ):
                hint = f"choose another name, or `hop token rotate {name}`"
                raise Conflict(f"{user} has a token `{name}` already", hints=(hint,))
            return _add_token(
                conn,
                user,
                token_hash,
                name,
                scopes,
                to_us(now),
                None if expires_at is None else to_us(expires_at),
            )

        return await self._database.write(write)

    async def add_user(self, user: str, token_hash: str, /, *, now: datetime, restored: bool = False) -> None:
        """Raises Conflict and NotFound as the protocol says."""

        def write(conn: Connection) -> None:
            if conn.execute(_ANY_TOKEN.where(tokens.c.user_name == user)).scalar() is not None:
                raise Conflict(
                    f"there is a user `{user}`",
                    hints=(
                        f"a lost token is replaced by `hop token rotate {FIRST_TOKEN_NAME} --user {user}`",
                    ),
                )
            like = _case_variant_of(conn, user)
            if like is not None:
                hint = "names that look alike are mistaken for each other: choose another one"
                raise Conflict(
                    f"there is a user `{like}`, whose name differs from `{user}` by case only", hints=(hint,)
                )
            was = (
                conn.execute(select(former_users).where(former_users.c.user_name == user)).first() is not None
            )
            if was and not restored:
                hints = (
                    "choose another name: runs and datasets of the removed user still bear this one",
                    f"is it the same person? `hop user add {user} --returning`",
                )
                raise Conflict(f"user `{user}` was removed", hints=hints)
            if restored and not was:
                raise NotFound(
                    f"no user `{user}` was removed here", hints=(f"`hop user add {user}` makes a new user",)
                )
            _add_token(conn, user, token_hash, FIRST_TOKEN_NAME, ALL_SCOPES, to_us(now), None)

        await self._database.write(write)

    async def find_token(self, token_hash: str, /) -> Token | None:
        def read(conn: Connection) -> Token | None:
            row = conn.execute(select(tokens).where(tokens.c.hash == token_hash)).first()
            return None if row is None else _to_token(row)

        return await self._database.read(read)

    async def list_tokens(self, user: str | None, /) -> Sequence[Token]:
        asked = select(tokens).order_by(tokens.c.user_name, tokens.c.created_at, tokens.c.hash)
        chosen = asked if user is None else asked.where(tokens.c.user_name == user)
        return await self._database.read(lambda conn: [_to_token(row) for row in conn.execute(chosen)])

    async def replace_token(
        self, token: str, token_hash: str, /, *, now: datetime, expires_at: datetime | None
    ) -> Token:
        """Raises NotFound."""

        def write(conn: Connection) -> Token:
            old = _get_token_row(conn, token)
            conn.execute(tokens.delete().where(tokens.c.hash == old.hash))
            expiry = None if expires_at is None else to_us(expires_at)
            return _add_token(
                conn, old.user_name, token_hash, old.name, _parse_scopes(old.scopes), to_us(now), expiry
            )

        return await self._database.write(write)

    async def remove_token(self, token: str, /) -> Token:
        """Raises NotFound."""

        def write(conn: Connection) -> Token:
            old = _get_token_row(conn, token)
            conn.execute(tokens.delete().where(tokens.c.hash == old.hash))
            return _to_token(old)

        return await self._database.write(write)

    async def record_use(self, token_hash: str, /, *, now: datetime) -> None:
        used = update(tokens).where(tokens.c.hash == token_hash).values(used_at=to_us(now))
        await self._database.write(lambda conn: conn.execute(used))

    async def list_users(self) -> Sequence[User]:
        def read(conn: Connection) -> list[User]:
            found = select(tokens.c.user_name, func.min(tokens.c.created_at), func.count()).group_by(
                tokens.c.user_name
            )
            return sorted(
                (User(name, from_us(first), count) for name, first, count in conn.execute(found)),
                key=lambda user: user.name,
            )

        return await self._database.read(read)

    async def remove_user(self, user: str, /) -> int:
        """Raises NotFound."""

        def write(conn: Connection) -> int:
            gone = conn.execute(tokens.delete().where(tokens.c.user_name == user)).rowcount
            if not gone:
                raise NotFound(f"there is no user `{user}`", hints=("list the users with `hop user ls`",))
            conn.execute(user_secrets.delete().where(user_secrets.c.user_name == user))
            conn.execute(former_users.insert().values(user_name=user))
            return gone

        return await self._database.write(write, vital=True)

    async def put_secret(self, user: str, name: str, value: str, /, *, now: datetime) -> None:
        own = (user_secrets.c.user_name == user, user_secrets.c.name == name)

        def write(conn: Connection) -> None:
            conn.execute(user_secrets.delete().where(*own))
            conn.execute(
                user_secrets.insert().values(
                    user_name=user, name=name, value=value.encode(), set_at=to_us(now)
                )
            )

        await self._database.write(write)

    async def secret_names(self, user: str, /) -> Mapping[str, datetime]:
        asked = (
            select(user_secrets.c.name, user_secrets.c.set_at)
            .where(user_secrets.c.user_name == user)
            .order_by(user_secrets.c.name)
        )
        return await self._database.read(lambda conn: {name: from_us(at) for name, at in conn.execute(asked)})

    async def secret_values(self, user: str, names: Collection[str], /) -> Mapping[str, str]:
        asked = select(user_secrets.c.name, user_secrets.c.value).where(user_secrets.c.user_name == user)

        def read(conn: Connection) -> dict[str, str]:
            return {name: bytes(value).decode() for name, value in conn.execute(asked) if name in names}

        return await self._database.read(read)

    async def remove_secret(self, user: str, name: str, /) -> None:
        """Raises NotFound."""

        def write(conn: Connection) -> None:
            if not conn.execute(
                user_secrets.delete().where(user_secrets.c.user_name == user, user_secrets.c.name == name)
            ).rowcount:
                raise NotFound(
                    f"{user} has no secret `{name}`", hints=("list the secrets with `hop secret ls`",)
                )

        await self._database.write(write)

    async def database_id(self) -> str:
        def write(conn: Connection) -> str:
            found = _get_secret(conn, DATABASE_ID_KEY)
            if found is None:
                found = token_hex(8).encode()
                conn.execute(secrets.insert().values(name=DATABASE_ID_KEY, value=found))
            return found.decode()

        return await self._database.write(write, vital=True)

    async def signing_secret(self) -> bytes | None:
        return await self._database.read(lambda conn: _get_secret(conn, _SIGNING_KEY))

    async def remove_signing_secret(self, *, now: datetime) -> None:
        shared = self._database.dialect != "sqlite"

        def write(conn: Connection) -> None:
            if _get_secret(conn, _SIGNING_KEY) is None:
                return
            taken = _get_secret(conn, _SIGNING_TAKEN_KEY)
            if not shared or (taken is not None and int(taken) < to_us(now - _SHARED_SECRET_GRACE)):
                conn.execute(secrets.delete().where(secrets.c.name.in_((_SIGNING_KEY, _SIGNING_TAKEN_KEY))))
            elif taken is None:
                conn.execute(secrets.insert().values(name=_SIGNING_TAKEN_KEY, value=str(to_us(now)).encode()))

        await self._database.write(write)

    async def manifests_in_use(self) -> Sequence[Digest]:
        return await self._database.read(lambda conn: _distinct_digests(conn, MANIFEST_COLUMNS))

    async def blobs_in_use(self) -> Sequence[Digest]:
        return await self._database.read(lambda conn: _distinct_digests(conn, BLOB_COLUMNS))


_ANY_TOKEN = select(tokens.c.hash).limit(1)


def _add_token(
    conn: Connection,
    user: str,
    token_hash: str,
    name: str,
    scopes: Collection[Scope],
    now: int,
    expires_at: int | None,
) -> Token:
    if conn.execute(_ANY_TOKEN.where(tokens.c.hash == token_hash)).scalar() is not None:
        raise Conflict("the token is there already", hints=("make a new one",))
    conn.execute(former_users.delete().where(former_users.c.user_name == user))
    words = ",".join(sorted(scopes))
    values = {
        "hash": token_hash,
        "user_name": user,
        "name": name,
        "scopes": words,
        "created_at": now,
        "expires_at": expires_at,
    }
    conn.execute(tokens.insert().values(**values))
    return _to_token(conn.execute(select(tokens).where(tokens.c.hash == token_hash)).one())


def _get_token_row(conn: Connection, token: str) -> Row[Any]:
    """Raises NotFound."""
    found = conn.execute(
        select(tokens).where(func.substr(tokens.c.hash, 1, TOKEN_ID_DIGITS) == token)
    ).first()
    if found is None:
        raise NotFound(f"there is no token {token}", hints=("list the tokens with `hop token list`",))
    return found


def _to_token(row: Row[Any]) -> Token:
    return Token(
        id=row.hash[:TOKEN_ID_DIGITS],
        user=row.user_name,
        name=row.name,
        scopes=_parse_scopes(row.scopes),
        created_at=from_us(row.created_at),
        expires_at=None if row.expires_at is None else from_us(row.expires_at),
        used_at=None if row.used_at is None else from_us(row.used_at),
    )


def _parse_scopes(words: str) -> frozenset[Scope]:
    return frozenset(Scope(word) for word in words.split(",") if word)


def _case_variant_of(conn: Connection, user: str) -> str | None:
    """A user who has a token, or had one, or had runs, and whose name differs from this one by case only."""
    for column in (tokens.c.user_name, former_users.c.user_name, run_numbers.c.user_name):
        found = conn.execute(
            select(column).where(func.lower(column) == user.lower(), column != user).limit(1)
        ).scalar()
        if found is not None:
            return str(found)
    return None


def _get_secret(conn: Connection, name: str) -> bytes | None:
    found = conn.execute(select(secrets.c.value).where(secrets.c.name == name)).scalar()
    return None if found is None else bytes(found)


def _distinct_digests(conn: Connection, columns: Sequence[Column[Any]]) -> list[Digest]:
    """What is in any of the columns, each once, in order."""
    every = union(
        *(select(column.label("digest")).where(column.is_not(None)) for column in columns)
    ).subquery()
    return [
        Digest(found) for found in conn.execute(select(every.c.digest).order_by(every.c.digest)).scalars()
    ]
