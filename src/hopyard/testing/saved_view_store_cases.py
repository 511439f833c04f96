from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from hopyard.domain.saved_view import SavedView
from hopyard.errors import Conflict, NotFound
from hopyard.testing.stores import Stores, new_run, time_at

MINE = SavedView("alice", "best runs", '{"sort":"-acc"}', False, time_at(0))


class SavedViewCases:
    """Views that users keep. A change names the revision that it replaces, so none is lost."""

    async def test_views_are_replaced_listed_and_removed(self, stores: Stores) -> None:
        store = stores.saved_views
        shared = replace(MINE, user="bob", name="of bob", shared=True)
        for view in (MINE, shared, replace(MINE, user="bob")):
            assert await store.put(view) == view
        assert await store.list_visible("alice") == [MINE, shared]
        changed = await store.put(replace(MINE, view="{}", updated_at=time_at(9)))
        assert changed == replace(MINE, view="{}", updated_at=time_at(9), revision=2)
        assert await store.get("alice", "best runs") == changed
        await store.remove("alice", "best runs")
        for call in (store.get, store.remove):
            with pytest.raises(NotFound):
                await call("alice", "best runs")
        assert await store.list_visible("alice") == [shared]

    async def test_change_of_another_revision_of_a_view_is_refused(self, stores: Stores) -> None:
        store = stores.saved_views
        assert (await store.put(MINE, base=0)).revision == 1
        with pytest.raises(Conflict):
            await store.put(replace(MINE, view="{}"), base=0)
        mine, theirs = (replace(MINE, view=f'{{"sort":"{name}"}}', updated_at=time_at(5)) for name in "ab")
        stored = await store.put(mine, base=1)
        assert stored.revision == 2
        with pytest.raises(Conflict) as raised:
            await store.put(theirs, base=1)
        assert "revision 2" in raised.value.message
        with pytest.raises(Conflict):
            await store.remove(MINE.user, MINE.name, base=1)
        assert await store.get(MINE.user, MINE.name) == stored
        # the response to the first request may have been lost
        assert await store.put(replace(mine, updated_at=time_at(6)), base=1) == stored
        assert (await store.put(replace(stored, shared=True), base=2)).revision == 3
        await store.remove(MINE.user, MINE.name, base=3)
        with pytest.raises(Conflict) as raised:
            await store.put(theirs, base=3)
        assert "removed" in raised.value.message
        assert (await store.put(theirs, base=0)).revision == 1

    async def test_one_of_concurrent_changes_of_a_view_is_stored(self, stores: Stores) -> None:
        await stores.saved_views.put(MINE)
        results = await asyncio.gather(
            *(
                stores.saved_views.put(replace(MINE, view=f'{{"page":{number}}}'), base=1)
                for number in range(4)
            ),
            return_exceptions=True,
        )
        assert sorted(type(result).__name__ for result in results) == ["Conflict"] * 3 + ["SavedView"]
        assert (await stores.saved_views.get(MINE.user, MINE.name)).revision == 2

    async def test_views_and_stars_are_removed_with_their_user(self, stores: Stores) -> None:
        await stores.access.add_user("alice", "h" * 64, now=time_at(0))
        (run,) = await stores.runs.create([new_run("bob")], now=time_at(0))
        await stores.runs.set_starred(run.id, "alice", True)
        await stores.saved_views.put(MINE)
        await stores.access.remove_user("alice")
        assert await stores.saved_views.list_visible("alice") == []
        assert await stores.runs.starred_of("alice", [run.id]) == frozenset()
