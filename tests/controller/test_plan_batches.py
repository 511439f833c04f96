"""A plan is committed team by team: no start waits for the commit of another team, and nothing is lost in
between."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.controller.plan_batches import MAX_BATCHES, MIN_BATCH_PLACEMENTS, batches
from hopyard.controller.plan_records import plan_record
from hopyard.domain.breach_causes import NodeUnavailable
from hopyard.domain.cluster import Breach, Hold, Node, Observation, Plan, Preemption, Promise, Snapshot
from hopyard.domain.gang import Assignment, Gang, Placement, Role
from hopyard.domain.hold_causes import EvaluationDeferred
from hopyard.domain.ids import AttemptId, GangId, NodeId, QueueName, RunId, attempt_id
from hopyard.domain.preemption_causes import ServicePreemption
from hopyard.domain.queue import Queue, QueueTree
from hopyard.domain.resources import Resources
from hopyard.domain.run import RoleSpec, RunEventKind, RunPhase, RunSpec
from hopyard.errors import NotLeader
from hopyard.interfaces.run_store import NewRun
from hopyard.stores.memory.cluster import MemoryClusterStore
from hopyard.stores.memory.queues import MemoryQueueStore
from hopyard.stores.memory.runs import MemoryRunStore
from hopyard.stores.memory.state import MemoryState
from hopyard.stores.sql.cluster import SqlClusterStore
from hopyard.stores.sql.database import Database
from hopyard.stores.sql.queues import SqlQueueStore
from hopyard.stores.sql.runs import SqlRunStore
from hopyard.testing.fake_engine import ReplicaScript
from tests.controller.controller_harness import ControllerHarness, run_scenario

NOW = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
TEAMS = tuple(QueueName(f"team{at}") for at in range(12))


def tree(*, root: bool = False) -> QueueTree:
    """Teams with two queues each; with `root`, below one common parent."""
    top = [Queue(QueueName("root"))] if root else []
    teams = [Queue(name, top[0].name if root else None) for name in TEAMS]
    leaves = [Queue(QueueName(f"{team}-{leaf}"), team) for team in TEAMS for leaf in "ab"]
    return QueueTree({queue.name: queue for queue in (*top, *teams, *leaves)}, default=leaves[0].name)


def make_placement(name: str, queue: str) -> Placement:
    return Placement(Gang(GangId(name), (Role("main", 1, Resources(1000)),), NOW, queue=QueueName(queue)), ())


def promise(name: str) -> Promise:
    return Promise(GangId(name), start_at=NOW, given_at=NOW)


LEAVES = st.sampled_from([f"{team}-{leaf}" for team in TEAMS for leaf in "ab"] + ["removed"])


@given(st.lists(LEAVES, max_size=60), st.booleans(), st.data())
def test_batches_split_the_plan_by_team(queues: list[str], root: bool, data: st.DataObject) -> None:
    place = tuple(make_placement(f"g{number}", queue) for number, queue in enumerate(queues))
    promised = (
        data.draw(st.sets(st.sampled_from([f"g{number}" for number in range(len(queues))])))
        if queues
        else set()
    )
    snapshot = Snapshot(
        7,
        NOW,
        {},
        queues=tree(root=root),
        promises={GangId(name): promise(name) for name in [*sorted(promised), "old"]},
    )
    preempt = (
        Preemption(
            AttemptId("victim.1"), GangId("victim"), GangId("waits"), ServicePreemption(GangId("waits"))
        ),
    )
    breaches = (Breach(GangId("old"), NodeUnavailable(NodeId("n1"), ""), NOW),)
    hold = (Hold(GangId("new"), EvaluationDeferred(), 1),)
    plan = Plan(7, place, hold, preempt, (promise("new"),), breaches, NOW)
    result = batches(plan, snapshot)

    teams = [{placement.gang.queue.partition("-")[0] for placement in portion.place} for portion in result]
    assert sum(len(some) for some in teams) == len(set().union(*teams))  # no team is in two of them
    assert sorted(placement.gang.id for portion in result for placement in portion.place) == sorted(
        placement.gang.id for placement in place
    )
    for team in TEAMS:
        mine = [placement for placement in place if placement.gang.queue.startswith(f"{team}-")]
        assert [
            placement
            for portion in result
            for placement in portion.place
            if placement.gang.queue.startswith(f"{team}-")
        ] == mine
    assert len(result) <= MAX_BATCHES
    assert all(len(portion.place) >= MIN_BATCH_PLACEMENTS for portion in result[:-1])
    if len({queue.partition("-")[0] for queue in queues}) >= 2 * MIN_BATCH_PLACEMENTS:
        assert len(result) > 1

    last = result[-1]
    assert replace(last, place=place) == plan
    started: set[GangId] = set()
    for portion in result[:-1]:
        started.update(placement.gang.id for placement in portion.place)
        assert not portion.breaches
        assert not portion.preempt
        assert {promise.gang for promise in portion.promises} == snapshot.promises.keys() - started


@dataclass(frozen=True, slots=True)
class Outcome:
    """The stored result of a plan: phases, promises and events of each run."""

    phases: dict[RunId, RunPhase]
    promises: Mapping[GangId, Promise]
    told: dict[RunId, list[tuple[RunEventKind, str]]]


async def apply_plan(
    folder: Path, kind: str, *, whole: bool, most: int | None = None
) -> tuple[Snapshot, Plan, Outcome]:
    """Applies a plan for 24 runs of three teams on one node.

    Two running ones are preempted, twelve are placed (four of them with promises). Of the others, two keep
    their promise, one gets a new start, one loses it, and two get one. most: the number of batches.
    """
    async with AsyncExitStack() as ends:
        if kind == "memory":
            state = MemoryState()
            cluster, runs, queues = MemoryClusterStore(state), MemoryRunStore(state), MemoryQueueStore(state)
        else:
            database = Database.open(folder / f"{whole}-{most}.db")
            ends.push_async_callback(database.close)
            cluster, runs, queues = SqlClusterStore(database), SqlRunStore(database), SqlQueueStore(database)  # type: ignore[assignment]
        await queues.replace(tree())
        lease = await cluster.acquire_lease("server", now=NOW, ttl=timedelta(hours=1))
        assert lease is not None
        await cluster.record_observation("e", Observation((Node(NodeId("n"), "e", 64_000, 2**40),)), now=NOW)
        names = [RunId(f"run-{number:02d}") for number in range(24)]
        role = RoleSpec(("python", "x.py"), resources=Resources(1000, 1))
        specs = [RunSpec("p", (role,), queue=QueueName(f"{TEAMS[number % 3]}-a")) for number in range(24)]
        await runs.create(
            [NewRun(run, "alice", spec) for run, spec in zip(names, specs, strict=True)], now=NOW
        )
        fresh = await cluster.snapshot(now=NOW)
        gangs = {gang.id: gang for gang in fresh.pending}
        places = {gang.id: Placement(gang, (Assignment(0, NodeId("n")),)) for gang in fresh.pending}

        def promises(*numbers: int, in_s: float = 60.0) -> tuple[Promise, ...]:
            return tuple(
                Promise(GangId(names[number]), NOW + timedelta(seconds=in_s), NOW) for number in numbers
            )

        first = Plan(
            fresh.version,
            tuple(places[GangId(run)] for run in names[:2]),
            promises=promises(2, 6, 9, 13, 14, 15, 16, 17),
        )
        await cluster.apply(plan_record(first), now=NOW, epoch=lease.epoch)
        snapshot = await cluster.snapshot(now=NOW)
        cause = ServicePreemption(GangId(names[20]))
        plan = Plan(
            snapshot.version,
            tuple(places[GangId(run)] for run in names[2:14]),
            preempt=tuple(
                Preemption(attempt_id(run, 1), GangId(run), GangId(names[20]), cause) for run in names[:2]
            ),
            promises=(*promises(14, 15), *promises(16, 18, 19, in_s=90)),
            breaches=tuple(
                Breach(GangId(names[number]), NodeUnavailable(NodeId("n"), ""), NOW) for number in (16, 17)
            ),
        )
        parts = (plan,) if whole else batches(plan, snapshot)
        assert whole or len(parts) == 3
        for part in parts[:most]:
            result = await cluster.apply(plan_record(part), now=NOW, epoch=lease.epoch)
            assert not result.rejected
        assert set(gangs) == {GangId(run) for run in names}
        return snapshot, plan, Outcome(
            {run: (await runs.get(run)).phase for run in names},
            (await cluster.snapshot(now=NOW)).promises,
            {run: [(event.kind, event.detail) for event in await runs.events(run)] for run in names},
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["memory", "sql"])
def test_batched_plan_has_the_same_result_and_a_partial_one_breaks_no_promise(
    tmp_path: Path, kind: str
) -> None:
    _, _, complete = asyncio.run(apply_plan(tmp_path, kind, whole=True))
    _, _, parts = asyncio.run(apply_plan(tmp_path, kind, whole=False))
    assert parts == complete
    assert [
        result
        for result in complete.told.values()
        if any(event is RunEventKind.BREACHED for event, _ in result)
    ]

    snapshot, plan, half = asyncio.run(apply_plan(tmp_path, kind, whole=False, most=2))
    started = {GangId(run) for run, phase in half.phases.items() if phase is RunPhase.STARTING}
    assert {placement.gang.id for placement in plan.place} - started  # some do not run yet
    assert half.promises == {gang: one for gang, one in snapshot.promises.items() if gang not in started}
    assert not [
        result for result in half.told.values() if any(event is RunEventKind.BREACHED for event, _ in result)
    ]


class SlowStore:
    """A store in which only `most` commits with placements succeed until the gate is opened.

    refuses: the next commit fails once, because another server leads, instead of waiting.
    """

    def __init__(self, inner: Any, *, most: int, refuses: bool = False) -> None:
        self._inner, self._most, self._refuses = inner, most, refuses
        self.applied = 0
        self.gate = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def apply(self, plan: Plan, /, **kwargs: Any) -> Any:
        if plan.place and self.applied == self._most:
            if self._refuses:
                self._refuses, self._most = False, -1
                raise NotLeader("another server leads")
            await self.gate.wait()
        self.applied += bool(plan.place)
        return await self._inner.apply(plan, **kwargs)


async def submit_two_teams(harness: ControllerHarness) -> tuple[list[RunId], list[RunId]]:
    """Submits one batch of runs for each of two teams; all fit."""
    teams: list[list[RunId]] = []
    new: list[NewRun] = []
    for team in TEAMS[:2]:
        spec = RunSpec(
            "p",
            (RoleSpec(("python", "x.py"), resources=Resources(1000, 2**20)),),
            queue=QueueName(f"{team}-a"),
        )
        teams.append([RunId(f"{team}-{number}") for number in range(MIN_BATCH_PLACEMENTS)])
        new.extend(NewRun(run, "alice", spec) for run in teams[-1])
    harness.controller.add_submitted(await harness.runs.create(new, now=harness.clock.now()))
    return teams[0], teams[1]


def started_of(harness: ControllerHarness, runs: list[RunId]) -> set[AttemptId]:
    return {attempt_id(run, 1) for run in runs} & set(harness.engine.started_attempts)


def test_batch_starts_during_the_next_commit_and_a_crash_loses_no_run(
    tmp_path: Path,
) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        await SqlQueueStore(harness.database).replace(tree())
        inner = harness.cluster
        harness.cluster = store = SlowStore(inner, most=1)
        harness.start()
        await harness.settle()
        first, second = await submit_two_teams(harness)
        await harness.settle()
        assert store.applied == 1
        assert started_of(harness, first) == {attempt_id(run, 1) for run in first}
        assert not started_of(harness, second)
        assert {(await harness.runs.get(run)).phase for run in second} == {RunPhase.QUEUED}
        await harness.crash()
        harness.cluster = inner
        harness.start()
        await harness.advance(timedelta(seconds=20))
        assert sorted(harness.engine.started_attempts) == sorted(
            attempt_id(run, 1) for run in (*first, *second)
        )
        assert {(await harness.runs.get(run)).phase for run in (*first, *second)} == {RunPhase.RUNNING}

    run_scenario(tmp_path, scenario, lambda _a, _r: ReplicaScript(run_time=timedelta(hours=1)))


def test_leader_deposed_between_batches_continues_when_reelected(
    tmp_path: Path,
) -> None:
    async def scenario(harness: ControllerHarness) -> None:
        await SqlQueueStore(harness.database).replace(tree())
        harness.cluster = store = SlowStore(harness.cluster, most=1, refuses=True)
        harness.start()
        await harness.settle()
        first, second = await submit_two_teams(harness)
        await harness.advance(timedelta(seconds=20))
        assert store.applied == 2
        assert sorted(harness.engine.started_attempts) == sorted(
            attempt_id(run, 1) for run in (*first, *second)
        )

    run_scenario(tmp_path, scenario, lambda _a, _r: ReplicaScript(run_time=timedelta(hours=1)))
