from __future__ import annotations

from dataclasses import replace

import pytest

from hopyard.domain.ids import RunId
from hopyard.domain.run import RunEvent, RunEventKind
from hopyard.errors import Conflict, NotFound
from hopyard.interfaces.run_store import RunFilter
from hopyard.testing.run_store_cases import MISSING_RUN
from hopyard.testing.stores import ClusterStores, submit_run, time_at


async def _archive(stores: ClusterStores, run: RunId, archived: bool) -> None:
    before = await stores.runs.get(run)
    event = RunEvent(time_at(9), RunEventKind.CHANGED, "by alice: archived")
    await stores.cluster.update_run(before, replace(before, archived=archived), event)


async def _listed(stores: ClusterStores, **where: object) -> list[RunId]:
    return [run.id for run in await stores.runs.list(RunFilter(**where))]  # type: ignore[arg-type]


class RunMarkCases:
    """Marks of runs: the stars of users, and the archive."""

    async def test_star_belongs_to_its_user(self, stores: ClusterStores) -> None:
        first, second = [(await submit_run(stores, now=time_at(at))).id for at in (1, 2)]
        for _ in range(2):  # the response to the first request may have been lost
            await stores.runs.set_starred(first, "bob", True)
        await stores.runs.set_starred(second, "carol", True)
        assert await stores.runs.starred_of("bob", [second, first, MISSING_RUN]) == {first}
        assert await stores.runs.starred_of("bob", []) == frozenset()
        assert await stores.runs.starred_of("alice", [first, second]) == frozenset()
        assert await _listed(stores, starred_by="bob") == [first]
        assert await _listed(stores, starred_by="carol", user="alice") == [second]
        assert await _listed(stores, starred_by="alice") == []
        for _ in range(2):
            await stores.runs.set_starred(first, "bob", False)
        assert await _listed(stores, starred_by="bob") == []
        assert await _listed(stores, starred_by="carol") == [second]

    async def test_star_is_removed_with_its_run(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores)).id
        await stores.runs.set_starred(run, "bob", True)
        await stores.cluster.request_stop(run, now=time_at(1))
        await stores.runs.delete(run)
        assert await stores.runs.starred_of("bob", [run]) == frozenset()
        for starred in (True, False):
            with pytest.raises(NotFound):
                await stores.runs.set_starred(run, "bob", starred)

    async def test_archived_runs_are_listed_apart(self, stores: ClusterStores) -> None:
        kept, archived = [(await submit_run(stores, now=time_at(at))).id for at in (1, 2)]
        await stores.cluster.request_stop(archived, now=time_at(3))
        await _archive(stores, archived, True)
        run = await stores.runs.get(archived)
        assert run.archived and not (await stores.runs.get(kept)).archived
        assert (await stores.runs.events(archived))[-1].kind is RunEventKind.CHANGED
        assert await _listed(stores, archived=True) == [archived]
        assert await _listed(stores, archived=False) == [kept]
        assert await _listed(stores) == [archived, kept]
        with pytest.raises(Conflict):  # another request has archived it since
            await stores.cluster.update_run(
                replace(run, archived=False),
                replace(run, archived=False, note="late"),
                RunEvent(time_at(9), RunEventKind.CHANGED, "by bob: note"),
            )
        await _archive(stores, archived, False)
        assert await _listed(stores, archived=True) == []
        assert (await stores.runs.get(archived)).note == run.note

    async def test_waiting_run_keeps_its_place_when_it_is_archived(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores)).id
        await _archive(stores, run, True)
        snapshot = await stores.cluster.snapshot(now=time_at(10))
        assert [str(gang.id) for gang in snapshot.pending] == [str(run)]
