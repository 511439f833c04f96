"""Any sequence of calls leaves the store in the state of a simple model."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Connection

from hopyard.domain.attempt import AttemptStatus, Exit, ExitKind, ReplicaPhase, ReplicaStatus
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.cluster import Observation, Snapshot
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import DEFAULT_QUEUE, AttemptId, GangId, NodeId, RunId, RunName, Version
from hopyard.domain.plan_record import HoldRecord, PlanRecord, PreemptionRecord
from hopyard.domain.queue import DEFAULT_PRIORITY
from hopyard.domain.resources import Resources
from hopyard.domain.run import RunEvent, RunEventKind, RunPhase
from hopyard.domain.run_query import run_values
from hopyard.errors import Conflict, NotFound, NotLeader
from hopyard.interfaces.run_store import NewRun, RunFilter
from hopyard.stores.sql.cluster import SqlClusterStore
from hopyard.stores.sql.database import Database
from hopyard.testing.stores import ENGINE, Stores, make_digest, make_node, make_placement, new_run, time_at
from tests.stores.sql.conftest import stores_over
from tests.stores.sql.model import NODES, Model, ModelRun, Places
from tests.stores.sql.postgres import PostgreSQL

T = TypeVar("T")

EXITS = (
    (0, ExitKind.EXIT_CODE),
    (3, ExitKind.EXIT_CODE),
    (143, ExitKind.STOPPED),
    (1, ExitKind.LOST),
    (125, ExitKind.NODE_FAULT),
    (143, ExitKind.PREEMPTED),
    (137, ExitKind.OUT_OF_MEMORY),
)
SHARES = (0, 400, 1000)
places_of = {
    0: st.sampled_from([("n1", (), 1000), ("n2", (), 1000)]),
    400: st.sampled_from(
        [("n1", (0,), 400), ("n1", (1,), 400), ("n1", (0,), 1000), ("n1", (1,), 300), ("n2", (0,), 400)]
    ),
    1000: st.sampled_from(
        [("n1", (0,), 1000), ("n1", (1,), 1000), ("n1", (2,), 1000), ("n2", (0,), 1000), ("n1", (), 1000)]
    ),
}
replicas = st.one_of(
    st.sampled_from([(ReplicaPhase.PREPARING, None), (ReplicaPhase.RUNNING, None)]),
    st.sampled_from(EXITS).map(lambda end: (ReplicaPhase.EXITED, Exit(end[1], end[0], "told"))),
)


class StoreMachine(RuleBasedStateMachine):
    """Holds the real stores and the model; every rule changes both.

    Two servers work on one database, and either makes the next call: the cached state of each must equal the
    state read by a new server. Sometimes another writer breaks the shared transaction, and the write is
    retried.
    """

    def __init__(self, open_database: Callable[[], Database]) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.databases = [open_database() for _ in range(2)]
        self.servers = [stores_over(database) for database in self.databases]
        self.at = 0
        self.epoch = 0
        self.model = Model()
        self.news: dict[RunId, NewRun] = {}
        self.numbers = 0
        self.clock = 0

    def teardown(self) -> None:
        for database in self.databases:
            self.do(database.close())
        self.loop.close()

    @property
    def stores(self) -> Stores:
        return self.servers[self.at]

    @rule()
    def change_servers(self) -> None:
        """Makes the other server the leader."""
        self.at = 1 - self.at
        self.do(self.servers[1 - self.at].cluster.release_lease(f"server {1 - self.at}"))
        self.lead()

    def lead(self) -> None:
        lease = self.do(
            self.stores.cluster.acquire_lease(f"server {self.at}", now=self.now(), ttl=timedelta(days=1))
        )
        assert lease is not None
        assert lease.epoch >= self.epoch
        self.epoch = lease.epoch

    @rule()
    def take_snapshot(self) -> None:
        """Takes a snapshot, which is older than the next change."""
        self.do(self.stores.cluster.snapshot(now=time_at(0)))

    async def run_with_rollback(self, call: Coroutine[Any, Any, T]) -> T:
        """Makes a write in a transaction that another writer ends too early: it is rolled back and retried
        alone."""

        def end(conn: Connection) -> None:
            conn.exec_driver_sql("ROLLBACK")
            raise RuntimeError("a neighbour")

        database = self.databases[self.at]
        busy = database.write(lambda conn: None)  # meanwhile the other writes are batched
        _, result, broken = await asyncio.gather(busy, call, database.write(end), return_exceptions=True)
        assert isinstance(broken, RuntimeError)
        if isinstance(result, BaseException):
            raise result
        return result

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    def now(self) -> datetime:
        self.clock += 1
        return time_at(self.clock)

    def run_of(self, data: st.DataObject) -> ModelRun:
        return data.draw(st.sampled_from(list(self.model.runs.values())))

    def attempt_of(self, data: st.DataObject) -> AttemptId:
        """Draws an attempt: mostly a live one, sometimes an old one."""
        ids = [attempt.id for run in self.model.runs.values() for attempt in run.attempts]
        live = [attempt.id for _, attempt in self.model.live()]
        return data.draw(st.sampled_from(live * 3 + ids) if ids else st.just(AttemptId("nobody.1")))

    @initialize(sizes=st.lists(st.integers(1, 3), min_size=2, max_size=5))
    def begin(self, sizes: list[int]) -> None:
        seen = Observation(
            tuple(make_node(name, cpus=cpus, gpus=gpus) for name, (cpus, gpus) in NODES.items())
        )
        self.do(self.stores.cluster.record_observation(ENGINE, seen, now=self.now()))
        self.lead()
        for number, size in enumerate(sizes):
            self.submit(size, SHARES[number % 3], 2)
        self.apply_valid_plan()

    @rule(
        size=st.integers(1, 3),
        share=st.sampled_from(SHARES),
        max_attempts=st.integers(1, 3),
        preemptible=st.booleans(),
    )
    def submit_one(self, size: int, share: int, max_attempts: int, preemptible: bool) -> None:
        self.submit(size, share, max_attempts, preemptible)

    def submit(self, size: int, share: int, max_attempts: int, preemptible: bool = True) -> None:
        resources = Resources(1000, gpus=share // 1000, gpu_milli=share % 1000)
        new, now = (
            new_run(replicas=size, resources=resources, max_attempts=max_attempts, preemptible=preemptible),
            self.now(),
        )
        (run,) = self.do(self.stores.runs.create([new], now=now))
        self.numbers += 1
        assert run.name == RunName("alice", "mnist", self.numbers)
        self.news[run.id] = new
        self.model.runs[run.id] = ModelRun(run.id, size, share, max_attempts, now, preemptible)

    @precondition(lambda self: self.model.runs)
    @rule(data=st.data())
    def submit_again(self, data: st.DataObject) -> None:
        run = self.run_of(data)
        (existing,) = self.do(self.stores.runs.create([self.news[run.id]], now=self.now()))
        assert (existing.id, existing.phase.value) == (run.id, run.phase)

    @rule(data=st.data())
    def apply_random_plan(self, data: st.DataObject) -> None:
        runs = data.draw(st.permutations(list(self.model.runs.values())))[:4]
        sized = [
            (run.id, st.lists(places_of[run.gpu_milli], min_size=run.size, max_size=run.size)) for run in runs
        ]
        self.apply([(run, data.draw(places)) for run, places in sized])

    @precondition(lambda self: self.model.used_gpus())
    @rule(data=st.data())
    def plan_on_used_gpu(self, data: st.DataObject) -> None:
        """Places a gang on an allocated GPU: a stale plan, or an error of the policy."""
        gpu = data.draw(st.sampled_from(self.model.used_gpus()))
        share = data.draw(st.sampled_from(SHARES[1:]))
        self.submit(1, share, 2)
        *_, run = self.model.runs.values()
        self.apply([(run.id, [("n1", (gpu,), share)])])

    @rule()
    def apply_valid_plan(self) -> None:
        waiting = [run for run in self.model.runs.values() if run.is_pending]
        self.apply(
            [(run.id, places) for run in waiting if (places := self.model.find_places(run)) is not None]
        )

    def apply(self, placed: list[tuple[RunId, Places]]) -> None:
        placements = tuple(make_placement(self.gang(id_), *places) for id_, places in placed)
        applying = self.stores.cluster.apply(
            PlanRecord(Version(0), placements), now=self.now(), epoch=self.epoch
        )
        result = self.do(self.run_with_rollback(applying) if self.clock % 3 == 0 else applying)
        assert list(result.applied) == self.model.apply(placed)
        assert set(result.applied) | set(result.rejected) == {placement.gang.id for placement in placements}

    @rule(data=st.data())
    def plan_with_old_epoch(self, data: st.DataObject) -> None:
        """Applies a plan with an old epoch: nothing is written, as the invariants check."""
        placed = [
            (run.id, places)
            for run in self.model.runs.values()
            if (places := self.model.find_places(run)) is not None
        ]
        attempt = self.attempt_of(data)
        plan = PlanRecord(
            Version(0),
            tuple(make_placement(self.gang(id_), *places) for id_, places in placed),
            preempt=(PreemptionRecord(attempt, GangId(""), GangId(""), "makes room"),),
        )
        for cluster in (server.cluster for server in self.servers):
            with pytest.raises(NotLeader):
                self.do(cluster.apply(plan, now=self.now(), epoch=self.epoch - 1))

    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        attempt = self.attempt_of(data)
        removed = GangId("gone")
        waiting = [GangId(run.id) for run in self.model.runs.values() if run.is_pending]
        preemptor = data.draw(st.sampled_from([*waiting, GangId(""), removed]))
        preemption = PreemptionRecord(attempt, GangId(attempt.rpartition(".")[0]), preemptor, "makes room")
        seen = self.do(self.stores.cluster.snapshot(now=time_at(0))).version
        result = self.do(
            self.stores.cluster.apply(
                PlanRecord(seen, preempt=(preemption,)), now=self.now(), epoch=self.epoch
            )
        )
        assert result.preempted == (
            (attempt,) if preemptor != removed and self.model.preempt(attempt) else ()
        )

    @rule(data=st.data(), step=st.integers(1, 1000))
    def save(self, data: st.DataObject, step: int) -> None:
        attempt, now = self.attempt_of(data), self.now()
        run = RunId(attempt.rpartition(".")[0])
        if run in self.model.runs:
            self.do(
                self.stores.runs.record_checkpoint(
                    Checkpoint(run, attempt, 0, step + self.clock * 1000, make_digest("c"), 1, now)
                )
            )
            self.model.save(attempt, now)

    @rule(name=st.sampled_from(sorted(NODES)), on=st.booleans())
    def cordon(self, name: str, on: bool) -> None:
        assert self.do(self.stores.cluster.set_cordon(NodeId(name), on)).cordoned is on
        (self.model.cordoned.add if on else self.model.cordoned.discard)(name)

    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        order = data.draw(st.permutations(list(self.model.runs.values())))
        holds = tuple(
            HoldRecord(GangId(run.id), HoldReason.BEHIND, "waits", number)
            for number, run in enumerate(order, 1)
        )
        version = self.do(self.stores.cluster.snapshot(now=self.now())).version
        noting = self.stores.cluster.record_holds(holds, based_on=version, now=self.now(), epoch=self.epoch)
        self.do(self.run_with_rollback(noting) if self.clock % 3 == 0 else noting)
        for number, run in enumerate(order, 1):
            run.position = number if run.is_pending else None

    @rule(data=st.data(), ranks=st.lists(st.integers(0, 2), min_size=1, max_size=3), status=replicas)
    def report_some(
        self, data: st.DataObject, ranks: list[int], status: tuple[ReplicaPhase, Exit | None]
    ) -> None:
        attempt = self.attempt_of(data)
        for rank in ranks:
            self.record_one(attempt, ReplicaStatus(rank, status[0], "", status[1]))
        self.report_after_exit()

    def report_after_exit(self) -> None:
        """Sends other statuses of replicas that have exited in a live gang: the first exit counts."""
        for run, old in self.model.exited_replicas():
            assert old.exit is not None
            code, kind = next(end for end in EXITS if end[1] is not old.exit.kind)
            for status in (
                ReplicaStatus(old.rank, ReplicaPhase.EXITED, "", Exit(kind, code, "late")),
                ReplicaStatus(old.rank, ReplicaPhase.RUNNING),
            ):
                self.record_one(run.attempts[-1].id, status)

    @rule(data=st.data(), status=replicas)
    def report_all(self, data: st.DataObject, status: tuple[ReplicaPhase, Exit | None]) -> None:
        attempt = self.attempt_of(data)
        for rank in range(3):
            self.record_one(attempt, ReplicaStatus(rank, status[0], "", status[1]))

    def record_one(self, attempt: AttemptId, status: ReplicaStatus) -> None:
        recorded = self.do(
            self.stores.cluster.record_status(AttemptStatus(attempt, (status,)), now=self.now())
        )
        before = self.phases()
        self.model.report_status(attempt, status)
        after = self.phases()
        assert set(recorded.changed) == {id_ for id_ in after if after[id_] != before[id_]}

    @rule(data=st.data())
    def observe(self, data: st.DataObject) -> None:
        live = [attempt.id for _, attempt in self.model.live()]
        seen = data.draw(st.lists(st.sampled_from(live), unique=True)) if live else []
        nodes = tuple(make_node(name, cpus=cpus, gpus=gpus) for name, (cpus, gpus) in NODES.items())
        observation = Observation(nodes, tuple(AttemptStatus(attempt, ()) for attempt in seen))
        recording = self.stores.cluster.record_observation(ENGINE, observation, now=self.now())
        recorded = self.do(self.run_with_rollback(recording) if self.clock % 3 == 0 else recording)
        self.model.observe(seen)
        assert {ended.attempt for ended in recorded.ended} == set(live) - {
            attempt.id for _, attempt in self.model.live()
        }
        assert set(recorded.requeued) == {
            id_ for id_ in recorded.changed if self.model.runs[id_].phase == "queued"
        }

    @rule(data=st.data(), kind=st.sampled_from([ExitKind.LOST, ExitKind.NODE_FAULT, ExitKind.PREPARE_FAILED]))
    def fail_launch(self, data: st.DataObject, kind: ExitKind) -> None:
        attempt = self.attempt_of(data)
        self.do(self.stores.cluster.fail_launch(attempt, "no", now=self.now(), kind=kind))
        self.model.fail_launch(attempt, kind)

    @precondition(lambda self: self.model.runs)
    @rule(data=st.data(), priority=st.sampled_from([None, 70]), held_by=st.sampled_from([None, "bob"]))
    def change(self, data: st.DataObject, priority: int | None, held_by: str | None) -> None:
        run = self.run_of(data)
        before = self.do(self.stores.runs.get(run.id))
        after = replace(before, held_by=held_by, spec=replace(before.spec, priority=priority))
        changing = self.stores.cluster.update_run(
            before, after, RunEvent(self.now(), RunEventKind.CHANGED, "by bob")
        )
        call = self.run_with_rollback(changing) if self.clock % 3 == 0 else changing
        if self.model.change(run.id, priority, held_by):
            self.do(call)
        else:
            with pytest.raises(Conflict):
                self.do(call)

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
        if not run.is_final:
            with pytest.raises(Conflict):
                self.do(self.stores.runs.delete(run.id))
            return
        self.do(self.stores.runs.delete(run.id))
        del self.model.runs[run.id]
        with pytest.raises(NotFound):
            self.do(self.stores.runs.get(run.id))

    @invariant()
    def runs_match_the_model(self) -> None:
        result = self.do(self.stores.runs.list(RunFilter(limit=1000)))
        expected = list(reversed(self.model.runs.values()))
        assert [run.id for run in result] == [run.id for run in expected]
        for run, model in zip(result, expected, strict=True):
            assert (run.phase.value, run.stop_requested, run.position) == (
                model.phase,
                model.stop_requested,
                model.position,
            )
            assert (run.submitted_at, run.preemptions) == (model.submitted_at, model.preemptions)
            assert (run.spec.priority, run.held_by) == (
                model.priority,
                model.held_by if model.phase == "queued" else None,
            )
            assert (run.ended_at is not None, _exit_pair(run.exit)) == (model.is_final, model.exit)
            attempts = self.do(self.stores.runs.attempts(run.id))
            assert [(attempt.id, attempt.phase, _exit_pair(attempt.exit)) for attempt in attempts] == [
                (attempt.id, attempt.phase, attempt.exit) for attempt in model.attempts
            ]
            assert run.attempt == (attempts[-1] if attempts else None)

    @invariant()
    def query_values_of_each_server_match_the_runs(self) -> None:
        runs = self.do(self.stores.runs.list(RunFilter(limit=1000)))
        expected = [(run.id, run_values(run, {}, now=time_at(0))) for run in runs]
        for server in self.servers:
            assert self.do(server.runs.query_values(RunFilter(limit=1000), now=time_at(0))) == expected

    @invariant()
    def cluster_matches_the_model(self) -> None:
        snapshot = self.do(self.stores.cluster.snapshot(now=time_at(0)))
        assert _sorted(snapshot) == _sorted(
            self.do(SqlClusterStore(self.databases[0]).snapshot(now=time_at(0)))
        )
        assert {name for name, one in snapshot.nodes.items() if one.cordoned} == self.model.cordoned
        marks = {
            RunId(run.gang.id): (run.stopping, run.preempted_for is not None, run.saved_at)
            for run in snapshot.running
        }
        assert marks == {
            run.id: (one.phase == "stopping", one.preempted, one.saved_at) for run, one in self.model.live()
        }
        waiting = {
            run.id: (run.submitted_at, run.preemptions, run.priority or DEFAULT_PRIORITY)
            for run in self.model.runs.values()
            if run.is_pending
        }
        pending = (*snapshot.pending, *snapshot.backing_off)
        assert {
            RunId(gang.id): (gang.submitted_at, gang.preemptions, gang.priority) for gang in pending
        } == waiting
        queued = sum(run.phase == "queued" for run in self.model.runs.values())
        assert self.do(self.stores.queues.count_waiting()) == ({DEFAULT_QUEUE: queued} if queued else {})
        held = {RunId(running.gang.id): _places(running.placement) for running in snapshot.running}
        assert held == {run.id: list(attempt.places) for run, attempt in self.model.live()}
        live = self.do(self.stores.cluster.live_attempts())
        assert live == {attempt.id: attempt.phase for _, attempt in self.model.live()}
        for _, attempt in self.model.live():
            text = self.do(self.stores.cluster.replicas(attempt.id)).replicas
            assert text == tuple(attempt.replicas[rank] for rank in sorted(attempt.replicas))

    def gang(self, run: RunId) -> Gang:
        # the store compares it with the current request of the run
        if self.model.runs[run].changed and self.model.runs[run].is_pending:
            snapshot = self.do(self.stores.cluster.snapshot(now=time_at(0)))
            return next(gang for gang in (*snapshot.pending, *snapshot.backing_off) if gang.id == GangId(run))
        return Gang(GangId(run), (), time_at(0))  # the store ignores the gang in the plan and uses its own

    def phases(self) -> dict[RunId, str]:
        return {run.id: run.phase for run in self.model.runs.values()}


def _exit_pair(exit: Exit | None) -> tuple[str, int] | None:
    return None if exit is None else (exit.kind.value, exit.code)


def _places(placement: Placement) -> list[tuple[str, tuple[int, ...], int]]:
    return [
        (str(assignment.node), assignment.gpus, assignment.gpu_milli) for assignment in placement.assignments
    ]


def _sorted(snapshot: Snapshot) -> Snapshot:
    """Returns pending and running gangs in a canonical order."""
    # it depends on the time which they are
    pending = tuple(sorted((*snapshot.pending, *snapshot.backing_off), key=lambda gang: gang.id))
    return replace(
        snapshot,
        pending=pending,
        backing_off=(),
        running=tuple(sorted(snapshot.running, key=lambda one: one.attempt)),
    )


def _check(new_database: Callable[[], str | Path], *, examples: int) -> None:
    def machine() -> StoreMachine:
        url = new_database()
        return StoreMachine(lambda: Database.open(url))

    how = settings(
        max_examples=examples,
        stateful_step_count=50,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    run_state_machine_as_test(machine, settings=how)


def test_sqlite_store_matches_the_model(tmp_path: Path) -> None:
    _check(lambda: Path(tempfile.mkdtemp(dir=tmp_path)) / "hopyard.db", examples=12)


def test_postgresql_store_matches_the_model(postgres: PostgreSQL) -> None:
    _check(postgres.new_database, examples=4)


def test_model_knows_all_final_phases() -> None:
    """The model speaks of phases as text: keep it in step with the domain."""
    assert {phase.value for phase in RunPhase if phase.is_final} == {"succeeded", "failed", "cancelled"}
