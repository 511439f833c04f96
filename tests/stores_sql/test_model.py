"""Any order of calls leaves the store where a plain model says."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from hopyard.domain.attempt import AttemptStatus, Exit, ExitKind, ReplicaPhase, ReplicaStatus
from hopyard.domain.cluster import Hold, HoldReason, Observation, Plan
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import AttemptId, GangId, RunId, RunName, Version
from hopyard.domain.resources import Resources
from hopyard.domain.run import RunPhase
from hopyard.errors import Conflict, NotFound
from hopyard.interfaces.run_store import NewRun, RunFilter
from hopyard.stores.sql.database import Database
from hopyard.testing.stores import ENGINE, at, new_run, node, place
from tests.stores_sql.conftest import stores_over
from tests.stores_sql.model import NODES, Model, ModelRun, Places
from tests.stores_sql.postgres import PostgreSQL

T = TypeVar("T")

EXITS = (
    (0, ExitKind.EXIT_CODE),
    (3, ExitKind.EXIT_CODE),
    (143, ExitKind.STOPPED),
    (1, ExitKind.LOST),
    (137, ExitKind.OUT_OF_MEMORY),
)
places_of = {
    0: st.sampled_from([("n1", ()), ("n2", ())]),
    1: st.sampled_from([("n1", (0,)), ("n1", (1,)), ("n1", (2,)), ("n2", (0,)), ("n1", ())]),
}
replicas = st.one_of(
    st.sampled_from([(ReplicaPhase.PREPARING, None), (ReplicaPhase.RUNNING, None)]),
    st.sampled_from(EXITS).map(lambda end: (ReplicaPhase.EXITED, Exit(end[1], end[0], "told"))),
)


class StoreMachine(RuleBasedStateMachine):
    """Holds the real stores and the model; every rule does the same to both."""

    def __init__(self, open_database: Callable[[], Database]) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.database = open_database()
        self.stores = stores_over(self.database)
        self.model = Model()
        self.news: dict[RunId, NewRun] = {}
        self.numbers = 0
        self.clock = 0

    def teardown(self) -> None:
        self.do(self.database.close())
        self.loop.close()

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    def now(self) -> datetime:
        self.clock += 1
        return at(self.clock)

    def run_of(self, data: st.DataObject) -> ModelRun:
        return data.draw(st.sampled_from(list(self.model.runs.values())))

    def attempt_of(self, data: st.DataObject) -> AttemptId:
        """Mostly one that lives, sometimes an old one."""
        ids = [attempt.id for run in self.model.runs.values() for attempt in run.attempts]
        live = [attempt.id for _, attempt in self.model.live()]
        return data.draw(st.sampled_from(live * 3 + ids) if ids else st.just(AttemptId("nobody.1")))

    @initialize(sizes=st.lists(st.integers(1, 3), min_size=2, max_size=5))
    def begin(self, sizes: list[int]) -> None:
        seen = Observation(tuple(node(name, cpus=cpus, gpus=gpus) for name, (cpus, gpus) in NODES.items()))
        self.do(self.stores.cluster.record(ENGINE, seen, now=self.now()))
        for number, size in enumerate(sizes):
            self.submit(size, number % 2, 2)
        self.plan_well()

    @rule(size=st.integers(1, 3), gpus=st.integers(0, 1), max_attempts=st.integers(1, 3))
    def submit_one(self, size: int, gpus: int, max_attempts: int) -> None:
        self.submit(size, gpus, max_attempts)

    def submit(self, size: int, gpus: int, max_attempts: int) -> None:
        new, now = new_run(replicas=size, resources=Resources(1000, gpus=gpus), max_attempts=max_attempts), self.now()
        (run,) = self.do(self.stores.runs.create([new], now=now))
        self.numbers += 1
        assert run.name == RunName("alice", "mnist", self.numbers)
        self.news[run.id] = new
        self.model.runs[run.id] = ModelRun(run.id, size, gpus, max_attempts, now)

    @precondition(lambda self: self.model.runs)
    @rule(data=st.data())
    def submit_again(self, data: st.DataObject) -> None:
        run = self.run_of(data)
        (there,) = self.do(self.stores.runs.create([self.news[run.id]], now=self.now()))
        assert (there.id, there.phase.value) == (run.id, run.phase)

    @rule(data=st.data())
    def plan_badly(self, data: st.DataObject) -> None:
        runs = data.draw(st.permutations(list(self.model.runs.values())))[:4]
        sized = [(run.id, st.lists(places_of[run.gpus], min_size=run.size, max_size=run.size)) for run in runs]
        self.apply([(run, data.draw(places)) for run, places in sized])

    @precondition(lambda self: self.model.in_use())
    @rule(data=st.data())
    def plan_on_what_is_in_use(self, data: st.DataObject) -> None:
        """A GPU that one gang holds is given to another: a stale plan, or a policy's fault."""
        gpu = data.draw(st.sampled_from(self.model.in_use()))
        self.submit(1, 1, 2)
        *_, run = self.model.runs.values()
        self.apply([(run.id, [("n1", (gpu,))])])

    @rule()
    def plan_well(self) -> None:
        waiting = [run for run in self.model.runs.values() if run.phase == "queued"]
        self.apply([(run.id, places) for run in waiting if (places := self.model.somewhere(run)) is not None])

    def apply(self, wanted: list[tuple[RunId, Places]]) -> None:
        placements = tuple(place(self.gang(id_), *places) for id_, places in wanted)
        result = self.do(self.stores.cluster.apply(Plan(Version(0), placements), now=self.now()))
        assert list(result.applied) == self.model.apply(wanted)
        assert set(result.applied) | set(result.rejected) == {placement.gang.id for placement in placements}

    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        order = data.draw(st.permutations(list(self.model.runs.values())))
        holds = tuple(Hold(GangId(run.id), HoldReason.BEHIND, "waits", number) for number, run in enumerate(order, 1))
        self.do(self.stores.cluster.apply(Plan(Version(0), hold=holds), now=self.now()))
        for number, run in enumerate(order, 1):
            run.position = number if run.phase == "queued" else None

    @rule(data=st.data(), ranks=st.lists(st.integers(0, 2), min_size=1, max_size=3), told=replicas)
    def say(self, data: st.DataObject, ranks: list[int], told: tuple[ReplicaPhase, Exit | None]) -> None:
        attempt = self.attempt_of(data)
        for rank in ranks:
            self.hear(attempt, ReplicaStatus(rank, told[0], "", told[1]))
        self.contradict()

    def contradict(self) -> None:
        """Whoever has exited while the others of its gang go on says something else afterwards: its exit stands."""
        for run, old in self.model.exited():
            assert old.exit is not None
            code, kind = next(end for end in EXITS if end[1] is not old.exit.kind)
            for status in (ReplicaStatus(old.rank, ReplicaPhase.EXITED, "", Exit(kind, code, "late")), ReplicaStatus(old.rank, ReplicaPhase.RUNNING)):
                self.hear(run.attempts[-1].id, status)

    @rule(data=st.data(), told=replicas)
    def say_all(self, data: st.DataObject, told: tuple[ReplicaPhase, Exit | None]) -> None:
        attempt = self.attempt_of(data)
        for rank in range(3):
            self.hear(attempt, ReplicaStatus(rank, told[0], "", told[1]))

    def hear(self, attempt: AttemptId, status: ReplicaStatus) -> None:
        recorded = self.do(self.stores.cluster.record_status(AttemptStatus(attempt, (status,)), now=self.now()))
        before = self.phases()
        self.model.say(attempt, status)
        after = self.phases()
        assert set(recorded.changed) == {id_ for id_ in after if after[id_] != before[id_]}

    @rule(data=st.data())
    def observe(self, data: st.DataObject) -> None:
        live = [attempt.id for _, attempt in self.model.live()]
        seen = data.draw(st.lists(st.sampled_from(live), unique=True)) if live else []
        nodes = tuple(node(name, cpus=cpus, gpus=gpus) for name, (cpus, gpus) in NODES.items())
        observation = Observation(nodes, tuple(AttemptStatus(attempt, ()) for attempt in seen))
        recorded = self.do(self.stores.cluster.record(ENGINE, observation, now=self.now()))
        self.model.observe(seen)
        assert {ended.attempt for ended in recorded.ended} == set(live) - {attempt.id for _, attempt in self.model.live()}
        assert set(recorded.requeued) == {id_ for id_ in recorded.changed if self.model.runs[id_].phase == "queued"}

    @rule(data=st.data())
    def fail_launch(self, data: st.DataObject) -> None:
        attempt = self.attempt_of(data)
        self.do(self.stores.cluster.fail_launch(attempt, "no", now=self.now()))
        self.model.fail_launch(attempt)

    @precondition(lambda self: self.model.runs)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        run = self.run_of(data)
        self.do(self.stores.cluster.request_stop(run.id, now=self.now()))
        self.model.stop(run.id)

    @precondition(lambda self: self.model.runs)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        run = self.run_of(data)
        if not run.final:
            with pytest.raises(Conflict):
                self.do(self.stores.runs.delete(run.id))
            return
        self.do(self.stores.runs.delete(run.id))
        del self.model.runs[run.id]
        with pytest.raises(NotFound):
            self.do(self.stores.runs.get(run.id))

    @invariant()
    def the_same_runs(self) -> None:
        found = self.do(self.stores.runs.list(RunFilter(limit=1000)))
        expected = list(reversed(self.model.runs.values()))
        assert [run.id for run in found] == [run.id for run in expected]
        for run, model in zip(found, expected, strict=True):
            assert (run.phase.value, run.stop_requested, run.position) == (model.phase, model.stop_requested, model.position)
            assert (run.ended_at is not None, _how(run.exit)) == (model.final, model.exit)
            attempts = self.do(self.stores.runs.attempts(run.id))
            assert [(one.id, one.phase, _how(one.exit)) for one in attempts] == [(one.id, one.phase, one.exit) for one in model.attempts]
            assert run.attempt == (attempts[-1] if attempts else None)

    @invariant()
    def the_same_cluster(self) -> None:
        snapshot = self.do(self.stores.cluster.snapshot(now=at(0)))
        queued = {run.id: run.submitted_at for run in self.model.runs.values() if run.phase == "queued"}
        assert {RunId(gang.id): gang.submitted_at for gang in snapshot.pending} == queued
        held = {RunId(running.gang.id): _places(running.placement) for running in snapshot.running}
        assert held == {run.id: list(attempt.places) for run, attempt in self.model.live()}
        live = self.do(self.stores.cluster.live_attempts())
        assert live == {attempt.id: attempt.phase for _, attempt in self.model.live()}
        for _, attempt in self.model.live():
            said = self.do(self.stores.cluster.replicas(attempt.id)).replicas
            assert said == tuple(attempt.replicas[rank] for rank in sorted(attempt.replicas))

    def gang(self, run: RunId) -> Gang:
        return Gang(GangId(run), (), at(0))  # a plan's own word on what a gang asks for is not believed

    def phases(self) -> dict[RunId, str]:
        return {run.id: run.phase for run in self.model.runs.values()}


def _how(exit: Exit | None) -> tuple[str, int] | None:
    return None if exit is None else (exit.kind.value, exit.code)


def _places(placement: Placement) -> list[tuple[str, tuple[int, ...]]]:
    return [(str(one.node), one.gpus) for one in placement.assignments]


def _check(open_database: Callable[[], Database], *, examples: int) -> None:
    how = settings(
        max_examples=examples,
        stateful_step_count=50,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    run_state_machine_as_test(lambda: StoreMachine(open_database), settings=how)


def test_sqlite_does_as_the_model(tmp_path: Path) -> None:
    _check(lambda: Database.open(Path(tempfile.mkdtemp(dir=tmp_path)) / "hopyard.db"), examples=15)


def test_postgresql_does_as_the_model(postgres: PostgreSQL) -> None:
    _check(lambda: Database.open(postgres.new_database()), examples=5)


def test_all_final_phases_are_reached_by_the_model() -> None:
    """The model speaks of phases as text: keep it in step with the domain."""
    assert {phase.value for phase in RunPhase if phase.final} == {"succeeded", "failed", "cancelled"}
