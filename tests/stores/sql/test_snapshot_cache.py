"""A process does not read its own writes again; all other changes are read from the rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from hopyard.domain import attempt_transitions
from hopyard.domain.cluster import Promise, Snapshot
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import AttemptId, GangId, NodeId, QueueName
from hopyard.domain.plan_record import HoldRecord
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


class ReadCounter:
    """Counts the reads of attempt rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._read = live_attempt_rows.touched_since
        monkeypatch.setattr(live_attempt_rows, "touched_since", self)

    def __call__(self, conn: Connection, clock: int) -> Iterator[Any]:
        self.count += 1
        return self._read(conn, clock)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> ReadCounter:
    return ReadCounter(monkeypatch)


@pytest.fixture
def stores(sqlite_database: Database) -> Stores:
    return stores_over(sqlite_database)


async def fresh_snapshot(path: Path) -> Snapshot:
    """Returns the snapshot of a new server without any cached state."""
    database = Database.open(path)
    try:
        return await stores_over(database).cluster.snapshot(now=time_at(100))
    finally:
        await database.close()


async def check_same_as_fresh(stores: Stores, path: Path) -> Snapshot:
    snapshot = await stores.cluster.snapshot(now=time_at(100))
    result = await fresh_snapshot(path)
    by_id = {name: sorted(getattr(snapshot, name), key=repr) for name in ("pending", "running")}
    assert replace(result, **{name: sorted(getattr(result, name), key=repr) for name in by_id}) == replace(
        snapshot, **by_id
    )
    return snapshot


async def start_runs(stores: Stores) -> tuple[AttemptId, Run]:
    """Returns the attempt of a running run, and a pending run; both are in the cached snapshot."""
    await record_observation(stores, nodes=[make_node(cpus=8)])
    first, second = await submit_run(stores), await submit_run(stores)
    attempt = await start_run(stores, first.id)
    await stores.cluster.record_status(running_status(attempt), now=time_at(2))
    await stores.cluster.snapshot(now=time_at(3))
    return attempt, second


async def test_own_writes_are_not_read_again(stores: Stores, reads: ReadCounter, tmp_path: Path) -> None:
    first, waits = await start_runs(stores)
    before = reads.count
    second = await start_run(stores, waits.id, seconds=4)
    await stores.cluster.record_status(running_status(second), now=time_at(5))
    await stores.cluster.record_status(exited_status(first), now=time_at(9))
    snapshot = await stores.cluster.snapshot(now=time_at(10))
    assert reads.count == before
    assert [run.attempt for run in snapshot.running] == [second]
    assert (snapshot.pending, snapshot.running[0].started_at) == ((), time_at(5))
    assert snapshot.durations and snapshot.past_usage
    assert dict(await stores.cluster.live_attempts()) == {second: "running"}
    await check_same_as_fresh(stores, tmp_path / "hopyard.db")


async def test_own_writes_are_seen_without_a_thread(
    stores: Stores, sqlite_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    read = sqlite_database.read

    async def counted(look: Callable[[Connection], object]) -> object:
        reads.append("read")
        return await read(look)

    first, waits = await start_runs(stores)
    monkeypatch.setattr(sqlite_database, "read", counted)
    await stores.cluster.record_status(exited_status(first), now=time_at(4))
    second = await start_run(stores, waits.id, seconds=5)
    reads.clear()
    assert [one.attempt for one in (await stores.cluster.snapshot(now=time_at(6))).running] == [second]
    assert set(await stores.cluster.live_attempts()) == {second} and len(await stores.cluster.nodes()) == 1
    assert reads == []
    other = Database.open(tmp_path / "hopyard.db")
    elsewhere = await submit_run(stores_over(other))
    await other.close()
    assert elsewhere.id in {gang.id for gang in (await stores.cluster.snapshot(now=time_at(7))).pending}
    assert reads == ["read"]


async def test_submitted_runs_are_in_the_change_log(
    stores: Stores, reads: ReadCounter, tmp_path: Path
) -> None:
    """With the values of its row, and in the order of events: a placed run is not pending."""
    first, _ = await start_runs(stores)
    before = reads.count
    news = [new_run(priority=90, time_limit_s=60.0, label="b"), new_run(offline=True), new_run()]
    await stores.cluster.record_status(exited_status(first), now=time_at(4))
    # between two logged submissions, and seen together with them
    waits, offline, placed = await stores.runs.create(news, now=time_at(5))
    second = await start_run(stores, placed.id, seconds=6)
    await stores.cluster.record_status(running_status(second), now=time_at(7))
    await stores.cluster.snapshot(now=time_at(8))
    assert reads.count == before
    snapshot = await check_same_as_fresh(stores, tmp_path / "hopyard.db")
    assert waits.id in {gang.id for gang in snapshot.pending} and not {offline.id, placed.id} & {
        gang.id for gang in snapshot.pending
    }


async def test_very_many_submitted_runs_are_read(
    stores: Stores, reads: ReadCounter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create_runs, "MAX_LOGGED_RUNS", 2)
    first, _ = await start_runs(stores)
    await stores.cluster.record_status(exited_status(first), now=time_at(9))
    before = reads.count
    await stores.runs.create([new_run() for _ in range(3)], now=time_at(10))
    await stores.cluster.snapshot(now=time_at(11))
    assert reads.count > before
    assert len((await check_same_as_fresh(stores, tmp_path / "hopyard.db")).pending) == 4


async def test_promises_and_dequeued_runs_are_in_the_change_log(
    stores: Stores, reads: ReadCounter, tmp_path: Path
) -> None:
    _, waits = await start_runs(stores)
    before = reads.count
    promise = Promise(GangId(waits.id), time_at(60), time_at(4), (NodeId("n1"),))
    await apply_placements(stores, promises=(promise,), seconds=4)
    assert (await stores.cluster.snapshot(now=time_at(5))).promises == {promise.gang: promise}
    await stores.cluster.request_stop(waits.id, now=time_at(6))
    snapshot = await stores.cluster.snapshot(now=time_at(7))
    assert reads.count == before
    assert (snapshot.promises, snapshot.pending) == ({}, ())
    await check_same_as_fresh(stores, tmp_path / "hopyard.db")


async def test_requeued_run_is_read(stores: Stores, tmp_path: Path) -> None:
    """Its running time and other recorded values are in its row."""
    first, _ = await start_runs(stores)
    (run,) = [one.gang.id for one in (await stores.cluster.snapshot(now=time_at(3))).running]
    await record_observation(stores, nodes=[make_node(cpus=8)], seconds=8)  # it has vanished
    snapshot = await check_same_as_fresh(stores, tmp_path / "hopyard.db")
    assert {gang.id: gang.served_s for gang in snapshot.pending}[run] > 0
    assert snapshot.running == () and first not in await stores.cluster.live_attempts()


async def test_writes_of_other_servers_are_read(stores: Stores, reads: ReadCounter, tmp_path: Path) -> None:
    first, _ = await start_runs(stores)
    before = reads.count
    other = Database.open(tmp_path / "hopyard.db")
    try:
        await submit_run(stores_over(other))
    finally:
        await other.close()
    await stores.cluster.record_status(exited_status(first), now=time_at(9))
    snapshot = await check_same_as_fresh(stores, tmp_path / "hopyard.db")
    assert reads.count > before
    assert len(snapshot.pending) == 2 and snapshot.running == ()


async def test_rolled_back_writes_are_not_in_the_change_log(
    stores: Stores, sqlite_database: Database, tmp_path: Path
) -> None:
    """Also if other writes of its commit were not rolled back, and if the same marks occur again."""
    first, _ = await start_runs(stores)
    cluster: Any = stores.cluster

    def spoiled(conn: Connection) -> None:
        changes = cluster._begin_changes(conn, time_at(9))
        result = cluster._state.attempts[first]
        changes.apply(
            result, attempt_transitions.apply_status(result.to_attempt_state(), exited_status(first))
        )
        changes.write()
        raise ValueError("spoiled")

    results = await asyncio.gather(
        sqlite_database.write(spoiled),
        stores.runs.create([new_run()], now=time_at(9)),
        return_exceptions=True,
    )
    assert isinstance(results[0], ValueError)
    snapshot = await check_same_as_fresh(stores, tmp_path / "hopyard.db")
    assert [run.attempt for run in snapshot.running] == [first] and len(snapshot.pending) == 2
    with pytest.raises(ValueError, match="spoiled"):
        await sqlite_database.write(spoiled)
    await stores.cluster.record_status(exited_status(first), now=time_at(11))
    snapshot = await check_same_as_fresh(stores, tmp_path / "hopyard.db")
    assert snapshot.running == ()


async def test_rows_are_read_after_a_lost_connection(
    stores: Stores, sqlite_database: Database, reads: ReadCounter, tmp_path: Path
) -> None:
    """A copy of the database that replaced it may have other rows."""
    first, _ = await start_runs(stores)
    await stores.cluster.record_status(exited_status(first), now=time_at(9))
    before = reads.count
    sqlite_database._writer.notify_lost()
    assert (await check_same_as_fresh(stores, tmp_path / "hopyard.db")).running == ()
    assert reads.count > before


async def test_reader_behind_the_change_log_reads_the_rows(
    stores: Stores, reads: ReadCounter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_log, "MAX_ENTRIES", 2)
    first, waits = await start_runs(stores)
    before = reads.count
    second = await start_run(stores, waits.id, seconds=4)  # it takes a snapshot before it places
    await stores.cluster.record_status(running_status(second), now=time_at(5))
    await stores.cluster.record_status(exited_status(first), now=time_at(6))
    assert reads.count == before
    await stores.cluster.record_status(exited_status(second), now=time_at(7))
    assert (await check_same_as_fresh(stores, tmp_path / "hopyard.db")).running == ()
    assert reads.count > before


@pytest.mark.parametrize("other_server", [False, True])
async def test_updated_runs_are_read(stores: Stores, tmp_path: Path, other_server: bool) -> None:
    """Their holds are stored again, whichever server updated the runs."""
    _, run = await start_runs(stores)
    other = Database.open(tmp_path / "hopyard.db")
    try:
        changer = stores_over(other) if other_server else stores
        for held_by, priority in ((None, 70), ("bob", 70), (None, 80)):
            await record_holds(stores, HoldRecord(GangId(run.id), HoldReason.NO_CAPACITY, "no room", 1))
            before = await stores.runs.get(run.id)
            updated = replace(before, held_by=held_by, spec=replace(before.spec, priority=priority))
            await changer.cluster.update_run(
                before, updated, RunEvent(time_at(5), RunEventKind.CHANGED, "by bob")
            )
            snapshot = await check_same_as_fresh(stores, tmp_path / "hopyard.db")
            assert [gang.priority for gang in snapshot.pending] == ([] if held_by else [priority])
            assert (await stores.runs.get(run.id)).hold_detail == (
                "held by bob until released" if held_by else ""
            )
        await record_holds(stores, HoldRecord(GangId(run.id), HoldReason.QUOTA, "quota", 1))
        assert (await stores.runs.get(run.id)).hold_detail == "quota"
    finally:
        await other.close()


@pytest.mark.parametrize("change", ["cordon", "queues"])
async def test_changes_outside_the_change_log_are_read(stores: Stores, tmp_path: Path, change: str) -> None:
    first, _ = await start_runs(stores)
    if change == "cordon":
        await stores.cluster.set_cordon(NodeId("n1"), True)
    else:
        tree = await stores.queues.tree()
        await stores.queues.replace(QueueTree({**tree.queues, SMALL: Queue(SMALL)}, default=tree.default))
    await stores.cluster.record_status(exited_status(first), now=time_at(9))
    snapshot = await check_same_as_fresh(stores, tmp_path / "hopyard.db")
    assert snapshot.nodes[NodeId("n1")].cordoned == (change == "cordon")
    assert (SMALL in snapshot.queues.queues) == (change == "queues")
