"""Two servers on one database: one leads.

A server frozen beyond its lease finds another leader and does nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from hopyard.controller.controller import Controller
from hopyard.controller.launch_builder import LaunchBuilder
from hopyard.domain.cluster import Observation, Plan, PlanResult, Snapshot
from hopyard.domain.ids import NodeId, RunId
from hopyard.domain.run import RunPhase
from hopyard.errors import NotLeader
from hopyard.interfaces.cluster_store import Lease
from hopyard.scheduler.cycle.planner import Planner
from hopyard.stores.sql.cluster import SqlClusterStore
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.runs import SqlRunStore
from hopyard.testing.fake_engine import ReplicaScript
from tests.controller.controller_harness import NODES, CallCounter, ControllerHarness
from tests.controller.controller_harness import run_scenario as run_single_server

TTL = timedelta(seconds=15)
LONG = ReplicaScript(run_time=timedelta(hours=2))


class FreezableStore(SqlClusterStore):
    """A store that blocks in the middle of a cycle, with a finished plan and without renewing the lease,
    until it is thawed."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.freezes, self.frozen, self.thawed = False, asyncio.Event(), asyncio.Event()
        self.refused: list[Plan] = []
        self.was_refused = asyncio.Event()

    async def acquire_lease(self, holder: str, /, *, now: Any, ttl: timedelta) -> Lease | None:
        if self.frozen.is_set():
            await self.thawed.wait()
        return await super().acquire_lease(holder, now=now, ttl=ttl)

    async def apply(self, plan: Plan, /, *, now: Any, epoch: int) -> PlanResult:
        if self.freezes and plan.place:
            self.frozen.set()
            await self.thawed.wait()
        try:
            return await super().apply(plan, now=now, epoch=epoch)
        except NotLeader:
            self.refused.append(plan)
            self.was_refused.set()
            raise


class Server:
    """Another server on the harness's database and engine, with its own stores."""

    def __init__(self, harness: ControllerHarness, folder: Path, holder: str) -> None:
        self.database = Database.open(folder / "hopyard.db")
        self.cluster = FreezableStore(self.database)
        runs: Any = CallCounter(SqlRunStore(self.database), harness)
        cluster: Any = self.cluster if holder == "frozen" else CallCounter(self.cluster, harness)
        self.controller = Controller(
            cluster=cluster,
            runs=runs,
            engine=harness.engine,
            policy=Planner(),
            clock=harness.clock,
            launch_builder=LaunchBuilder(runs, server_url="http://server", sign_token=str),
            holder=holder,
            lease=TTL,
        )
        self._task = asyncio.get_running_loop().create_task(self.controller.run())

    async def end(self) -> None:
        """Ends its loops; its lease stays."""
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def close(self) -> None:
        await self.end()
        await self.database.close()


def run_scenario(
    tmp_path: Path, scenario: Callable[[ControllerHarness, Server, Server], Coroutine[Any, Any, None]]
) -> None:
    async def run() -> None:
        harness = ControllerHarness(tmp_path, script_of=lambda _attempt, _rank: LONG)
        first = Server(harness, tmp_path, "frozen")
        try:
            while not harness.engine.started_attempts:  # it leads, and does so on purpose of a first run
                if not harness._next:
                    await harness.submit()
                first.controller.request_cycle()
                await asyncio.sleep(0.005)
                await harness.advance(timedelta(seconds=1))
            second = Server(harness, tmp_path, "other")
            try:
                await harness.settle()
                await scenario(harness, first, second)
            finally:
                await second.close()
        finally:
            await first.close()
            await harness.close()

    asyncio.run(run())


async def freeze(harness: ControllerHarness, server: Server, **options: Any) -> RunId:
    """Submits a run and freezes the server just before it starts the run."""
    server.cluster.freezes = True
    run = await harness.submit(**options)
    server.controller.request_cycle()
    while not server.cluster.frozen.is_set():
        await asyncio.sleep(0.005)
        await harness.advance(timedelta(milliseconds=100))
    return run


async def thaw(harness: ControllerHarness, server: Server) -> None:
    server.cluster.freezes = False
    server.cluster.thawed.set()
    await server.cluster.was_refused.wait()
    await harness.advance(timedelta(seconds=5))


def test_frozen_leader_is_replaced_and_writes_nothing(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness, first: Server, second: Server) -> None:
        run = await freeze(harness, first, gpus=4)
        await harness.advance(timedelta(seconds=5))
        second.controller.request_cycle()
        await harness.advance(timedelta(seconds=5))
        assert len(harness.engine.started_attempts) == 1, "the lease still holds"
        await harness.advance(TTL)
        second.controller.request_cycle()
        await harness.advance_until(lambda: has_started(harness, run), within=timedelta(minutes=1))
        starts = list(harness.engine.started_attempts)
        # its plan would start a run on GPUs that now belong to another run
        urgent = await harness.submit(gpus=4, priority=90)
        second.controller.request_cycle()
        await harness.advance_until(lambda: has_started(harness, urgent), within=timedelta(minutes=3))
        await thaw(harness, first)
        assert [str(plan.place[0].gang.id) for plan in first.cluster.refused] == [str(run)]
        assert harness.engine.started_attempts == [*starts, f"{urgent}.1"]
        assert (await harness.runs.get(run)).phase is RunPhase.QUEUED
        assert [attempt.number for attempt in await harness.runs.attempts(run)] == [1]
        assert second.cluster.refused == []

    run_scenario(tmp_path, scenario)


def test_resigned_leader_is_replaced_at_once(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness, first: Server, second: Server) -> None:
        await first.end()
        await first.controller.release_leadership()
        run = await harness.submit(gpus=1)
        second.controller.request_cycle()
        await harness.advance_until(lambda: has_started(harness, run), within=timedelta(seconds=6))
        assert len(harness.engine.started_attempts) == 2

    run_scenario(tmp_path, scenario)


def test_nodes_unusable_by_the_leader_are_not_ready_on_any_server(tmp_path: Path) -> None:
    """So `hop why` and `hop reserve` agree with the leader."""

    async def scenario(harness: ControllerHarness) -> None:
        far = replace(NODES[0], id=NodeId("far"), engine="another")
        await harness.cluster.record_observation("another", Observation((far,)), now=harness.clock.now())
        assert ready_in(await harness.controller.snapshot()) == {"far"}, "no leader has planned yet"
        harness.start()
        held, waits = await harness.submit(gpus=4), await harness.submit(gpus=4)
        await harness.advance(timedelta(seconds=3))
        assert await has_started(harness, held) and not await has_started(harness, waits)
        assert ready_in(await harness.controller.snapshot()) == {"a", "b"}
        follower = harness.new_controller()
        assert ready_in(await follower.snapshot()) == {"a", "b"}, "it shows the nodes that the leader can use"

    run_single_server(tmp_path, scenario, lambda _attempt, _rank: LONG)


def test_server_that_loses_the_lease_in_a_cycle_keeps_its_own_nodes(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        far = replace(NODES[0], id=NodeId("far"), engine="another")
        await harness.cluster.record_observation("another", Observation((far,)), now=harness.clock.now())
        harness.start()
        held, waits = await harness.submit(gpus=4), await harness.submit(gpus=4)
        await harness.advance(timedelta(seconds=3))
        inner = harness.cluster._inner
        snapshot, looked = inner.snapshot, 0

        async def taken_meanwhile(**kwargs: Any) -> Snapshot:
            nonlocal looked
            looked += 1
            if looked == 1:
                # as storing hold reasons finds, which runs beside a cycle
                harness.controller._leadership.mark_lost()
            result: Snapshot = await snapshot(**kwargs)
            return result

        inner.snapshot = taken_meanwhile
        harness.controller.request_cycle()
        await harness.advance(timedelta(seconds=3))
        assert looked and await has_started(harness, held) and not await has_started(harness, waits)
        assert (await harness.runs.get(waits)).phase is RunPhase.QUEUED

    run_single_server(tmp_path, scenario, lambda _attempt, _rank: LONG)


def ready_in(snapshot: Snapshot) -> set[str]:
    return {str(node.id) for node in snapshot.nodes.values() if node.ready}


def test_reelected_leader_plans_pending_runs(tmp_path: Path) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        harness.start()
        await harness.submit(gpus=4)
        await harness.submit(gpus=4)
        await harness.advance(timedelta(seconds=3))
        inner = harness.cluster._inner
        lead = inner.acquire_lease

        async def refused(holder: str, /, **kwargs: Any) -> None: ...

        inner.acquire_lease = refused  # the lease of this server expires
        await harness.advance(timedelta(seconds=20))
        assert await lead("another", now=harness.clock.now(), ttl=timedelta(seconds=15)) is not None
        third = await harness.submit(gpus=4, wake=False)  # through the other server, which ends
        inner.acquire_lease = lead
        await harness.advance(timedelta(seconds=30))
        latest = harness.controller.latest_plan
        assert latest is not None and third in {gang.id for gang in latest[0].pending}

    run_single_server(tmp_path, scenario, lambda _attempt, _rank: LONG)


def test_leader_after_an_idle_server_has_ready_nodes(tmp_path: Path) -> None:
    """The other leader recorded them as not ready, and no live run makes this server observe its engine."""

    async def scenario(harness: ControllerHarness) -> None:
        harness.start()
        await harness.advance_until(partial(harness.is_final, await harness.submit(gpus=1)))
        await harness.advance(timedelta(seconds=30))
        assert await harness.cluster.acquire_lease("another", now=harness.clock.now(), ttl=TTL) is not None
        await harness.cluster.record_observation(
            harness.engine.name, Observation((), ()), now=harness.clock.now(), launched=()
        )
        assert ready_in(await harness.cluster.snapshot(now=harness.clock.now())) == set()
        await harness.advance(timedelta(seconds=30))
        await harness.advance_until(
            partial(harness.is_final, await harness.submit(gpus=4)), within=timedelta(minutes=1)
        )

    run_single_server(
        tmp_path, scenario, lambda _attempt, _rank: ReplicaScript(run_time=timedelta(seconds=2))
    )


async def has_started(harness: ControllerHarness, run: RunId) -> bool:
    return f"{run}.1" in harness.engine.started_attempts
