"""Views that users keep, in SQL."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, Row, delete, func, or_, select

from hopyard.domain.saved_view import MAX_VIEWS, SavedView
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
)


class SqlSavedViewStore:
    """SavedViewStore over a Database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, view: SavedView, /) -> None:
        def write(conn: Connection) -> None:
            conn.execute(delete(saved_views).where(*_key(view.user, view.name)))
            count = select(func.count()).where(saved_views.c.user_name == view.user)
            if conn.execute(count).scalar_one() >= MAX_VIEWS:
                raise Conflict(f"{view.user} has {MAX_VIEWS} views already", hints=("remove one first",))
            conn.execute(
                saved_views.insert().values(
                    user_name=view.user,
                    name=view.name,
                    view=view.view,
                    shared=view.shared,
                    updated_at=to_us(view.updated_at),
                )
            )

        await self._database.write(write)

    async def get(self, user: str, name: str, /) -> SavedView:
        def read(conn: Connection) -> SavedView:
            row = conn.execute(_SELECT.where(*_key(user, name))).one_or_none()
            if row is None:
                raise _not_found_error(user, name)
            return _to_view(row)

        return await self._database.read(read)

    async def list_visible(self, user: str, /) -> Sequence[SavedView]:
        is_visible = or_(saved_views.c.user_name == user, saved_views.c.shared)
        query = _SELECT.where(is_visible).order_by(
            saved_views.c.user_name != user, saved_views.c.user_name, saved_views.c.name
        )
        return await self._database.read(lambda conn: [_to_view(row) for row in conn.execute(query)])

    async def remove(self, user: str, name: str, /) -> None:
        def write(conn: Connection) -> None:
            if not conn.execute(delete(saved_views).where(*_key(user, name))).rowcount:
                raise _not_found_error(user, name)

        await self._database.write(write, vital=True)


def _key(user: str, name: str) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return saved_views.c.user_name == user, saved_views.c.name == name


def _to_view(row: Row[str, str, str, bool, int]) -> SavedView:
    user, name, view, shared, updated_at = row
    return SavedView(user, name, view, bool(shared), from_us(updated_at))


def _not_found_error(user: str, name: str) -> NotFound:
    return NotFound(f"{user} has no view `{name}`", hints=("list the views with GET /api/v1/views",))
