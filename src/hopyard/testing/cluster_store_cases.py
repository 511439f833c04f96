"""What every ClusterStore does."""

from __future__ import annotations

import asyncio

import pytest

from hopyard.domain.attempt import AttemptPhase, AttemptStatus, ExitKind
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.cluster import Hold, HoldReason, Observation
from hopyard.domain.ids import AttemptId, GangId, NodeId, QueueName, RunId, attempt_id
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
    """The phase of the run and of its newest attempt."""
    found = await stores.runs.get(run)
    return found.phase.value, None if found.attempt is None else found.attempt.phase


class PlanCases:
    """Snapshots, and plans that are checked once more."""

    async def test_a_snapshot_shows_what_waits_and_what_runs(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node(gpus=2), make_node("n2", ready=False)])
        waits = await submit_run(stores, user="bob", priority=7, queue="q", now=time_at(1))
        runs = await submit_run(stores, replicas=2, resources=Resources(500, GIB, 1))
        attempt = await start_run(stores, runs.id, ("n1", (1,)), ("n1", (0,)))
        snapshot = await stores.cluster.snapshot(now=time_at(2))
        assert dict(snapshot.nodes) == {
            NodeId("n1"): make_node(gpus=2),
            NodeId("n2"): make_node("n2", ready=False),
        }
        (gang,) = snapshot.pending
        assert (gang.id, gang.submitted_at, gang.queue, gang.priority, gang.user) == (
            GangId(waits.id),
            time_at(1),
            QueueName("q"),
            7,
            "bob",
        )
        (running,) = snapshot.running
        placement = running.placement
        assert (placement.gang.id, placement.gang.size) == (GangId(runs.id), 2)
        assert [(a.rank, a.node, a.gpus) for a in placement.assignments] == [(0, "n1", (1,)), (1, "n1", (0,))]
        assert await stores.cluster.live_attempts() == {attempt: "starting"}
        assert await stores.cluster.nodes() == [make_node(gpus=2), make_node("n2", ready=False)]

    async def test_the_version_moves_with_what_a_policy_sees(self, stores: ClusterStores) -> None:
        seen = [(await stores.cluster.snapshot(now=time_at(0))).version]
        for change in (
            record_observation(stores, nodes=[make_node()]),
            submit_run(stores),
            submit_run(stores),
        ):
            await change
            seen.append((await stores.cluster.snapshot(now=time_at(0))).version)
        await record_observation(stores, nodes=[make_node()])
        assert (await stores.cluster.snapshot(now=time_at(0))).version == seen[-1]
        assert sorted(set(seen)) == seen

    async def test_apply_starts_an_attempt(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        found = await stores.runs.get(run)
        assert attempt == attempt_id(run, 1)
        assert found.phase is RunPhase.STARTING
        assert found.attempt is not None
        assert (found.attempt.number, found.attempt.phase, found.attempt.engine) == (1, "starting", ENGINE)
        assert (found.attempt.nodes, found.attempt.gpus, found.attempt.placed_at) == (
            ("n1",),
            ((),),
            time_at(0),
        )
        assert await stores.cluster.replicas(attempt) == AttemptStatus(attempt, ())

    async def test_what_no_longer_fits_is_rejected_and_the_rest_committed(
        self, stores: ClusterStores
    ) -> None:
        await record_observation(
            stores, nodes=[make_node(cpus=4, memory_gib=8, gpus=2), make_node("down", ready=False)]
        )
        asks: list[tuple[Resources, tuple[ReplicaPlace, ...]]] = [
            (Resources(3000, GIB), ("n1",)),
            (Resources(2000, GIB), ("n1",)),  # CPUs
            (Resources(100, 8 * GIB), ("n1",)),  # memory
            (Resources(100, GIB, 1), (("n1", (0,)),)),
            (Resources(100, GIB, 1), (("n1", (0,)),)),  # the GPU is taken
            (Resources(100, GIB, 1), (("n1", ()),)),  # none is named
            (Resources(100, GIB, 1, ("A100",)), (("n1", (1,)),)),  # another model
            (Resources(100, GIB), ("down",)),
            (Resources(100, GIB), ("nowhere",)),
            (Resources(100, GIB), ("n1", "n1")),  # more places than replicas
            (Resources(100, GIB, 1, ("t4",)), (("n1", (1,)),)),
        ]
        runs = [await submit_run(stores, resources=resources) for resources, _ in asks]
        snapshot = await stores.cluster.snapshot(now=time_at(0))
        plan = [
            make_placement(pending_gang(snapshot, run.id), *where)
            for run, (_, where) in zip(runs, asks, strict=True)
        ]
        result = await apply_placements(stores, *plan)
        assert [runs.index(run) for run in runs if GangId(run.id) in result.applied] == [0, 3, 10]
        assert set(result.rejected) == {GangId(run.id) for run in runs} - set(result.applied)
        assert all(result.rejected.values())
        again = await apply_placements(stores, *plan)
        assert again.applied == ()

    async def test_what_a_live_attempt_holds_is_not_given_again(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node(cpus=2, gpus=2)])
        asks = Resources(1000, GIB, 1)
        runs = [await submit_run(stores, resources=asks) for _ in range(3)]
        gangs = [pending_gang(await stores.cluster.snapshot(now=time_at(0)), run.id) for run in runs]
        attempt = await start_run(stores, runs[0].id, ("n1", (1,)))
        assert (await apply_placements(stores, make_placement(gangs[1], ("n1", (1,))))).applied == ()
        assert (await apply_placements(stores, make_placement(gangs[1], ("n1", (0,))))).applied == (
            gangs[1].id,
        )
        await stores.cluster.request_stop(runs[0].id, now=time_at(1))  # held until it has ended
        assert (await apply_placements(stores, make_placement(gangs[2], ("n1", (1,))))).applied == ()
        await stores.cluster.record_status(exited_status(attempt), now=time_at(2))
        assert (await apply_placements(stores, make_placement(gangs[2], ("n1", (1,))))).applied == (
            gangs[2].id,
        )

    async def test_a_gang_is_placed_whole_or_not_at_all(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node(cpus=3)])
        wide, narrow = await submit_run(stores, replicas=4), await submit_run(stores, replicas=3)
        snapshot = await stores.cluster.snapshot(now=time_at(0))
        result = await apply_placements(
            stores,
            make_placement(pending_gang(snapshot, wide.id), *["n1"] * 4),
            make_placement(pending_gang(snapshot, narrow.id), *["n1"] * 3),
        )
        assert result.applied == (GangId(narrow.id),)

    async def test_stale_plans_start_a_run_once(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node()])
        run = await submit_run(stores)
        plan = make_placement(pending_gang(await stores.cluster.snapshot(now=time_at(0)), run.id), "n1")
        results = await asyncio.gather(*(apply_placements(stores, plan) for _ in range(5)))
        assert sum(result.applied == (GangId(run.id),) for result in results) == 1
        assert len(await stores.runs.attempts(run.id)) == 1

    async def test_holds_are_told_while_a_run_waits(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node()])
        runs = [await submit_run(stores) for _ in range(4)]
        gangs = [GangId(run.id) for run in runs]

        async def hold(*waiting: GangId, detail: str = "waits") -> list[int | None]:
            await record_holds(
                stores, *(Hold(gang, HoldReason.BEHIND, detail, at) for at, gang in enumerate(waiting, 1))
            )
            return [(await stores.runs.get(run.id)).position for run in runs]

        assert await hold(*gangs) == [1, 2, 3, 4]
        await stores.cluster.request_stop(runs[0].id, now=time_at(1))
        assert await hold(*gangs[1:], gangs[0]) == [None, 1, 2, 3]
        assert await hold(gangs[3], gangs[2], gangs[1], detail="other") == [None, 3, 2, 1]
        found = await stores.runs.get(runs[1].id)
        assert (found.hold_reason, found.hold_detail) == ("behind", "other")
        await start_run(stores, runs[1].id)
        found = await stores.runs.get(runs[1].id)
        assert (found.position, found.hold_reason, found.hold_detail) == (None, "", "")


class LifeCases:
    """From start to end."""

    async def test_a_replica_that_is_not_essential_decides_nothing(self, stores: ClusterStores) -> None:
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
        told = await stores.cluster.record_status(
            exited_status(attempt, 2, kind=ExitKind.STOPPED), now=time_at(4)
        )
        assert told.ended == (EndedAttempt(run.id, attempt),)
        assert await phases(stores, run.id) == ("succeeded", "succeeded")

    async def test_a_run_that_ends_before_it_was_heard_of_has_a_duration(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await stores.cluster.record_status(exited_status(attempt), now=time_at(3))
        found = await stores.runs.get(run)
        assert found.attempt is not None
        assert found.phase is RunPhase.SUCCEEDED
        assert found.started_at == found.attempt.started_at == found.attempt.placed_at
        assert found.ended_at == time_at(3)

    async def test_a_run_that_succeeds(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        assert await stores.cluster.record_status(preparing_status(attempt), now=time_at(1)) == RecordResult()
        assert await stores.cluster.record_status(running_status(attempt), now=time_at(2)) == RecordResult(
            changed=(run,)
        )
        assert await phases(stores, run) == ("running", "running")
        assert await stores.cluster.record_status(exited_status(attempt), now=time_at(3)) == RecordResult(
            (run,), (EndedAttempt(run, attempt),)
        )
        found = await stores.runs.get(run)
        assert (found.phase, found.started_at, found.ended_at) == (RunPhase.SUCCEEDED, time_at(2), time_at(3))
        assert found.exit is not None
        assert found.exit.is_success
        assert found.attempt is not None
        assert (found.attempt.started_at, found.attempt.ended_at, found.attempt.exit) == (
            time_at(2),
            time_at(3),
            found.exit,
        )
        assert await stores.cluster.live_attempts() == {}
        assert (await stores.cluster.snapshot(now=time_at(4))).running == ()

    async def test_the_same_news_twice_changes_nothing(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await stores.cluster.record_status(exited_status(attempt, code=3), now=time_at(1))
        assert (
            await stores.cluster.record_status(exited_status(attempt, code=3), now=time_at(2))
            == RecordResult()
        )
        assert await stores.cluster.record_status(exited_status(attempt), now=time_at(2)) == RecordResult()
        found = await stores.runs.get(run)
        assert (found.phase, found.ended_at) == (RunPhase.FAILED, time_at(1))
        assert found.exit is not None
        assert found.exit.code == 3

    async def test_a_replica_never_goes_back(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, replicas=2)
        await stores.cluster.record_status(exited_status(attempt, 0), now=time_at(1))
        await record_observation(
            stores,
            AttemptStatus(attempt, running_status(attempt, 0).replicas + running_status(attempt, 1).replicas),
            nodes=[make_node()],
        )
        await stores.cluster.record_status(preparing_status(attempt, 1), now=time_at(2))
        await stores.cluster.record_status(exited_status(attempt, 0, code=9), now=time_at(2))
        told = await stores.cluster.replicas(attempt)
        assert told.replicas == exited_status(attempt, 0).replicas + running_status(attempt, 1).replicas
        assert await phases(stores, run) == ("running", "running")

    async def test_a_gang_runs_when_all_run_and_succeeds_when_all_did(self, stores: ClusterStores) -> None:
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

    async def test_one_bad_replica_stops_the_gang_and_is_blamed(self, stores: ClusterStores) -> None:
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
        found = await stores.runs.get(run)
        assert found.phase is RunPhase.FAILED
        assert found.exit is not None
        assert (found.exit.kind, found.exit.code) == (ExitKind.OUT_OF_MEMORY, 137)
        assert "replica 1" in found.exit.reason

    async def test_news_of_nothing_known_is_ignored(self, stores: ClusterStores) -> None:
        assert (
            await stores.cluster.record_status(running_status(AttemptId("nobody.1")), now=time_at(0))
            == RecordResult()
        )
        assert await record_observation(stores, running_status(AttemptId("nobody.1"))) == RecordResult()
        with pytest.raises(NotFound):
            await stores.cluster.replicas(AttemptId("nobody.1"))

    async def test_an_engine_speaks_only_of_its_own_attempts(self, stores: ClusterStores) -> None:
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
    """Attempts that vanish, and late news of them."""

    async def test_a_running_attempt_that_is_not_seen_is_lost_and_its_run_waits_again(
        self, stores: ClusterStores
    ) -> None:
        run, attempt = await started_run(stores)
        later = await submit_run(stores, now=time_at(1))
        await record_observation(stores, running_status(attempt), nodes=[make_node()])
        assert await record_observation(stores, nodes=[make_node()], seconds=5) == RecordResult(
            (run,), (EndedAttempt(run, attempt),), (run,)
        )
        found = await stores.runs.get(run)
        assert (found.phase, found.exit, found.ended_at, found.submitted_at) == (
            RunPhase.QUEUED,
            None,
            None,
            time_at(0),
        )
        assert found.attempt is not None
        assert found.attempt.phase == AttemptPhase.LOST
        assert found.attempt.exit is not None
        assert found.attempt.exit.kind is ExitKind.LOST
        pending = (await stores.cluster.snapshot(now=time_at(6))).pending
        assert {gang.id: gang.submitted_at for gang in pending} == {
            GangId(run): time_at(0),
            GangId(later.id): time_at(1),
        }
        assert await start_run(stores, run, seconds=7) == attempt_id(run, 2)

    async def test_a_late_checkpoint_of_a_superseded_attempt_is_not_resumed_from(
        self, stores: ClusterStores
    ) -> None:
        """The first attempt lives on where its engine cannot be reached, and tells of what it saved when
        others came after it."""
        run, attempt = await started_run(stores, max_attempts=20)
        await stores.runs.record_checkpoint(_saved(run, 1, 5))
        # hours apart: a run that is lost again and again is put back for longer and longer
        for number in range(2, 12):
            await stores.cluster.record_status(running_status(attempt), now=time_at(3600 * number))
            await record_observation(stores, nodes=[make_node()], seconds=3600 * number + 1)
            attempt = await start_run(stores, run, seconds=3600 * (number + 1))
            if number in (2, 9, 10):
                await stores.runs.record_checkpoint(_saved(run, number, number * 10))
                await stores.runs.record_checkpoint(_saved(run, 1, 1000 - number))
        resumed = [one.resumed_from_step for one in await stores.runs.attempts(run)]
        assert resumed == [None, 5, *[20] * 7, 90, 100]
        assert [one.step for one in await stores.runs.checkpoints(run)] == [5, 998, 991, 990, 20, 90, 100]
        assert await stores.runs.newest_steps([run]) == {run: 100}

    async def test_a_superseded_attempt_changes_nothing_of_its_run(self, stores: ClusterStores) -> None:
        run, first = await started_run(stores)
        await stores.cluster.record_status(running_status(first), now=time_at(1))

        async def say(attempt: AttemptId, text: str) -> None:
            await stores.runs.record_params(run, {"p": text}, attempt=attempt)
            await stores.runs.record_summary(run, {text: 1.0}, attempt=attempt)
            await stores.runs.record_metrics(run, {text: (1, 1.0)}, attempt=attempt)
            await stores.runs.record_artifact(run, make_digest(text), attempt=attempt)
            await stores.runs.record_lock(run, make_digest(text), {text: "1"}, attempt=attempt)

        await say(first, "first")
        await record_observation(stores, nodes=[make_node()], seconds=2)
        await say(first, "ended")  # over, and nothing has come after it: these are its last words
        second = await start_run(stores, run, seconds=3)
        await say(second, "second")
        known = await stores.runs.get(run)
        for record in (
            stores.runs.record_params(run, {"p": "late"}, attempt=first),
            stores.runs.record_summary(run, {"late": 1.0}, attempt=first),
            stores.runs.record_metrics(run, {"late": (1, 1.0)}, attempt=first, replace_all=True),
            stores.runs.record_artifact(run, make_digest("late"), attempt=first),
            stores.runs.record_lock(run, make_digest("late"), {}, attempt=first),
        ):
            with pytest.raises(Conflict, match=f"attempt 1 of run {run} is superseded by attempt 2"):
                await record
        assert await stores.cluster.record_status(exited_status(first), now=time_at(4)) == RecordResult()
        assert await stores.runs.get(run) == known
        assert known.artifact == make_digest("second")
        assert set((await stores.runs.latest_metrics([run]))[run]) == {"first", "ended", "second"}

    async def test_a_starting_attempt_that_is_not_seen_is_left(self, stores: ClusterStores) -> None:
        run, _ = await started_run(stores)
        assert await record_observation(stores, nodes=[make_node()]) == RecordResult()
        assert await phases(stores, run) == ("starting", "starting")

    async def test_only_what_was_launched_before_the_look_can_be_lost_by_it(
        self, stores: ClusterStores
    ) -> None:
        run, attempt = await started_run(stores)
        await record_observation(stores, running_status(attempt), nodes=[make_node()])
        seen = Observation((make_node(),))
        assert (
            await stores.cluster.record_observation(ENGINE, seen, now=time_at(1), launched=set())
            == RecordResult()
        )
        assert await phases(stores, run) == ("running", "running")
        recorded = await stores.cluster.record_observation(ENGINE, seen, now=time_at(2), launched={attempt})
        assert [one.attempt for one in recorded.ended] == [attempt]

    async def test_an_incomplete_observation_loses_nothing(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await record_observation(stores, running_status(attempt), nodes=[make_node()])
        await stores.cluster.record_observation(ENGINE, Observation(()), now=time_at(1), complete=False)
        assert await phases(stores, run) == ("running", "running")
        assert await stores.cluster.nodes() == [make_node()]
        await stores.cluster.record_observation(
            ENGINE, Observation((), (exited_status(attempt),)), now=time_at(2), complete=False
        )
        assert await phases(stores, run) == ("succeeded", "succeeded")

    async def test_late_news_of_an_old_attempt_is_ignored(self, stores: ClusterStores) -> None:
        run, first = await started_run(stores)
        await record_observation(stores, running_status(first), nodes=[make_node()])
        await record_observation(
            stores, exited_status(first, kind=ExitKind.LOST, code=1), nodes=[make_node()]
        )
        assert await stores.cluster.record_status(exited_status(first), now=time_at(2)) == RecordResult()
        assert await phases(stores, run) == ("queued", "lost")
        second = await start_run(stores, run, seconds=3)
        for news in (running_status(first), exited_status(first), exited_status(first, code=1)):
            assert await stores.cluster.record_status(news, now=time_at(4)) == RecordResult()
            assert await record_observation(stores, news, nodes=[make_node()]) == RecordResult()
        assert await stores.cluster.fail_launch(first, "late", now=time_at(4)) == RecordResult()
        assert await phases(stores, run) == ("starting", "starting")
        assert await stores.cluster.live_attempts() == {second: "starting"}

    async def test_attempts_run_out(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, max_attempts=2)
        assert (await stores.cluster.fail_launch(attempt, "no space for it", now=time_at(1))).requeued == (
            run,
        )
        second = await start_run(stores, run, seconds=2)
        ended = await stores.cluster.fail_launch(second, "no space for it", now=time_at(3))
        assert ended == RecordResult((run,), (EndedAttempt(run, second),))
        found = await stores.runs.get(run)
        assert (found.phase, found.ended_at) == (RunPhase.FAILED, time_at(3))
        assert found.exit is not None
        assert found.exit.kind is ExitKind.LOST
        assert (
            found.exit.reason
            == "no space for it; no further retry after the 2nd loss in a row without a newer checkpoint"
        )

    async def test_the_next_attempt_resumes_from_the_newest_checkpoint(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, resume=ResumeFrom(RunId("other"), 3, make_digest("three")))
        assert (await stores.runs.attempts(run))[0].resumed_from_step == 3
        for step in (20, 10):
            await stores.runs.record_checkpoint(
                Checkpoint(run, attempt, 0, step, make_digest("c"), 1, time_at(step))
            )
        await stores.cluster.fail_launch(attempt, "gone", now=time_at(1))
        await start_run(stores, run, seconds=2)
        assert [one.resumed_from_step for one in await stores.runs.attempts(run)] == [3, 10]

    async def test_a_node_that_is_not_seen_is_not_ready(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node(), make_node("n2")])
        await record_observation(stores, nodes=[make_node(cpus=2)])
        assert await stores.cluster.nodes() == [make_node(cpus=2), make_node("n2", ready=False)]


class StopCases:
    """Somebody wants a run to end."""

    async def test_a_waiting_run_is_cancelled_at_once(self, stores: ClusterStores) -> None:
        run = (await submit_run(stores)).id
        assert await stores.cluster.request_stop(run, now=time_at(1)) == RecordResult(changed=(run,))
        found = await stores.runs.get(run)
        assert (found.phase, found.ended_at, found.stop_requested) == (RunPhase.CANCELLED, time_at(1), True)
        assert (await stores.cluster.snapshot(now=time_at(2))).pending == ()
        assert await stores.cluster.request_stop(run, now=time_at(2)) == RecordResult()
        with pytest.raises(NotFound):
            await stores.cluster.request_stop(RunId("nobody"), now=time_at(1))

    @pytest.mark.parametrize(
        ("code", "kind", "expected"),
        [
            (143, ExitKind.STOPPED, ("cancelled", "stopped")),
            (1, ExitKind.LOST, ("cancelled", "lost")),
            (0, ExitKind.EXIT_CODE, ("succeeded", "succeeded")),
            (3, ExitKind.EXIT_CODE, ("failed", "failed")),
        ],
    )
    async def test_a_live_run_ends_as_it_ends(
        self, stores: ClusterStores, code: int, kind: ExitKind, expected: tuple[str, str]
    ) -> None:
        run, attempt = await started_run(stores)
        await record_observation(stores, running_status(attempt), nodes=[make_node()])
        assert await stores.cluster.request_stop(run, now=time_at(1)) == RecordResult(changed=(run,))
        assert await phases(stores, run) == ("stopping", "stopping")
        assert await stores.cluster.record_status(running_status(attempt), now=time_at(2)) == RecordResult()
        await stores.cluster.record_status(exited_status(attempt, code=code, kind=kind), now=time_at(3))
        assert await phases(stores, run) == expected

    async def test_a_stop_before_the_start_is_known(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await stores.cluster.request_stop(run, now=time_at(1))
        assert await stores.cluster.record_status(running_status(attempt), now=time_at(2)) == RecordResult()
        assert await phases(stores, run) == ("stopping", "stopping")
        assert (await stores.cluster.fail_launch(attempt, "never started", now=time_at(3))).changed == (run,)
        assert await phases(stores, run) == ("cancelled", "lost")

    async def test_a_stopping_attempt_that_is_not_seen_is_over(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await record_observation(stores, running_status(attempt), nodes=[make_node()])
        await stores.cluster.request_stop(run, now=time_at(1))
        await record_observation(stores, nodes=[make_node()], seconds=2)
        assert await phases(stores, run) == ("cancelled", "lost")

    async def test_stopped_though_nobody_asked_is_tried_again(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await stores.cluster.record_status(
            exited_status(attempt, code=143, kind=ExitKind.STOPPED), now=time_at(1)
        )
        assert await phases(stores, run) == ("queued", "stopped")

    async def test_a_stop_of_a_gang_that_fails_already(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, replicas=2)
        await stores.cluster.record_status(
            exited_status(attempt, 0, kind=ExitKind.LOST, code=1), now=time_at(1)
        )
        assert await stores.cluster.request_stop(run, now=time_at(2)) == RecordResult()
        await stores.cluster.record_status(
            exited_status(attempt, 1, kind=ExitKind.STOPPED, code=143), now=time_at(3)
        )
        assert await phases(stores, run) == ("cancelled", "lost")
