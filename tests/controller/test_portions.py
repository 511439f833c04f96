"""A plan is committed team by team: nobody's start waits for the commit of another team's, and nothing is lost in between."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hopyard.controller.portions import FEWEST, MOST, portions
from hopyard.domain.cluster import Breach, BreachCause, Plan, Preemption, Promise, Snapshot
from hopyard.domain.gang import Gang, Placement, Role
from hopyard.domain.ids import AttemptId, GangId, QueueName, RunId, attempt_id
from hopyard.domain.queue import Queue, QueueTree
from hopyard.domain.resources import Resources
from hopyard.domain.run import RoleSpec, RunEventKind, RunPhase, RunSpec
from hopyard.errors import NotLeader
from hopyard.interfaces.run_store import NewRun
from hopyard.stores.sql.queues import SqlQueueStore
from hopyard.testing.fake_engine import Fate
from tests.controller.world import World, play

NOW = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
TEAMS = tuple(QueueName(f"team{at}") for at in range(12))


def tree(*, root: bool = False) -> QueueTree:
    """Teams with two queues each; root: below one that is above all."""
    top = [Queue(QueueName("root"))] if root else []
    teams = [Queue(name, top[0].name if root else None) for name in TEAMS]
    leaves = [Queue(QueueName(f"{team}-{leaf}"), team) for team in TEAMS for leaf in "ab"]
    return QueueTree({queue.name: queue for queue in (*top, *teams, *leaves)}, default=leaves[0].name)


def placed(name: str, queue: str) -> Placement:
    return Placement(Gang(GangId(name), (Role("main", 1, Resources(1000)),), NOW, queue=QueueName(queue)), ())


def promise(name: str) -> Promise:
    return Promise(GangId(name), start_at=NOW, given_at=NOW)


LEAVES = st.sampled_from([f"{team}-{leaf}" for team in TEAMS for leaf in "ab"])


@given(st.lists(LEAVES, max_size=60), st.booleans(), st.data())
def test_portions_are_the_plan_team_by_team(queues: list[str], root: bool, data: st.DataObject) -> None:
    place = tuple(placed(f"g{number}", queue) for number, queue in enumerate(queues))
    promised = data.draw(st.sets(st.sampled_from([f"g{number}" for number in range(len(queues))]))) if queues else set()
    snapshot = Snapshot(7, NOW, {}, queues=tree(root=root), promises={GangId(name): promise(name) for name in [*sorted(promised), "old"]})
    preempt = (Preemption(AttemptId("victim.1"), GangId("victim"), GangId("waits"), "makes room"),)
    breaches = (Breach(GangId("old"), BreachCause.NODE_LOST, "n1", NOW),)
    plan = Plan(7, place, preempt=preempt, promises=(promise("new"),), breaches=breaches)
    found = portions(plan, snapshot)

    teams = [{one.gang.queue.partition("-")[0] for one in portion.place} for portion in found]
    assert sum(len(some) for some in teams) == len(set().union(*teams))  # nobody's team is in two of them
    assert sorted(one.gang.id for portion in found for one in portion.place) == sorted(one.gang.id for one in place)
    for team in TEAMS:
        mine = [one for one in place if one.gang.queue.startswith(f"{team}-")]
        assert [one for portion in found for one in portion.place if one.gang.queue.startswith(f"{team}-")] == mine
    assert len(found) <= MOST
    assert all(len(portion.place) >= FEWEST for portion in found[:-1])
    if len({queue.partition("-")[0] for queue in queues}) >= 2 * FEWEST:
        assert len(found) > 1

    last = found[-1]
    assert (last.promises, last.breaches, last.preempt) == (plan.promises, breaches, preempt)
    started: set[GangId] = set()
    for portion in found[:-1]:
        started.update(one.gang.id for one in portion.place)
        assert not portion.breaches
        assert not portion.preempt
        assert {one.gang for one in portion.promises} == snapshot.promises.keys() - started


class Slow:
    """A store in which only `most` commits that place anybody succeed until the gate is opened. refuses: the next one is told that
    another server leads, once, instead of being held up."""

    def __init__(self, inner: Any, *, most: int, refuses: bool = False) -> None:
        self._inner, self._most, self._refuses = inner, most, refuses
        self.applied = 0
        self.gate = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def apply(self, plan: Plan, /, **given: Any) -> Any:
        if plan.place and self.applied == self._most:
            if self._refuses:
                self._refuses, self._most = False, -1
                raise NotLeader("another server leads")
            await self.gate.wait()
        self.applied += bool(plan.place)
        return await self._inner.apply(plan, **given)


async def submit_two_teams(world: World) -> tuple[list[RunId], list[RunId]]:
    """As many of each as make a portion; all fit."""
    teams: list[list[RunId]] = []
    new: list[NewRun] = []
    for team in TEAMS[:2]:
        spec = RunSpec("p", (RoleSpec(("python", "x.py"), resources=Resources(1000, 2**20)),), queue=QueueName(f"{team}-a"))
        teams.append([RunId(f"{team}-{number}") for number in range(FEWEST)])
        new.extend(NewRun(run, "alice", spec) for run in teams[-1])
    world.controller.submitted(await world.runs.create(new, now=world.clock.now()))
    return teams[0], teams[1]


def of(world: World, runs: list[RunId]) -> set[AttemptId]:
    return {attempt_id(run, 1) for run in runs} & set(world.engine.starts)


def test_a_team_starts_while_the_next_ones_commit_is_under_way_and_a_crash_there_loses_nobody(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        await SqlQueueStore(world.database).replace(tree())
        inner = world.cluster
        world.cluster = store = Slow(inner, most=1)
        world.start()
        await world.settle()
        first, second = await submit_two_teams(world)
        await world.settle()
        assert store.applied == 1
        assert of(world, first) == {attempt_id(run, 1) for run in first}
        assert not of(world, second)
        assert {(await world.runs.get(run)).phase for run in second} == {RunPhase.QUEUED}
        await world.crash()
        world.cluster = inner
        world.start()
        await world.advance(timedelta(seconds=20))
        assert sorted(world.engine.starts) == sorted(attempt_id(run, 1) for run in (*first, *second))
        for run in (*first, *second):
            assert (await world.runs.get(run)).phase is RunPhase.RUNNING
            kinds = [event.kind for event in await world.runs.events(run)]
            assert not {RunEventKind.PROMISED, RunEventKind.BREACHED} & set(kinds)

    play(tmp_path, scene, lambda _a, _r: Fate(run=timedelta(hours=1)))


def test_a_server_that_is_told_between_two_teams_that_it_leads_no_longer_goes_on_when_it_leads_again(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        await SqlQueueStore(world.database).replace(tree())
        world.cluster = store = Slow(world.cluster, most=1, refuses=True)
        world.start()
        await world.settle()
        first, second = await submit_two_teams(world)
        await world.advance(timedelta(seconds=20))
        assert store.applied == 2
        assert sorted(world.engine.starts) == sorted(attempt_id(run, 1) for run in (*first, *second))

    play(tmp_path, scene, lambda _a, _r: Fate(run=timedelta(hours=1)))
