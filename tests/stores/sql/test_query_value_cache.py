"""The decoded values of runs that a store keeps for queries: never other than what is stored."""

from __future__ import annotations

import asyncio
import itertools
import math
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopyard.domain.attempt import AttemptPhase, Exit, ExitKind
from hopyard.domain.ids import RunId, new_run_id
from hopyard.domain.run import RoleSpec, RunEvent, RunEventKind, RunSpec
from hopyard.domain.run_query import RunValues
from hopyard.domain.script_tags import ScriptTags
from hopyard.errors import SpecError
from hopyard.interfaces.cluster_store import ClusterStore
from hopyard.interfaces.run_store import NewRun, RunFilter, RunStore
from hopyard.server.select_runs import select_runs
from hopyard.stores.memory.cluster import MemoryClusterStore
from hopyard.stores.memory.runs import MemoryRunStore
from hopyard.stores.memory.state import MemoryState
from hopyard.stores.sql.change_feed import SqlChangeFeed
from hopyard.stores.sql.cluster import SqlClusterStore
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.query_value_cache import QueryValueCache
from hopyard.stores.sql.runs import SqlRunStore

pytestmark = pytest.mark.anyio
START = datetime(2030, 1, 1, tzinfo=UTC)
SPEC = RunSpec("p", (RoleSpec(("python", "main.py")),), tags={"team": "a"}, params={"lr": 0.1})


async def create(store: SqlRunStore, count: int) -> list[RunId]:
    new = [NewRun(new_run_id(START, number.to_bytes(7)), "u", SPEC, offline=True) for number in range(count)]
    return [run.id for run in await store.create(new, now=START)]


async def test_each_write_is_seen_by_a_store_that_has_read_the_run_before(database: Database) -> None:
    """The second store never reads before, so it decodes all columns."""
    store = SqlRunStore(database)
    (run,) = await create(store, 1)

    async def values(at: datetime) -> RunValues:
        (found,) = await store.query_values(RunFilter(), now=at)
        (fresh,) = await SqlRunStore(database).query_values(RunFilter(), now=at)
        assert found == fresh
        return found[1]

    assert (await values(START)).params == {"lr": 0.1}
    later = await values(START + timedelta(hours=1))
    assert (later.fields["age"], later.fields["took"]) == (3600, None)
    await store.record_params(run, {"lr": 0.5})
    assert (await values(START)).params == {"lr": 0.5}
    await store.record_metrics(run, {"loss": (3, 0.25)})
    assert (await values(START)).metrics == {"loss": 0.25}
    await store.record_summary(run, {"acc": 1.0})
    assert (await values(START)).summary == {"acc": 1.0}
    before = await store.get(run)
    tagged = replace(before, note="good", spec=replace(before.spec, label="best", tags={"team": "b"}))
    await SqlClusterStore(database).update_run(
        before, tagged, RunEvent(START, RunEventKind.CHANGED, "changed")
    )
    changed = await values(START)
    assert (changed.fields["note"], changed.fields["label"], changed.tags) == ("good", "best", {"team": "b"})
    minute = timedelta(minutes=1)
    await store.finish_offline(
        run,
        AttemptPhase.SUCCEEDED,
        Exit(ExitKind.EXIT_CODE, 0, "finished"),
        started_at=START,
        ended_at=START + minute,
    )
    ended = await values(START + 2 * minute)
    assert (ended.fields["phase"], ended.fields["took"], ended.fields["age"]) == ("succeeded", 60, 120)


async def test_values_of_more_runs_than_are_kept_are_complete(database: Database) -> None:
    store, cache = SqlRunStore(database), QueryValueCache(max_runs=3)
    ids = await create(store, 10)
    for _ in range(2):
        rows = await database.read(lambda conn: cache.read(conn, RunFilter(), START))
        assert [run for run, _ in rows] == ids[::-1]
        assert len(cache) == 3


async def test_only_changed_runs_are_decoded_again(database: Database) -> None:
    store = SqlRunStore(database)
    ids = await create(store, 3)
    before = dict(await store.query_values(RunFilter(), now=None))
    await SqlRunStore(database).record_params(ids[1], {"lr": 3})
    after = dict(await store.query_values(RunFilter(), now=None))
    assert [after[run] is before[run] for run in ids] == [True, False, True]
    assert after[ids[1]].params == {"lr": 3}


async def test_values_are_right_after_the_log_of_changes_was_pruned(database: Database) -> None:
    store = SqlRunStore(database)
    (run,) = await create(store, 1)
    await store.query_values(RunFilter(), now=None)
    for value in (1, 2, 3):
        await store.record_params(run, {"lr": value})
    await SqlChangeFeed(database).prune(1)
    ((_, values),) = await store.query_values(RunFilter(), now=None)
    assert values.params == {"lr": 3}


async def test_values_of_a_copy_that_differs_are_its_own(tmp_path: Path) -> None:
    """As after a restore of an older backup: its log has other changes under the same numbers."""
    original = Database.open(tmp_path / "a.db")
    (run,) = await create(SqlRunStore(original), 1)
    await original.close()
    shutil.copy(tmp_path / "a.db", tmp_path / "b.db")
    cache = QueryValueCache()
    databases = [Database.open(tmp_path / name) for name in ("a.db", "b.db")]
    for value, database in enumerate(databases):
        await SqlRunStore(database).record_params(run, {"lr": value})
    for value, database in [*enumerate(databases)] * 2:
        ((_, values),) = await database.read(lambda conn: cache.read(conn, RunFilter(), None))
        assert values.params == {"lr": value}
    for database in databases:
        await database.close()


# -- the law: any changes, through any of several servers ----------------------------------------------------

QUERIES = (
    None,
    "acc > 0.5",
    "lr = a or team = t1",
    "took > 30s and phase != running",
    "age > 12m",
    "archived or note ~ 1",
    "not acc < 1 and label != null",
)
SORTS = (None, "acc", "-acc", "lr", "-lr", "took", "-age", "label", "-team", "phase", "note")
FILTERS = (
    RunFilter(),
    RunFilter(limit=2),
    RunFilter(archived=False, text="t1"),
    RunFilter(tags={"team": "t2"}),
    RunFilter(starred_by="eve"),
)
CHANGES = ("create", "params", "summary", "metrics", "script", "update", "star", "finish", "delete")
LISTING = st.tuples(st.sampled_from(FILTERS), st.sampled_from(QUERIES), st.sampled_from(SORTS))
STEP = st.tuples(
    st.sampled_from(CHANGES), st.integers(0, 9), st.sampled_from([0.5, 2, -1, math.nan, math.inf, "a", True])
)
_projects, _run_numbers = itertools.count(), itertools.count()


async def change(
    runs: RunStore, cluster: ClusterStore, run: RunId, step: tuple[str, int, float | str], now: datetime
) -> None:
    kind, number, value = step
    if kind == "params":
        await runs.record_params(run, {"lr": value})
    elif kind == "summary":
        await runs.record_summary(run, {"acc": number / 3})
    elif kind == "metrics":
        await runs.record_metrics(run, {"acc": (number, float(value) if value != "a" else 0.25)})
    elif kind == "script":
        await runs.record_tags(run, ScriptTags({"team": f"t{number % 3}"}, f"note {number}"))
    elif kind == "update":
        before = await runs.get(run)
        spec = replace(before.spec, label="ab"[: number % 3], tags={"team": f"t{number % 4}"})
        after = replace(before, spec=spec, note=f"{number}", archived=number % 2 == 0)
        await cluster.update_run(before, after, RunEvent(now, RunEventKind.CHANGED, "changed"))
    elif kind == "star":
        await runs.set_starred(run, "eve", number % 2 == 0)
    elif kind == "finish":
        end = Exit(ExitKind.EXIT_CODE, 0, f"reason {number}")
        await runs.finish_offline(
            run, AttemptPhase.SUCCEEDED, end, started_at=now, ended_at=now + timedelta(seconds=20 * number)
        )
    elif kind == "delete":
        await runs.delete(run)


async def listed(runs: RunStore, listing: tuple[RunFilter, str | None, str | None], now: datetime) -> object:
    """Returns all that a listing shows, as a text: NaN differs from itself."""
    where, query, sort = listing
    rows = await runs.query_values(where, now=now)
    untimed = await runs.query_values(where, now=None)
    try:
        page = await select_runs(runs, where, query=query, sort=sort, now=now)
    except SpecError as error:
        return repr((rows, untimed, error.message, error.hints))
    return repr((rows, untimed, page))


async def check_law(
    servers: list[SqlRunStore],
    cluster: SqlClusterStore,
    steps: list[tuple[str, int, float | str]],
    listings: list[tuple[RunFilter, str | None, str | None]],
) -> None:
    for old, _ in await servers[0].query_values(RunFilter(limit=1000), now=None):
        await servers[0].delete(old)
    state, now = MemoryState(), START
    memory, memory_cluster = MemoryRunStore(state), MemoryClusterStore(state)
    spec = replace(SPEC, project=f"p{next(_projects)}")
    ids: list[RunId] = []
    finished = set[RunId]()
    for at, (step, listing) in enumerate(zip(steps, itertools.cycle(listings), strict=False)):
        now += timedelta(minutes=1)
        server = servers[at % len(servers)]
        if step[0] == "create" or not ids:
            new = NewRun(new_run_id(now, next(_run_numbers).to_bytes(7)), "u", spec, offline=True)
            for store in (memory, server):
                await store.create([new], now=now)
            ids.append(new.id)
        else:
            run = ids[step[1] % len(ids)]
            if step[0] == "delete":
                ids.remove(run)
            if step[0] == "finish" and run in finished:
                continue
            finished |= {run} if step[0] == "finish" else set()
            await change(memory, memory_cluster, run, step, now)
            await change(server, cluster, run, step, now)
        expected = await listed(memory, listing, now)
        for reader in servers[at % 2 :]:  # the others are several changes behind
            assert await listed(reader, listing, now) == expected


def close(database: Database) -> None:
    asyncio.run(database.close())


@pytest.fixture
def databases(url: str) -> Iterator[list[Database]]:
    with ExitStack() as stack:
        databases = [Database.open(url) for _ in range(2)]
        for database in databases:
            stack.callback(close, database)
        yield databases


def test_values_equal_those_of_a_plain_store(databases: list[Database]) -> None:
    """A listing looks the same in a store that keeps nothing, in each of two servers, and in one that keeps
    two runs only."""
    servers = [SqlRunStore(databases[0]), SqlRunStore(databases[1])]
    servers.append(SqlRunStore(databases[1], max_cached_runs=2))
    cluster = SqlClusterStore(databases[0])

    @settings(
        max_examples=10 if databases[0].dialect == "sqlite" else 3,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(st.lists(STEP, min_size=5, max_size=25), st.lists(LISTING, min_size=1, max_size=6))
    def law(
        steps: list[tuple[str, int, float | str]],
        listings: list[tuple[RunFilter, str | None, str | None]],
    ) -> None:
        asyncio.run(check_law(servers, cluster, steps, listings))

    law()
