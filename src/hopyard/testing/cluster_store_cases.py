"""Cases of every ClusterStore."""

from __future__ import annotations

import asyncio

import pytest

from hopyard.domain.attempt import AttemptPhase, AttemptStatus, ExitKind
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.cluster import Observation
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import AttemptId, GangId, NodeId, QueueName, RunId, attempt_id
from hopyard.domain.plan_record import HoldRecord
from hopyard.domain.replica import StopOrder
from hopyard.domain.resources import Resources
from hopyard.domain.run import ResumeFrom, RoleSpec, RunPhase
from hopyard.errors import Conflict, NotFound
from hopyard.interfaces.cluster_store import EndedAttempt, RecordResult
from hopyard.testing.stores import (
    ENGINE,
    GIB,
    ClusterStores,
    ReplicaPlace,
    apply_placements,
    exited_status,
    make_digest,
    make_node,
    make_placement,
    pending_gang,
    preparing_status,
    record_holds,
    record_observation,
    running_status,
    start_run,
    started_run,
    submit_run,
    time_at,
)


async def phases(stores: ClusterStores, run: RunId) -> tuple[str, str | None]:
    """Returns the phase of the run and of its newest attempt."""
    stored = await stores.runs.get(run)
    return stored.phase.value, None if stored.attempt is None else stored.attempt.phase


class PlanCases:
    """Snapshots, and plans that are checked again."""

    async def test_snapshot_holds_waiting_and_running_gangs(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node(gpus=2), make_node("n2", ready=False)])
        waiting_run = await submit_run(stores, user="bob", priority=7, queue="q", now=time_at(1))
        running_run = await submit_run(stores, replicas=2, resources=Resources(500, GIB, 1))
        attempt = await start_run(stores, running_run.id, ("n1", (1,)), ("n1", (0,)))
        snapshot = await stores.cluster.snapshot(now=time_at(2))
        assert dict(snapshot.nodes) == {
            NodeId("n1"): make_node(gpus=2),
            NodeId("n2"): make_node("n2", ready=False),
        }
        (gang,) = snapshot.pending
        assert (gang.id, gang.submitted_at, gang.queue, gang.priority, gang.user) == (
            GangId(waiting_run.id),
            time_at(1),
            QueueName("q"),
            7,
            "bob",
        )
        (running,) = snapshot.running
        placement = running.placement
        assert (placement.gang.id, placement.gang.size) == (GangId(running_run.id), 2)
        assert [
            (assignment.rank, assignment.node, assignment.gpus) for assignment in placement.assignments
        ] == [(0, "n1", (1,)), (1, "n1", (0,))]
        assert await stores.cluster.live_attempts() == {attempt: "starting"}
        assert await stores.cluster.nodes() == [make_node(gpus=2), make_node("n2", ready=False)]

    async def test_version_changes_with_snapshot(self, stores: ClusterStores) -> None:
        versions = [(await stores.cluster.snapshot(now=time_at(0))).version]
        for change in (
            record_observation(stores, nodes=[make_node()]),
            submit_run(stores),
            submit_run(stores),
        ):
            await change
            versions.append((await stores.cluster.snapshot(now=time_at(0))).version)
        await record_observation(stores, nodes=[make_node()])
        assert (await stores.cluster.snapshot(now=time_at(0))).version == versions[-1]
        assert sorted(set(versions)) == versions

    async def test_plan_starts_attempt(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        stored = await stores.runs.get(run)
        assert attempt == attempt_id(run, 1)
        assert stored.phase is RunPhase.STARTING
        assert stored.attempt is not None
        assert (stored.attempt.number, stored.attempt.phase, stored.attempt.engine) == (1, "starting", ENGINE)
        assert (stored.attempt.nodes, stored.attempt.gpus, stored.attempt.placed_at) == (
            ("n1",),
            ((),),
            time_at(0),
        )
        assert await stores.cluster.replicas(attempt) == AttemptStatus(attempt, ())

    async def test_only_fitting_gangs_of_plan_start(self, stores: ClusterStores) -> None:
        await record_observation(
            stores, nodes=[make_node(cpus=4, memory_gib=8, gpus=2), make_node("down", ready=False)]
        )
        requests: list[tuple[Resources, tuple[ReplicaPlace, ...]]] = [
            (Resources(3000, GIB), ("n1",)),
            (Resources(2000, GIB), ("n1",)),  # CPUs
            (Resources(100, 8 * GIB), ("n1",)),  # memory
            (Resources(100, GIB, 1), (("n1", (0,)),)),
            (Resources(100, GIB, 1), (("n1", (0,)),)),  # the GPU is in use
            (Resources(100, GIB, 1), (("n1", ()),)),  # no GPU is assigned
            (Resources(100, GIB, 1, ("A100",)), (("n1", (1,)),)),  # another model
            (Resources(100, GIB), ("down",)),
            (Resources(100, GIB), ("nowhere",)),
            (Resources(100, GIB), ("n1", "n1")),  # more assignments than replicas
            (Resources(100, GIB, 1, ("t4",)), (("n1", (1,)),)),
        ]
        runs = [await submit_run(stores, resources=resources) for resources, _ in requests]
        snapshot = await stores.cluster.snapshot(now=time_at(0))
        plan = [
            make_placement(pending_gang(snapshot, run.id), *where)
            for run, (_, where) in zip(runs, requests, strict=True)
        ]
        result = await apply_placements(stores, *plan)
        assert [runs.index(run) for run in runs if GangId(run.id) in result.applied] == [0, 3, 10]
        assert set(result.rejected) == {GangId(run.id) for run in runs} - set(result.applied)
        assert all(result.rejected.values())
        repeated = await apply_placements(stores, *plan)
        assert repeated.applied == ()

    async def test_capacity_of_live_attempt_is_not_reused(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node(cpus=2, gpus=2)])
        resources = Resources(1000, GIB, 1)
        runs = [await submit_run(stores, resources=resources) for _ in range(3)]
        gangs = [pending_gang(await stores.cluster.snapshot(now=time_at(0)), run.id) for run in runs]
        attempt = await start_run(stores, runs[0].id, ("n1", (1,)))
        assert (await apply_placements(stores, make_placement(gangs[1], ("n1", (1,))))).applied == ()
        assert (await apply_placements(stores, make_placement(gangs[1], ("n1", (0,))))).applied == (
            gangs[1].id,
        )
        await stores.cluster.request_stop(runs[0].id, now=time_at(1))  # in use until it has ended
        assert (await apply_placements(stores, make_placement(gangs[2], ("n1", (1,))))).applied == ()
        await stores.cluster.record_status(exited_status(attempt), now=time_at(2))
        assert (await apply_placements(stores, make_placement(gangs[2], ("n1", (1,))))).applied == (
            gangs[2].id,
        )

    async def test_gang_is_placed_as_a_whole(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node(cpus=3)])
        wide, narrow = await submit_run(stores, replicas=4), await submit_run(stores, replicas=3)
        snapshot = await stores.cluster.snapshot(now=time_at(0))
        result = await apply_placements(
            stores,
            make_placement(pending_gang(snapshot, wide.id), *["n1"] * 4),
            make_placement(pending_gang(snapshot, narrow.id), *["n1"] * 3),
        )
        assert result.applied == (GangId(narrow.id),)

    async def test_concurrent_plans_start_run_once(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node()])
        run = await submit_run(stores)
        plan = make_placement(pending_gang(await stores.cluster.snapshot(now=time_at(0)), run.id), "n1")
        results = await asyncio.gather(*(apply_placements(stores, plan) for _ in range(5)))
        assert sum(result.applied == (GangId(run.id),) for result in results) == 1
        assert len(await stores.runs.attempts(run.id)) == 1

    async def test_holds_are_stored_while_run_waits(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node()])
        runs = [await submit_run(stores) for _ in range(4)]
        gangs = [GangId(run.id) for run in runs]

        async def hold(*waiting: GangId, detail: str = "waits") -> list[int | None]:
            await record_holds(
                stores,
                *(
                    HoldRecord(gang, HoldReason.BEHIND, detail, position)
                    for position, gang in enumerate(waiting, 1)
                ),
            )
            return [(await stores.runs.get(run.id)).position for run in runs]

        assert await hold(*gangs) == [1, 2, 3, 4]
        await stores.cluster.request_stop(runs[0].id, now=time_at(1))
        assert await hold(*gangs[1:], gangs[0]) == [None, 1, 2, 3]
        assert await hold(gangs[3], gangs[2], gangs[1], detail="other") == [None, 3, 2, 1]
        stored = await stores.runs.get(runs[1].id)
        assert (stored.hold_reason, stored.hold_detail) == ("behind", "other")
        await start_run(stores, runs[1].id)
        stored = await stores.runs.get(runs[1].id)
        assert (stored.position, stored.hold_reason, stored.hold_detail) == (None, "", "")


class LifeCases:
    """The life of a run from start to end."""

    async def test_exit_of_optional_replica_does_not_end_gang(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node()])
        roles = (
            RoleSpec(("python", "lead.py"), "lead"),
            RoleSpec(("python", "work.py"), "work", 2, essential=False),
        )
        run = await submit_run(stores, roles=roles)
        attempt = await start_run(stores, run.id, "n1", "n1", "n1")
        for rank in range(3):
            await stores.cluster.record_status(running_status(attempt, rank), now=time_at(1))
        await stores.cluster.record_status(exited_status(attempt, 1, kind=ExitKind.LOST), now=time_at(2))
        assert await phases(stores, run.id) == ("running", "running")
        assert await stores.cluster.record_status(exited_status(attempt, 0), now=time_at(3)) == RecordResult(
            changed=(run.id,)
        )
        assert await phases(stores, run.id) == ("stopping", "stopping")
        result = await stores.cluster.record_status(
            exited_status(attempt, 2, kind=ExitKind.STOPPED), now=time_at(4)
        )
        assert result.ended == (EndedAttempt(run.id, attempt),)
        assert await phases(stores, run.id) == ("succeeded", "succeeded")

    async def test_run_without_reported_start_has_duration(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await stores.cluster.record_status(exited_status(attempt), now=time_at(3))
        stored = await stores.runs.get(run)
        assert stored.attempt is not None
        assert stored.phase is RunPhase.SUCCEEDED
        assert stored.started_at == stored.attempt.started_at == stored.attempt.placed_at
        assert stored.ended_at == time_at(3)

    async def test_run_succeeds(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        assert await stores.cluster.record_status(preparing_status(attempt), now=time_at(1)) == RecordResult()
        assert await stores.cluster.record_status(running_status(attempt), now=time_at(2)) == RecordResult(
            changed=(run,)
        )
        assert await phases(stores, run) == ("running", "running")
        assert await stores.cluster.record_status(exited_status(attempt), now=time_at(3)) == RecordResult(
            (run,), (EndedAttempt(run, attempt),)
        )
        stored = await stores.runs.get(run)
        assert (stored.phase, stored.started_at, stored.ended_at) == (
            RunPhase.SUCCEEDED,
            time_at(2),
            time_at(3),
        )
        assert stored.exit is not None
        assert stored.exit.is_success
        assert stored.attempt is not None
        assert (stored.attempt.started_at, stored.attempt.ended_at, stored.attempt.exit) == (
            time_at(2),
            time_at(3),
            stored.exit,
        )
        assert await stores.cluster.live_attempts() == {}
        assert (await stores.cluster.snapshot(now=time_at(4))).running == ()

    async def test_repeated_report_changes_nothing(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await stores.cluster.record_status(exited_status(attempt, code=3), now=time_at(1))
        assert (
            await stores.cluster.record_status(exited_status(attempt, code=3), now=time_at(2))
            == RecordResult()
        )
        assert await stores.cluster.record_status(exited_status(attempt), now=time_at(2)) == RecordResult()
        stored = await stores.runs.get(run)
        assert (stored.phase, stored.ended_at) == (RunPhase.FAILED, time_at(1))
        assert stored.exit is not None
        assert stored.exit.code == 3

    async def test_replica_phase_never_goes_back(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, replicas=2)
        await stores.cluster.record_status(exited_status(attempt, 0), now=time_at(1))
        await record_observation(
            stores,
            AttemptStatus(attempt, running_status(attempt, 0).replicas + running_status(attempt, 1).replicas),
            nodes=[make_node()],
        )
        await stores.cluster.record_status(preparing_status(attempt, 1), now=time_at(2))
        await stores.cluster.record_status(exited_status(attempt, 0, code=9), now=time_at(2))
        status = await stores.cluster.replicas(attempt)
        assert status.replicas == exited_status(attempt, 0).replicas + running_status(attempt, 1).replicas
        assert await phases(stores, run) == ("running", "running")

    async def test_gang_runs_and_succeeds_with_all_replicas(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, replicas=3)
        for rank in range(3):
            assert await phases(stores, run) == ("starting", "starting")
            await stores.cluster.record_status(running_status(attempt, rank), now=time_at(1))
        assert await phases(stores, run) == ("running", "running")
        await stores.cluster.record_status(running_status(attempt, 3), now=time_at(1))  # no such rank
        for rank in range(3):
            assert await phases(stores, run) == ("running", "running")
            await stores.cluster.record_status(exited_status(attempt, rank), now=time_at(2))
        assert await phases(stores, run) == ("succeeded", "succeeded")

    async def test_failed_replica_stops_gang_and_is_named(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, replicas=2)
        changed = await stores.cluster.record_status(
            exited_status(attempt, 1, code=137, kind=ExitKind.OUT_OF_MEMORY), now=time_at(1)
        )
        assert changed == RecordResult(changed=(run,))
        assert await phases(stores, run) == ("stopping", "stopping")
        assert await stores.cluster.live_attempts() == {attempt: "stopping"}
        await stores.cluster.record_status(
            exited_status(attempt, 0, code=143, kind=ExitKind.PEER_FAILED), now=time_at(2)
        )
        stored = await stores.runs.get(run)
        assert stored.phase is RunPhase.FAILED
        assert stored.exit is not None
        assert (stored.exit.kind, stored.exit.code) == (ExitKind.OUT_OF_MEMORY, 137)
        assert "replica 1" in stored.exit.reason

    async def test_report_of_unknown_attempt_is_ignored(self, stores: ClusterStores) -> None:
        assert (
            await stores.cluster.record_status(running_status(AttemptId("missing.1")), now=time_at(0))
            == RecordResult()
        )
        assert await record_observation(stores, running_status(AttemptId("missing.1"))) == RecordResult()
        with pytest.raises(NotFound):
            await stores.cluster.replicas(AttemptId("missing.1"))

    async def test_engine_changes_only_its_own_attempts(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await record_observation(stores, running_status(attempt), nodes=[make_node()])
        other = Observation((), (exited_status(attempt, code=1),))
        assert await stores.cluster.record_observation("another", other, now=time_at(1)) == RecordResult()
        assert await phases(stores, run) == ("running", "running")


def _saved(run: RunId, number: int, step: int) -> Checkpoint:
    return Checkpoint(
        run, attempt_id(run, number), 0, step, make_digest(f"{number} {step}"), 1, time_at(step)
    )


class LossCases:
    """Lost attempts, and late reports about them."""

    async def test_missing_running_attempt_is_lost_and_run_requeued(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        later = await submit_run(stores, now=time_at(1))
        await record_observation(stores, running_status(attempt), nodes=[make_node()])
        assert await record_observation(stores, nodes=[make_node()], seconds=5) == RecordResult(
            (run,), (EndedAttempt(run, attempt),), (run,)
        )
        stored = await stores.runs.get(run)
        assert (stored.phase, stored.exit, stored.ended_at, stored.submitted_at) == (
            RunPhase.QUEUED,
            None,
            None,
            time_at(0),
        )
        assert stored.attempt is not None
        assert stored.attempt.phase == AttemptPhase.LOST
        assert stored.attempt.exit is not None
        assert stored.attempt.exit.kind is ExitKind.LOST
        pending = (await stores.cluster.snapshot(now=time_at(6))).pending
        assert {gang.id: gang.submitted_at for gang in pending} == {
            GangId(run): time_at(0),
            GangId(later.id): time_at(1),
        }
        assert await start_run(stores, run, seconds=7) == attempt_id(run, 2)

    async def test_run_does_not_resume_from_late_checkpoint_of_superseded_attempt(
        self, stores: ClusterStores
    ) -> None:
        """The first attempt survives where its engine is unreachable, and reports its checkpoints after those
        of later attempts."""
        run, attempt = await started_run(stores, max_attempts=20)
        await stores.runs.record_checkpoint(_saved(run, 1, 5))
        # hours apart, because the backoff of a run grows with each loss
        for number in range(2, 12):
            await stores.cluster.record_status(running_status(attempt), now=time_at(3600 * number))
            await record_observation(stores, nodes=[make_node()], seconds=3600 * number + 1)
            attempt = await start_run(stores, run, seconds=3600 * (number + 1))
            if number in (2, 9, 10):
                await stores.runs.record_checkpoint(_saved(run, number, number * 10))
                await stores.runs.record_checkpoint(_saved(run, 1, 1000 - number))
        resumed = [attempt.resumed_from_step for attempt in await stores.runs.attempts(run)]
        assert resumed == [None, 5, *[20] * 7, 90, 100]
        assert [saved.step for saved in await stores.runs.checkpoints(run)] == [5, 998, 991, 990, 20, 90, 100]
        (saved,) = (await stores.runs.checkpoints_of([run])).values()
        assert saved[-1].step == 100

    async def test_superseded_attempt_cannot_change_run(self, stores: ClusterStores) -> None:
        run, first = await started_run(stores)
        await stores.cluster.record_status(running_status(first), now=time_at(1))

        async def report(attempt: AttemptId, text: str) -> None:
            await stores.runs.record_params(run, {"p": text}, attempt=attempt)
            await stores.runs.record_summary(run, {text: 1.0}, attempt=attempt)
            await stores.runs.record_metrics(run, {text: (1, 1.0)}, attempt=attempt)
            await stores.runs.record_artifact(run, make_digest(text), attempt=attempt)
            await stores.runs.record_run_folder(run, make_digest(text), 1, attempt=attempt)
            await stores.runs.record_lock(run, make_digest(text), {text: "1"}, attempt=attempt)

        await report(first, "first")
        await record_observation(stores, nodes=[make_node()], seconds=2)
        await report(first, "ended")  # the attempt ended and no later one exists, so its last reports count
        second = await start_run(stores, run, seconds=3)
        await report(second, "second")
        current = await stores.runs.get(run)
        for record in (
            stores.runs.record_params(run, {"p": "late"}, attempt=first),
            stores.runs.record_summary(run, {"late": 1.0}, attempt=first),
            stores.runs.record_metrics(run, {"late": (1, 1.0)}, attempt=first, replace_all=True),
            stores.runs.record_artifact(run, make_digest("late"), attempt=first),
            stores.runs.record_run_folder(run, make_digest("late"), 2, attempt=first),
            stores.runs.record_lock(run, make_digest("late"), {}, attempt=first),
            stores.runs.record_packages(run, {"late": "1"}, attempt=first),
        ):
            with pytest.raises(Conflict, match=f"attempt 1 of run {run} is superseded by attempt 2"):
                await record
        assert await stores.cluster.record_status(exited_status(first), now=time_at(4)) == RecordResult()
        assert await stores.runs.get(run) == current
        assert current.artifact == make_digest("second")
        assert set((await stores.runs.latest_metrics([run]))[run]) == {"first", "ended", "second"}

    async def test_missing_starting_attempt_is_not_lost(self, stores: ClusterStores) -> None:
        run, _ = await started_run(stores)
        assert await record_observation(stores, nodes=[make_node()]) == RecordResult()
        assert await phases(stores, run) == ("starting", "starting")

    async def test_attempt_launched_after_observation_is_not_lost(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await record_observation(stores, running_status(attempt), nodes=[make_node()])
        observation = Observation((make_node(),))
        assert (
            await stores.cluster.record_observation(ENGINE, observation, now=time_at(1), launched=set())
            == RecordResult()
        )
        assert await phases(stores, run) == ("running", "running")
        recorded = await stores.cluster.record_observation(
            ENGINE, observation, now=time_at(2), launched={attempt}
        )
        assert [ended.attempt for ended in recorded.ended] == [attempt]

    async def test_incomplete_observation_loses_no_attempt(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await record_observation(stores, running_status(attempt), nodes=[make_node()])
        await stores.cluster.record_observation(ENGINE, Observation(()), now=time_at(1), complete=False)
        assert await phases(stores, run) == ("running", "running")
        assert await stores.cluster.nodes() == [make_node()]
        await stores.cluster.record_observation(
            ENGINE, Observation((), (exited_status(attempt),)), now=time_at(2), complete=False
        )
        assert await phases(stores, run) == ("succeeded", "succeeded")

    async def test_late_report_of_earlier_attempt_is_ignored(self, stores: ClusterStores) -> None:
        run, first = await started_run(stores)
        await record_observation(stores, running_status(first), nodes=[make_node()])
        await record_observation(
            stores, exited_status(first, kind=ExitKind.LOST, code=1), nodes=[make_node()]
        )
        assert await stores.cluster.record_status(exited_status(first), now=time_at(2)) == RecordResult()
        assert await phases(stores, run) == ("queued", "lost")
        second = await start_run(stores, run, seconds=3)
        for report in (running_status(first), exited_status(first), exited_status(first, code=1)):
            assert await stores.cluster.record_status(report, now=time_at(4)) == RecordResult()
            assert await record_observation(stores, report, nodes=[make_node()]) == RecordResult()
        assert await stores.cluster.fail_launch(first, "late", now=time_at(4)) == RecordResult()
        assert await phases(stores, run) == ("starting", "starting")
        assert await stores.cluster.live_attempts() == {second: "starting"}

    async def test_run_fails_after_max_attempts(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, max_attempts=2)
        assert (await stores.cluster.fail_launch(attempt, "no space for it", now=time_at(1))).requeued == (
            run,
        )
        second = await start_run(stores, run, seconds=2)
        ended = await stores.cluster.fail_launch(second, "no space for it", now=time_at(3))
        assert ended == RecordResult((run,), (EndedAttempt(run, second),))
        stored = await stores.runs.get(run)
        assert (stored.phase, stored.ended_at) == (RunPhase.FAILED, time_at(3))
        assert stored.exit is not None
        assert stored.exit.kind is ExitKind.LOST
        assert (
            stored.exit.reason
            == "no space for it; no further retry after the 2nd loss in a row without a newer checkpoint"
        )

    async def test_new_checkpoints_of_the_script_reset_the_losses(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, max_attempts=2)
        folders = (("one", True), ("two", True), ("log", False))
        for number, (text, progress) in enumerate(folders):
            if number:
                attempt = await start_run(stores, run, seconds=2 * number)
            for _ in range(2):  # a repeated report is no progress
                await stores.runs.record_run_folder(
                    run, make_digest(text), 1, attempt=attempt, progress=progress
                )
            await stores.cluster.fail_launch(attempt, "gone", now=time_at(2 * number + 1))
            expected = RunPhase.FAILED if number == 2 else RunPhase.QUEUED
            assert (await stores.runs.get(run)).phase is expected, "other files are no progress"

    async def test_next_attempt_resumes_from_newest_checkpoint(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, resume=ResumeFrom(RunId("other"), 3, make_digest("three")))
        assert (await stores.runs.attempts(run))[0].resumed_from_step == 3
        for step in (20, 10):
            await stores.runs.record_checkpoint(
                Checkpoint(run, attempt, 0, step, make_digest("c"), 1, time_at(step))
            )
        await stores.cluster.fail_launch(attempt, "gone", now=time_at(1))
        await start_run(stores, run, seconds=2)
        assert [saved.resumed_from_step for saved in await stores.runs.attempts(run)] == [3, 10]

    async def test_missing_node_is_not_ready(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node(), make_node("n2")])
        await record_observation(stores, nodes=[make_node(cpus=2)])
        assert await stores.cluster.nodes() == [make_node(cpus=2), make_node("n2", ready=False)]


class StopCases:
    """A user requests a stop."""

    async def test_waiting_run_is_cancelled_at_once(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores)).id
        assert await stores.cluster.request_stop(run, now=time_at(1)) == RecordResult(changed=(run,))
        stored = await stores.runs.get(run)
        assert (stored.phase, stored.ended_at, stored.stop_requested) == (
            RunPhase.CANCELLED,
            time_at(1),
            True,
        )
        assert (await stores.cluster.snapshot(now=time_at(2))).pending == ()
        assert await stores.cluster.request_stop(run, now=time_at(2)) == RecordResult()
        with pytest.raises(NotFound):
            await stores.cluster.request_stop(RunId("missing"), now=time_at(1))

    @pytest.mark.parametrize(
        ("code", "kind", "expected"),
        [
            (143, ExitKind.STOPPED, ("cancelled", "stopped")),
            (1, ExitKind.LOST, ("cancelled", "lost")),
            (0, ExitKind.EXIT_CODE, ("succeeded", "succeeded")),
            (3, ExitKind.EXIT_CODE, ("failed", "failed")),
        ],
    )
    async def test_stopped_run_ends_with_its_exit(
        self, stores: ClusterStores, code: int, kind: ExitKind, expected: tuple[str, str]
    ) -> None:
        run, attempt = await started_run(stores)
        await record_observation(stores, running_status(attempt), nodes=[make_node()])
        assert await stores.cluster.request_stop(run, now=time_at(1)) == RecordResult(changed=(run,))
        assert await phases(stores, run) == ("stopping", "stopping")
        assert await stores.cluster.record_status(running_status(attempt), now=time_at(2)) == RecordResult()
        await stores.cluster.record_status(exited_status(attempt, code=code, kind=kind), now=time_at(3))
        assert await phases(stores, run) == expected

    async def test_stop_before_start_is_reported(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await stores.cluster.request_stop(run, now=time_at(1))
        assert await stores.cluster.record_status(running_status(attempt), now=time_at(2)) == RecordResult()
        assert await phases(stores, run) == ("stopping", "stopping")
        assert (await stores.cluster.fail_launch(attempt, "never started", now=time_at(3))).changed == (run,)
        assert await phases(stores, run) == ("cancelled", "lost")

    async def test_order_of_a_stop_is_stored_until_the_attempt_ends(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        other, _ = await started_run(stores)
        assert await stores.cluster.stop_orders() == {}
        await stores.cluster.request_stop(run, StopOrder.for_request(60.0, "INT"), now=time_at(1))
        await stores.cluster.request_stop(other, StopOrder.for_preemption(3600.0), now=time_at(1))
        await stores.cluster.request_stop(run, StopOrder(30.0), now=time_at(2))
        assert await stores.cluster.stop_orders() == {
            attempt: StopOrder.for_request(60.0, "INT").merged_with(StopOrder(30.0)),
            attempt_id(other, 1): StopOrder.for_preemption(3600.0),
        }
        await stores.cluster.record_status(exited_status(attempt), now=time_at(3))
        assert set(await stores.cluster.stop_orders()) == {attempt_id(other, 1)}

    async def test_missing_stopping_attempt_has_ended(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await record_observation(stores, running_status(attempt), nodes=[make_node()])
        await stores.cluster.request_stop(run, now=time_at(1))
        await record_observation(stores, nodes=[make_node()], seconds=2)
        assert await phases(stores, run) == ("cancelled", "lost")

    async def test_unrequested_stop_requeues_run(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await stores.cluster.record_status(
            exited_status(attempt, code=143, kind=ExitKind.STOPPED), now=time_at(1)
        )
        assert await phases(stores, run) == ("queued", "stopped")

    async def test_stop_of_failing_gang(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, replicas=2)
        await stores.cluster.record_status(
            exited_status(attempt, 0, kind=ExitKind.LOST, code=1), now=time_at(1)
        )
        assert await stores.cluster.request_stop(run, now=time_at(2)) == RecordResult()
        await stores.cluster.record_status(
            exited_status(attempt, 1, kind=ExitKind.STOPPED, code=143), now=time_at(3)
        )
        assert await phases(stores, run) == ("cancelled", "lost")
