"""Views that users keep, in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy import ColumnElement, Connection, Row, delete, func, or_, select, update

from hopyard.domain.saved_view import MAX_VIEWS, SavedView, check_base
from hopyard.errors import Conflict, NotFound
from hopyard.stores.sql.codec import from_us, to_us
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.tables import saved_views

_SELECT = select(
    saved_views.c.user_name,
    saved_views.c.name,
    saved_views.c.view,
    saved_views.c.shared,
    saved_views.c.updated_at,
    saved_views.c.revision,
)


class SqlSavedViewStore:
    """SavedViewStore over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, view: SavedView, /, *, base: int | None = None) -> SavedView:
        def write(conn: Connection) -> SavedView:
            current = _find(conn, view.user, view.name, for_update=True)
            if current is not None and current.has_content_of(view):
                return current
            check_base(view.user, view.name, current, base)
            stored = replace(view, revision=1 if current is None else current.revision + 1)
            values = {
                "view": stored.view,
                "shared": stored.shared,
                "updated_at": to_us(stored.updated_at),
                "revision": stored.revision,
            }
            if current is not None:
                conn.execute(update(saved_views).where(*_key(view.user, view.name)).values(values))
                return stored
            count = select(func.count()).where(saved_views.c.user_name == view.user)
            if conn.execute(count).scalar_one() >= MAX_VIEWS:
                raise Conflict(f"{view.user} has {MAX_VIEWS} views already", hints=("remove one first",))
            conn.execute(saved_views.insert().values(user_name=view.user, name=view.name, **values))
            return stored

        return await self._database.write(write)

    async def get(self, user: str, name: str, /) -> SavedView:
        view = await self._database.read(lambda conn: _find(conn, user, name))
        if view is None:
            raise _not_found_error(user, name)
        return view

    async def list_visible(self, user: str, /) -> Sequence[SavedView]:
        is_visible = or_(saved_views.c.user_name == user, saved_views.c.shared)
        query = _SELECT.where(is_visible).order_by(
            saved_views.c.user_name != user, saved_views.c.user_name, saved_views.c.name
        )
        return await self._database.read(lambda conn: [_to_view(row) for row in conn.execute(query)])

    async def remove(self, user: str, name: str, /, *, base: int | None = None) -> None:
        def write(conn: Connection) -> None:
            current = _find(conn, user, name, for_update=True)
            if current is None:
                raise _not_found_error(user, name)
            check_base(user, name, current, base)
            conn.execute(delete(saved_views).where(*_key(user, name)))

        await self._database.write(write, vital=True)


def _find(conn: Connection, user: str, name: str, *, for_update: bool = False) -> SavedView | None:
    query = _SELECT.where(*_key(user, name))
    row = conn.execute(query.with_for_update() if for_update else query).one_or_none()
    return None if row is None else _to_view(row)


def _key(user: str, name: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return saved_views.c.user_name == user, saved_views.c.name == name


def _to_view(row: Row[str, str, str, bool, int, int]) -> SavedView:
    user, name, view, shared, updated_at, revision = row
    return SavedView(user, name, view, bool(shared), from_us(updated_at), revision)


def _not_found_error(user: str, name: str) -> NotFound:
    return NotFound(f"{user} has no view `{name}`", hints=("list the views with GET /api/v1/views",))
