"""Several servers on one database: one leads, and the cached state of each equals the database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

from hopyard.domain.cluster import Promise
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import GangId
from hopyard.domain.plan_record import HoldRecord, PlanRecord, PreemptionRecord
from hopyard.errors import NotLeader
from hopyard.stores.sql.database import Database
from hopyard.testing.stores import (
    Stores,
    apply_placements,
    exited_status,
    make_node,
    make_placement,
    pending_gang,
    record_holds,
    record_observation,
    running_status,
    start_run,
    started_run,
    submit_run,
    time_at,
)
from tests.stores.sql.conftest import stores_over

pytestmark = pytest.mark.anyio
TTL = timedelta(seconds=10)


@pytest.fixture
def servers(url: str) -> Iterator[tuple[Stores, Stores]]:
    databases = [Database.open(url) for _ in range(2)]
    yield stores_over(databases[0]), stores_over(databases[1])
    for database in databases:
        asyncio.run(database.close())


async def test_paused_leader_writes_nothing(servers: tuple[Stores, Stores]) -> None:
    paused, other = servers
    first = await paused.cluster.acquire_lease("a", now=time_at(0), ttl=TTL)
    assert first is not None
    assert await other.cluster.acquire_lease("b", now=time_at(9), ttl=TTL) is None
    await record_observation(paused, nodes=[make_node(cpus=2)])
    runs = [await submit_run(paused) for _ in range(3)]
    planned = await paused.cluster.snapshot(now=time_at(1))  # and now it is paused, with a plan in its hands
    gangs = [pending_gang(planned, run.id) for run in runs]
    second = await other.cluster.acquire_lease("b", now=time_at(10), ttl=TTL)
    assert second is not None
    snapshot = await other.cluster.snapshot(now=time_at(10))
    placed = await other.cluster.apply(
        PlanRecord(snapshot.version, (make_placement(gangs[1], "n1"),)), now=time_at(10), epoch=second.epoch
    )
    before = await other.cluster.snapshot(now=time_at(11))
    stale = PlanRecord(
        planned.version,
        tuple(make_placement(gang, "n1") for gang in gangs),
        preempt=(PreemptionRecord(placed.attempts[0], gangs[1].id, gangs[2].id, "makes room"),),
        promises=(Promise(gangs[2].id, time_at(60), time_at(1)),),
    )
    with pytest.raises(NotLeader):
        await paused.cluster.apply(stale, now=time_at(11), epoch=first.epoch)
    with pytest.raises(NotLeader):
        await paused.cluster.record_holds(
            [HoldRecord(gangs[0].id, HoldReason.BEHIND, "", 1)],
            based_on=planned.version,
            now=time_at(11),
            epoch=first.epoch,
        )
    for server in servers:
        assert await server.cluster.snapshot(now=time_at(11)) == before
    assert await paused.cluster.acquire_lease("a", now=time_at(12), ttl=TTL) is None
    # its checks use the current rows
    again = await paused.cluster.apply(stale, now=time_at(12), epoch=second.epoch)
    assert (again.applied, again.preempted) == ((gangs[0].id,), placed.attempts)


async def test_each_server_sees_the_writes_of_the_other(servers: tuple[Stores, Stores]) -> None:
    one, other = servers
    run, attempt = await started_run(one)
    assert [seen.attempt for seen in (await other.cluster.snapshot(now=time_at(0))).running] == [attempt]
    assert (
        await record_observation(other, running_status(attempt), nodes=[make_node()], seconds=1)
    ).changed == (run,)
    assert (await one.cluster.snapshot(now=time_at(1))).running[0].started_at == time_at(1)
    assert (await one.cluster.request_stop(run, now=time_at(2))).changed == (run,)
    assert await other.cluster.live_attempts() == {attempt: "stopping"}
    assert (await other.cluster.record_status(exited_status(attempt), now=time_at(3))).changed == (run,)
    assert (await one.cluster.record_status(exited_status(attempt, code=1), now=time_at(4))).changed == ()
    assert await one.cluster.live_attempts() == {}
    assert (await one.cluster.snapshot(now=time_at(5))).durations["all"] == (2.0,)


async def test_run_deleted_by_another_server_allocates_nothing(servers: tuple[Stores, Stores]) -> None:
    one, other = servers
    await record_observation(one, nodes=[make_node(cpus=1)])
    first, second = await submit_run(one), await submit_run(one)
    attempt = await start_run(one, first.id)
    gang = pending_gang(await one.cluster.snapshot(now=time_at(0)), second.id)
    assert (await apply_placements(one, make_placement(gang, "n1"))).applied == ()
    await other.cluster.record_status(exited_status(attempt), now=time_at(1))
    await other.runs.delete(first.id)
    assert (await apply_placements(one, make_placement(gang, "n1"), seconds=2)).applied == (gang.id,)


async def test_new_leader_continues_with_the_holds_of_the_last(servers: tuple[Stores, Stores]) -> None:
    one, other = servers
    runs = [await submit_run(one) for _ in range(3)]
    holds = [
        HoldRecord(GangId(run.id), HoldReason.BEHIND, "waits", number) for number, run in enumerate(runs, 1)
    ]
    assert len(await record_holds(one, *holds)) == 3
    await one.cluster.release_lease("server")
    await other.cluster.request_stop(runs[0].id, now=time_at(1))
    moved = [HoldRecord(hold.gang, hold.reason, hold.detail, hold.position - 1) for hold in holds[1:]]
    assert list(await record_holds(other, *moved, seconds=2)) == []
    await other.cluster.release_lease("server")
    last = HoldRecord(GangId(runs[2].id), HoldReason.QUOTA, "full", 1)
    assert list(await record_holds(one, last, moved[0], seconds=3)) == [runs[2].id]
    assert [(await other.runs.get(run.id)).position for run in runs] == [None, 1, 1]
