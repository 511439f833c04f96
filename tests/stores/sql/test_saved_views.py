from __future__ import annotations

from dataclasses import replace

import pytest

from hopyard.domain.saved_view import SavedView
from hopyard.errors import Conflict, NotFound
from hopyard.stores.sql import saved_views
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.saved_views import SqlSavedViewStore
from hopyard.testing.stores import new_run, time_at
from tests.stores.sql.conftest import stores_over

pytestmark = pytest.mark.anyio
MINE = SavedView("alice", "best runs", '{"sort":"-acc"}', False, time_at(0))


async def test_views_are_replaced_listed_and_removed(database: Database) -> None:
    store = SqlSavedViewStore(database)
    shared = replace(MINE, user="bob", name="of bob", shared=True)
    for view in (MINE, shared, replace(MINE, user="bob")):
        await store.put(view)
    assert await store.list_visible("alice") == [MINE, shared]
    changed = replace(MINE, view="{}", updated_at=time_at(9))
    await store.put(changed)
    assert await store.get("alice", "best runs") == changed
    await store.remove("alice", "best runs")
    for call in (store.get, store.remove):
        with pytest.raises(NotFound):
            await call("alice", "best runs")
    assert await store.list_visible("alice") == [shared]


async def test_number_of_views_is_limited(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_views, "MAX_VIEWS", 2)
    store = SqlSavedViewStore(database)
    for name in ("a", "b", "b"):
        await store.put(replace(MINE, name=name))
    with pytest.raises(Conflict):
        await store.put(replace(MINE, name="c"))
    assert [view.name for view in await store.list_visible("alice")] == ["a", "b"]


async def test_views_and_stars_go_with_their_user(database: Database) -> None:
    stores, store = stores_over(database), SqlSavedViewStore(database)
    await stores.access.add_user("alice", "h" * 64, now=time_at(0))
    (run,) = await stores.runs.create([new_run("bob")], now=time_at(0))
    await stores.runs.set_starred(run.id, "alice", True)
    await store.put(MINE)
    await stores.access.remove_user("alice")
    assert await store.list_visible("alice") == []
    assert await stores.runs.starred_of("alice", [run.id]) == frozenset()
