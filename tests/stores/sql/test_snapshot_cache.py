"""What a process wrote itself it need not read again; whatever else happened is read from the rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from hopyard.domain import attempt_transitions
from hopyard.domain.cluster import Hold, HoldReason, Promise, Snapshot
from hopyard.domain.ids import AttemptId, GangId, NodeId, QueueName
from hopyard.domain.queue import Queue, QueueTree
from hopyard.domain.run import Run, RunEvent, RunEventKind
from hopyard.stores.sql import change_log, create_runs, live_attempt_rows
from hopyard.stores.sql.database import Database
from hopyard.testing.stores import (
    Stores,
    apply_placements,
    exited_status,
    make_node,
    new_run,
    record_holds,
    record_observation,
    running_status,
    start_run,
    submit_run,
    time_at,
)
from tests.stores.sql.conftest import stores_over

pytestmark = pytest.mark.anyio

SMALL = QueueName("small")


class Reads:
    """Counts how often rows of attempts were read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._read = live_attempt_rows.touched_since
        monkeypatch.setattr(live_attempt_rows, "touched_since", self)

    def __call__(self, conn: Connection, clock: int) -> Iterator[Any]:
        self.count += 1
        return self._read(conn, clock)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


@pytest.fixture
def stores(sqlite_database: Database) -> Stores:
    return stores_over(sqlite_database)


async def fresh(path: Path) -> Snapshot:
    """What somebody sees who knows nothing yet."""
    database = Database.open(path)
    try:
        return await stores_over(database).cluster.snapshot(now=time_at(100))
    finally:
        await database.close()


async def same(stores: Stores, path: Path) -> Snapshot:
    seen = await stores.cluster.snapshot(now=time_at(100))
    told = await fresh(path)
    by_id = {name: sorted(getattr(seen, name), key=repr) for name in ("pending", "running")}
    assert replace(told, **{name: sorted(getattr(told, name), key=repr) for name in by_id}) == replace(
        seen, **by_id
    )
    return seen


async def begun(stores: Stores) -> tuple[AttemptId, Run]:
    """The attempt of a run that runs, and one that waits; both were seen."""
    await record_observation(stores, nodes=[make_node(cpus=8)])
    first, second = await submit_run(stores), await submit_run(stores)
    attempt = await start_run(stores, first.id)
    await stores.cluster.record_status(running_status(attempt), now=time_at(2))
    await stores.cluster.snapshot(now=time_at(3))
    return attempt, second


async def test_what_was_written_here_is_not_read_again(stores: Stores, reads: Reads, tmp_path: Path) -> None:
    first, waits = await begun(stores)
    before = reads.count
    second = await start_run(stores, waits.id, seconds=4)
    await stores.cluster.record_status(running_status(second), now=time_at(5))
    await stores.cluster.record_status(exited_status(first), now=time_at(9))
    seen = await stores.cluster.snapshot(now=time_at(10))
    assert reads.count == before
    assert [one.attempt for one in seen.running] == [second]
    assert (seen.pending, seen.running[0].started_at) == ((), time_at(5))
    assert seen.durations and seen.past_usage
    assert dict(await stores.cluster.live_attempts()) == {second: "running"}
    await same(stores, tmp_path / "hopyard.db")


async def test_what_was_written_here_is_seen_without_asking_another_thread(
    stores: Stores, sqlite_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    read = sqlite_database.read

    async def counted(look: Callable[[Connection], object]) -> object:
        asked.append("read")
        return await read(look)

    first, waits = await begun(stores)
    monkeypatch.setattr(sqlite_database, "read", counted)
    await stores.cluster.record_status(exited_status(first), now=time_at(4))
    second = await start_run(stores, waits.id, seconds=5)
    asked.clear()
    assert [one.attempt for one in (await stores.cluster.snapshot(now=time_at(6))).running] == [second]
    assert set(await stores.cluster.live_attempts()) == {second} and len(await stores.cluster.nodes()) == 1
    assert asked == []
    other = Database.open(tmp_path / "hopyard.db")
    elsewhere = await submit_run(stores_over(other))
    await other.close()
    assert elsewhere.id in {gang.id for gang in (await stores.cluster.snapshot(now=time_at(7))).pending}
    assert asked == ["read"]


async def test_who_comes_is_told(stores: Stores, reads: Reads, tmp_path: Path) -> None:
    """As it stands in its row, and in the order of what happened: one that was placed waits no longer."""
    first, _ = await begun(stores)
    before = reads.count
    news = [new_run(priority=90, time_limit_s=60.0, label="b"), new_run(offline=True), new_run()]
    await stores.cluster.record_status(exited_status(first), now=time_at(4))
    # between two that were told of, and seen with them at once
    waits, offline, placed = await stores.runs.create(news, now=time_at(5))
    second = await start_run(stores, placed.id, seconds=6)
    await stores.cluster.record_status(running_status(second), now=time_at(7))
    await stores.cluster.snapshot(now=time_at(8))
    assert reads.count == before
    seen = await same(stores, tmp_path / "hopyard.db")
    assert waits.id in {gang.id for gang in seen.pending} and not {offline.id, placed.id} & {
        gang.id for gang in seen.pending
    }


async def test_very_many_who_come_at_once_are_read(
    stores: Stores, reads: Reads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create_runs, "MAX_LOGGED_RUNS", 2)
    first, _ = await begun(stores)
    await stores.cluster.record_status(exited_status(first), now=time_at(9))
    before = reads.count
    await stores.runs.create([new_run() for _ in range(3)], now=time_at(10))
    await stores.cluster.snapshot(now=time_at(11))
    assert reads.count > before
    assert len((await same(stores, tmp_path / "hopyard.db")).pending) == 4


async def test_promises_and_who_leaves_the_queue_are_told(
    stores: Stores, reads: Reads, tmp_path: Path
) -> None:
    _, waits = await begun(stores)
    before = reads.count
    promise = Promise(GangId(waits.id), time_at(60), time_at(4), (NodeId("n1"),))
    await apply_placements(stores, promises=(promise,), seconds=4)
    assert (await stores.cluster.snapshot(now=time_at(5))).promises == {promise.gang: promise}
    await stores.cluster.request_stop(waits.id, now=time_at(6))
    seen = await stores.cluster.snapshot(now=time_at(7))
    assert reads.count == before
    assert (seen.promises, seen.pending) == ({}, ())
    await same(stores, tmp_path / "hopyard.db")


async def test_who_waits_again_is_read(stores: Stores, tmp_path: Path) -> None:
    """How much it ran, and what else was recorded of it meanwhile, stands in its row."""
    first, _ = await begun(stores)
    (run,) = [one.gang.id for one in (await stores.cluster.snapshot(now=time_at(3))).running]
    await record_observation(stores, nodes=[make_node(cpus=8)], seconds=8)  # it is gone without a trace
    seen = await same(stores, tmp_path / "hopyard.db")
    assert {gang.id: gang.served_s for gang in seen.pending}[run] > 0
    assert seen.running == () and first not in await stores.cluster.live_attempts()


async def test_what_others_wrote_in_between_is_read(stores: Stores, reads: Reads, tmp_path: Path) -> None:
    first, _ = await begun(stores)
    before = reads.count
    other = Database.open(tmp_path / "hopyard.db")
    try:
        await submit_run(stores_over(other))
    finally:
        await other.close()
    await stores.cluster.record_status(exited_status(first), now=time_at(9))
    seen = await same(stores, tmp_path / "hopyard.db")
    assert reads.count > before
    assert len(seen.pending) == 2 and seen.running == ()


async def test_nothing_is_told_of_what_was_undone(
    stores: Stores, sqlite_database: Database, tmp_path: Path
) -> None:
    """Also where others who shared its commit were not undone, and where the same marks come again."""
    first, _ = await begun(stores)
    cluster: Any = stores.cluster

    def spoiled(conn: Connection) -> None:
        changes = cluster._begin_changes(conn, time_at(9))
        found = cluster._state.attempts[first]
        changes.apply(found, attempt_transitions.apply_status(found.to_attempt_state(), exited_status(first)))
        changes.write()
        raise ValueError("spoiled")

    results = await asyncio.gather(
        sqlite_database.write(spoiled),
        stores.runs.create([new_run()], now=time_at(9)),
        return_exceptions=True,
    )
    assert isinstance(results[0], ValueError)
    seen = await same(stores, tmp_path / "hopyard.db")
    assert [one.attempt for one in seen.running] == [first] and len(seen.pending) == 2
    with pytest.raises(ValueError, match="spoiled"):
        await sqlite_database.write(spoiled)
    await stores.cluster.record_status(exited_status(first), now=time_at(11))
    seen = await same(stores, tmp_path / "hopyard.db")
    assert seen.running == ()


async def test_what_was_written_before_a_connection_was_lost_is_read(
    stores: Stores, sqlite_database: Database, reads: Reads, tmp_path: Path
) -> None:
    """A copy of the database that took its place may have gone another way."""
    first, _ = await begun(stores)
    await stores.cluster.record_status(exited_status(first), now=time_at(9))
    before = reads.count
    sqlite_database._writer.notify_lost()
    assert (await same(stores, tmp_path / "hopyard.db")).running == ()
    assert reads.count > before


async def test_a_reader_far_behind_reads_the_rows(
    stores: Stores, reads: Reads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_log, "MAX_ENTRIES", 2)
    first, waits = await begun(stores)
    before = reads.count
    second = await start_run(stores, waits.id, seconds=4)  # it looks before it places
    await stores.cluster.record_status(running_status(second), now=time_at(5))
    await stores.cluster.record_status(exited_status(first), now=time_at(6))
    assert reads.count == before
    await stores.cluster.record_status(exited_status(second), now=time_at(7))
    assert (await same(stores, tmp_path / "hopyard.db")).running == ()
    assert reads.count > before


@pytest.mark.parametrize("other_server", [False, True])
async def test_runs_that_are_changed_are_read(stores: Stores, tmp_path: Path, other_server: bool) -> None:
    """And their holds are written anew, whichever server changed them."""
    _, run = await begun(stores)
    other = Database.open(tmp_path / "hopyard.db")
    try:
        changer = stores_over(other) if other_server else stores
        for held_by, priority in ((None, 70), ("bob", 70), (None, 80)):
            await record_holds(stores, Hold(GangId(run.id), HoldReason.NO_CAPACITY, "no room", 1))
            known = await stores.runs.get(run.id)
            wanted = replace(known, held_by=held_by, spec=replace(known.spec, priority=priority))
            await changer.cluster.update_run(
                known, wanted, RunEvent(time_at(5), RunEventKind.CHANGED, "by bob")
            )
            seen = await same(stores, tmp_path / "hopyard.db")
            assert [gang.priority for gang in seen.pending] == ([] if held_by else [priority])
            assert (await stores.runs.get(run.id)).hold_detail == (
                "held by bob until released" if held_by else ""
            )
        await record_holds(stores, Hold(GangId(run.id), HoldReason.QUOTA, "quota", 1))
        assert (await stores.runs.get(run.id)).hold_detail == "quota"
    finally:
        await other.close()


@pytest.mark.parametrize("change", ["cordon", "queues"])
async def test_what_the_journal_does_not_tell_of_is_read_beside_it(
    stores: Stores, tmp_path: Path, change: str
) -> None:
    first, _ = await begun(stores)
    if change == "cordon":
        await stores.cluster.set_cordon(NodeId("n1"), True)
    else:
        tree = await stores.queues.tree()
        await stores.queues.replace(QueueTree({**tree.queues, SMALL: Queue(SMALL)}, default=tree.default))
    await stores.cluster.record_status(exited_status(first), now=time_at(9))
    seen = await same(stores, tmp_path / "hopyard.db")
    assert seen.nodes[NodeId("n1")].cordoned == (change == "cordon")
    assert (SMALL in seen.queues.queues) == (change == "queues")
