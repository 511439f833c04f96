from __future__ import annotations

from dataclasses import replace

import pytest

from hopyard.errors import Conflict
from hopyard.stores.sql import saved_views
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.saved_views import SqlSavedViewStore
from hopyard.testing.saved_view_store_cases import MINE

pytestmark = pytest.mark.anyio


async def test_number_of_views_is_limited(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_views, "MAX_VIEWS", 2)
    store = SqlSavedViewStore(database)
    for name, view in (("a", "{}"), ("b", "{}"), ("b", "[]")):
        await store.put(replace(MINE, name=name, view=view))
    with pytest.raises(Conflict):
        await store.put(replace(MINE, name="c"))
    assert [view.name for view in await store.list_visible("alice")] == ["a", "b"]
