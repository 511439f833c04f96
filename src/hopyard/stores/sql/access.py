"""Tokens, secrets of users, and the blobs in use, in SQL."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from secrets import token_hex
from typing import Any

from sqlalchemy import Column, Connection, Row, func, select, union, update

from hopyard.domain.access import ALL_SCOPES, Scope, Token
from hopyard.domain.ids import Digest
from hopyard.domain.report import ReportAccess
from hopyard.errors import Conflict, NotFound
from hopyard.interfaces.access_store import TOKEN_ID_DIGITS, User
from hopyard.stores.sql.codec import from_us, to_us
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.tables import (
    checkpoints,
    dataset_versions,
    former_users,
    inbox_reads,
    reports,
    run_contents,
    run_datasets,
    run_numbers,
    run_stars,
    saved_views,
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
FIRST_TOKEN_NAME = "first"  # the name of a user's initial token
MANIFEST_COLUMNS: tuple[Column[Any], ...] = (
    dataset_versions.c.manifest,
    run_datasets.c.manifest,
    run_contents.c.code,
    run_contents.c.resume_manifest,
    run_contents.c.artifact,
    run_contents.c.run_folder,
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
        """Adds a token. Raises Conflict if the user has a token of this name, or if the token exists
        already."""

        def write(conn: Connection) -> Token:
            if (
                conn.execute(_ANY_TOKEN.where(tokens.c.user_name == user, tokens.c.name == name)).scalar()
                is not None
            ):
                hint = f"choose another name, or `hop token rotate {name}`"
                raise Conflict(f"user `{user}` already has a token `{name}`", hints=(hint,))
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
        """Adds a user. Raises Conflict and NotFound as the protocol."""

        def write(conn: Connection) -> None:
            if conn.execute(_ANY_TOKEN.where(tokens.c.user_name == user)).scalar() is not None:
                raise Conflict(
                    f"user `{user}` already exists",
                    hints=(
                        f"run `hop token rotate {FIRST_TOKEN_NAME} --user {user}` to replace a lost token",
                    ),
                )
            variant = _case_variant_of(conn, user)
            if variant is not None:
                hint = "choose another name: similar names are easily confused"
                raise Conflict(
                    f"user `{variant}` already exists, and differs from `{user}` by case only", hints=(hint,)
                )
            is_former = (
                conn.execute(select(former_users).where(former_users.c.user_name == user)).first() is not None
            )
            if is_former and not restored:
                hints = (
                    "choose another name: runs and datasets of the removed user still have this one",
                    f"if it is the same person, run `hop user add {user} --returning`",
                )
                raise Conflict(f"user `{user}` was removed", hints=hints)
            if restored and not is_former:
                raise NotFound(
                    f"no user `{user}` was removed here",
                    hints=(f"run `hop user add {user}` to add a new user",),
                )
            _add_token(conn, user, token_hash, FIRST_TOKEN_NAME, ALL_SCOPES, to_us(now), None)

        await self._database.write(write)

    async def find_token(self, token_hash: str, /) -> Token | None:
        def read(conn: Connection) -> Token | None:
            row = conn.execute(select(tokens).where(tokens.c.hash == token_hash)).first()
            return None if row is None else _to_token(row)

        return await self._database.read(read)

    async def list_tokens(self, user: str | None, /) -> Sequence[Token]:
        query = select(tokens).order_by(tokens.c.user_name, tokens.c.created_at, tokens.c.hash)
        filtered = query if user is None else query.where(tokens.c.user_name == user)
        return await self._database.read(lambda conn: [_to_token(row) for row in conn.execute(filtered)])

    async def replace_token(
        self, token: str, token_hash: str, /, *, now: datetime, expires_at: datetime | None
    ) -> Token:
        """Replaces the hash of a token. Raises NotFound."""

        def write(conn: Connection) -> Token:
            old = _get_token_row(conn, token)
            conn.execute(tokens.delete().where(tokens.c.hash == old.hash))
            expiry = None if expires_at is None else to_us(expires_at)
            return _add_token(
                conn, old.user_name, token_hash, old.name, _parse_scopes(old.scopes), to_us(now), expiry
            )

        return await self._database.write(write)

    async def remove_token(self, token: str, /) -> Token:
        """Removes a token. Raises NotFound."""

        def write(conn: Connection) -> Token:
            old = _get_token_row(conn, token)
            conn.execute(tokens.delete().where(tokens.c.hash == old.hash))
            return _to_token(old)

        return await self._database.write(write)

    async def record_use(self, token_hash: str, /, *, now: datetime) -> None:
        statement = update(tokens).where(tokens.c.hash == token_hash).values(used_at=to_us(now))
        await self._database.write(lambda conn: conn.execute(statement))

    async def list_users(self) -> Sequence[User]:
        def read(conn: Connection) -> list[User]:
            query = select(tokens.c.user_name, func.min(tokens.c.created_at), func.count()).group_by(
                tokens.c.user_name
            )
            return sorted(
                (User(name, from_us(first), count) for name, first, count in conn.execute(query)),
                key=lambda user: user.name,
            )

        return await self._database.read(read)

    async def remove_user(self, user: str, /) -> int:
        """Removes a user. Raises NotFound."""

        def write(conn: Connection) -> int:
            removed = conn.execute(tokens.delete().where(tokens.c.user_name == user)).rowcount
            if not removed:
                raise NotFound(f"there is no user `{user}`", hints=("list the users with `hop user ls`",))
            for table in (user_secrets, saved_views, run_stars, inbox_reads):
                conn.execute(table.delete().where(table.c.user_name == user))
            is_private = reports.c.access == ReportAccess.PRIVATE
            conn.execute(reports.delete().where(reports.c.user_name == user, is_private))
            conn.execute(former_users.insert().values(user_name=user))
            return removed

        return await self._database.write(write, vital=True)

    async def put_secret(self, user: str, name: str, value: str, /, *, now: datetime) -> None:
        conditions = (user_secrets.c.user_name == user, user_secrets.c.name == name)

        def write(conn: Connection) -> None:
            conn.execute(user_secrets.delete().where(*conditions))
            conn.execute(
                user_secrets.insert().values(
                    user_name=user, name=name, value=value.encode(), set_at=to_us(now)
                )
            )

        await self._database.write(write)

    async def secret_names(self, user: str, /) -> Mapping[str, datetime]:
        query = (
            select(user_secrets.c.name, user_secrets.c.set_at)
            .where(user_secrets.c.user_name == user)
            .order_by(user_secrets.c.name)
        )
        return await self._database.read(lambda conn: {name: from_us(at) for name, at in conn.execute(query)})

    async def secret_values(self, user: str, names: Collection[str], /) -> Mapping[str, str]:
        query = select(user_secrets.c.name, user_secrets.c.value).where(user_secrets.c.user_name == user)

        def read(conn: Connection) -> dict[str, str]:
            return {name: bytes(value).decode() for name, value in conn.execute(query) if name in names}

        return await self._database.read(read)

    async def remove_secret(self, user: str, name: str, /) -> None:
        """Removes a secret. Raises NotFound."""

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
            database_id = _get_secret(conn, DATABASE_ID_KEY)
            if database_id is None:
                database_id = token_hex(8).encode()
                conn.execute(secrets.insert().values(name=DATABASE_ID_KEY, value=database_id))
            return database_id.decode()

        return await self._database.write(write, vital=True)

    async def signing_secret(self) -> bytes | None:
        return await self._database.read(lambda conn: _get_secret(conn, _SIGNING_KEY))

    async def remove_signing_secret(self, *, now: datetime) -> None:
        shared = self._database.dialect != "sqlite"

        def write(conn: Connection) -> None:
            if _get_secret(conn, _SIGNING_KEY) is None:
                return
            taken_at = _get_secret(conn, _SIGNING_TAKEN_KEY)
            if not shared or (taken_at is not None and int(taken_at) < to_us(now - _SHARED_SECRET_GRACE)):
                conn.execute(secrets.delete().where(secrets.c.name.in_((_SIGNING_KEY, _SIGNING_TAKEN_KEY))))
            elif taken_at is None:
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
        raise Conflict("the token already exists", hints=("make a new one",))
    conn.execute(former_users.delete().where(former_users.c.user_name == user))
    scope_text = ",".join(sorted(scopes))
    values = {
        "hash": token_hash,
        "user_name": user,
        "name": name,
        "scopes": scope_text,
        "created_at": now,
        "expires_at": expires_at,
    }
    conn.execute(tokens.insert().values(**values))
    return _to_token(conn.execute(select(tokens).where(tokens.c.hash == token_hash)).one())


def _get_token_row(conn: Connection, token: str) -> Row[Any]:
    """Returns the row of a token by its id. Raises NotFound."""
    row = conn.execute(select(tokens).where(func.substr(tokens.c.hash, 1, TOKEN_ID_DIGITS) == token)).first()
    if row is None:
        raise NotFound(f"there is no token {token}", hints=("list the tokens with `hop token list`",))
    return row


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
    """Returns a present or former user whose name differs from this one by case only, or None."""
    for column in (tokens.c.user_name, former_users.c.user_name, run_numbers.c.user_name):
        variant = conn.execute(
            select(column).where(func.lower(column) == user.lower(), column != user).limit(1)
        ).scalar()
        if variant is not None:
            return str(variant)
    return None


def _get_secret(conn: Connection, name: str) -> bytes | None:
    value = conn.execute(select(secrets.c.value).where(secrets.c.name == name)).scalar()
    return None if value is None else bytes(value)


def _distinct_digests(conn: Connection, columns: Sequence[Column[Any]]) -> list[Digest]:
    """Returns all digests in these columns, sorted, without duplicates."""
    digests = union(
        *(select(column.label("digest")).where(column.is_not(None)) for column in columns)
    ).subquery()
    return [
        Digest(digest)
        for digest in conn.execute(select(digests.c.digest).order_by(digests.c.digest)).scalars()
    ]
