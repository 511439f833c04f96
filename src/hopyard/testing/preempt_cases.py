"""Cases of preemptions."""

from __future__ import annotations

import pytest

from hopyard.domain.attempt import AttemptStatus, ExitKind
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.ids import AttemptId, GangId, RunId, attempt_id
from hopyard.domain.plan_record import PreemptionRecord
from hopyard.domain.run import RunEventKind, RunPhase
from hopyard.errors import NotFound
from hopyard.interfaces.cluster_store import EndedAttempt, RecordResult
from hopyard.testing.cluster_store_cases import phases
from hopyard.testing.stores import (
    ClusterStores,
    apply_placements,
    apply_preemption,
    exited_status,
    make_digest,
    make_node,
    pending_gang,
    record_observation,
    running_status,
    start_run,
    started_run,
    submit_run,
    time_at,
)


class PreemptCases:
    """A plan preempts a live attempt; its run is requeued and resumes later."""

    async def test_preempted_run_is_requeued_and_resumes(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await stores.cluster.record_status(running_status(attempt), now=time_at(1))
        await stores.runs.record_checkpoint(
            Checkpoint(run, attempt, 0, 7, make_digest("seven"), 1, time_at(2))
        )
        urgent = (await submit_run(stores)).id
        before = (await stores.cluster.snapshot(now=time_at(3))).version
        result = await apply_preemption(stores, attempt, for_gang=urgent, seconds=3)
        assert (result.preempted, result.applied) == ((attempt,), ())
        assert result.version > before
        assert await phases(stores, run) == ("stopping", "stopping")
        (running,) = (await stores.cluster.snapshot(now=time_at(3))).running
        assert (running.stopping, running.preempted_for, running.started_at, running.saved_at) == (
            True,
            GangId(urgent),
            time_at(1),
            time_at(2),
        )
        assert running.preempt_requested_at == time_at(3)
        stored_attempt = (await stores.runs.get(run)).attempt
        assert stored_attempt is not None
        assert (stored_attempt.preempted_for, stored_attempt.preempt_reason, stored_attempt.saved_at) == (
            urgent,
            "it makes room",
            time_at(2),
        )
        assert [(event.at, event.kind, event.detail) for event in await stores.runs.events(run)] == [
            (time_at(3), RunEventKind.PREEMPTED, "it makes room")
        ]
        requeued = await stores.cluster.record_status(
            exited_status(attempt, code=143, kind=ExitKind.PREEMPTED), now=time_at(5)
        )
        assert requeued == RecordResult((run,), (EndedAttempt(run, attempt),), (run,))
        assert await phases(stores, run) == ("queued", "stopped")
        stored = await stores.runs.get(run)
        assert (stored.submitted_at, stored.exit, stored.ended_at, stored.preemptions, stored.served_s) == (
            time_at(0),
            None,
            None,
            1,
            4.0,
        )
        gang = pending_gang(await stores.cluster.snapshot(now=time_at(6)), run)
        assert (gang.submitted_at, gang.served_s) == (time_at(0), 4.0)
        assert await start_run(stores, run, seconds=7) == attempt_id(run, 2)
        assert [saved.resumed_from_step for saved in await stores.runs.attempts(run)] == [None, 7]
        (resumed,) = (await stores.cluster.snapshot(now=time_at(8))).running
        assert (
            resumed.stopping,
            resumed.preempted_for,
            resumed.saved_at,
            resumed.preempt_requested_at,
        ) == (
            False,
            None,
            None,
            None,
        )

    async def test_time_of_first_stop_request_is_kept(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await stores.cluster.record_status(running_status(attempt), now=time_at(1))
        await apply_preemption(stores, attempt, seconds=3)
        await stores.cluster.request_stop(run, now=time_at(7))
        await stores.runs.record_checkpoint(
            Checkpoint(run, attempt, 0, 7, make_digest("seven"), 1, time_at(8))
        )
        (running,) = (await stores.cluster.snapshot(now=time_at(9))).running
        assert (running.stopping, running.preempt_requested_at, running.saved_at) == (
            True,
            time_at(3),
            time_at(8),
        )

    @pytest.mark.parametrize(
        ("code", "kind", "expected"),
        [
            (143, ExitKind.STOPPED, ("queued", "stopped")),
            (1, ExitKind.LOST, ("queued", "lost")),
            (143, ExitKind.PREEMPTED, ("queued", "stopped")),
            (0, ExitKind.EXIT_CODE, ("succeeded", "succeeded")),
            (3, ExitKind.EXIT_CODE, ("failed", "failed")),
            (137, ExitKind.OUT_OF_MEMORY, ("failed", "failed")),
        ],
    )
    async def test_exit_of_preempted_attempt_decides_phase(
        self, stores: ClusterStores, code: int, kind: ExitKind, expected: tuple[str, str]
    ) -> None:
        """A preemption does not count as a lost attempt, even with max_attempts=1."""
        run, attempt = await started_run(stores, max_attempts=1)
        await stores.cluster.record_status(running_status(attempt), now=time_at(1))
        await apply_preemption(stores, attempt, seconds=2)
        await stores.cluster.record_status(exited_status(attempt, code=code, kind=kind), now=time_at(3))
        assert await phases(stores, run) == expected

    async def test_only_lost_attempts_count(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, max_attempts=2)
        for number in range(2, 6):
            await apply_preemption(stores, attempt, seconds=number)
            await stores.cluster.record_status(
                exited_status(attempt, kind=ExitKind.PREEMPTED), now=time_at(number)
            )
            attempt = await start_run(stores, run, seconds=number)
        assert attempt == attempt_id(run, 5)
        assert (await stores.cluster.fail_launch(attempt, "gone", now=time_at(8))).requeued == (run,)
        last = await start_run(stores, run, seconds=9)
        assert (await stores.cluster.fail_launch(last, "gone", now=time_at(9))).requeued == ()
        assert await phases(stores, run) == ("failed", "lost")

    async def test_missing_preempted_attempt_is_requeued(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, max_attempts=1)
        await stores.cluster.record_status(running_status(attempt), now=time_at(1))
        await apply_preemption(stores, attempt, seconds=2)
        assert (await record_observation(stores, nodes=[make_node()], seconds=3)).requeued == (run,)

    async def test_stop_of_preempted_run_cancels_it(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await apply_preemption(stores, attempt, seconds=1)
        assert await stores.cluster.request_stop(run, now=time_at(2)) == RecordResult()
        assert (await stores.runs.get(run)).stop_requested
        await stores.cluster.record_status(exited_status(attempt, kind=ExitKind.PREEMPTED), now=time_at(3))
        assert await phases(stores, run) == ("cancelled", "stopped")

    @pytest.mark.parametrize(
        ("kind", "expected"),
        [(ExitKind.EXIT_CODE, "queued"), (ExitKind.SIGNAL, "queued"), (ExitKind.TIME_LIMIT, "failed")],
    )
    async def test_failure_after_preempted_peer_counts_as_preemption(
        self, stores: ClusterStores, kind: ExitKind, expected: str
    ) -> None:
        run, attempt = await started_run(stores, replicas=2)
        for rank in range(2):
            await stores.cluster.record_status(running_status(attempt, rank), now=time_at(1))
        await apply_preemption(stores, attempt, seconds=2)
        await stores.cluster.record_status(
            exited_status(attempt, 0, code=143, kind=ExitKind.PREEMPTED), now=time_at(3)
        )
        await stores.cluster.record_status(exited_status(attempt, 1, code=1, kind=kind), now=time_at(3))
        assert (await stores.runs.get(run)).phase == expected

    async def test_some_attempts_are_not_preempted(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, preemptible=False)
        not_preemptible = await apply_preemption(stores, attempt)
        stopped_run = await submit_run(stores)
        other = await start_run(stores, stopped_run.id)
        await stores.cluster.request_stop(stopped_run.id, now=time_at(1))
        stopping = await apply_preemption(stores, other, seconds=1)
        unknown = await apply_preemption(stores, AttemptId("missing.1"), seconds=1)
        assert [result.preempted for result in (not_preemptible, stopping, unknown)] == [(), (), ()]
        assert await phases(stores, run) == ("starting", "starting")
        await stores.cluster.record_status(exited_status(other, kind=ExitKind.STOPPED), now=time_at(2))
        assert await phases(stores, stopped_run.id) == ("cancelled", "stopped")

    async def test_capacity_of_victims_is_free_after_they_end(self, stores: ClusterStores) -> None:
        """The resources of a victim are free only after it has ended."""
        await record_observation(stores, nodes=[make_node(cpus=2)])
        first, second, third = [await submit_run(stores) for _ in range(3)]
        attempts = [await start_run(stores, run.id) for run in (first, second)]
        waiting = (await stores.cluster.snapshot(now=time_at(1))).pending[0]
        preemptions = tuple(
            PreemptionRecord(attempt, GangId(attempt.rpartition(".")[0]), waiting.id, "makes room")
            for attempt in attempts
        )
        result = await apply_placements(stores, preempt=preemptions, seconds=1)
        assert result.preempted == tuple(attempts)
        for seconds, attempt in enumerate(attempts, 2):
            await stores.cluster.record_status(
                exited_status(attempt, kind=ExitKind.PREEMPTED), now=time_at(seconds)
            )
        assert await start_run(stores, third.id, seconds=5) == attempt_id(third.id, 1)

    async def test_preemption_outside_of_plan(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        assert await stores.cluster.request_preempt(
            run, "its node is needed", now=time_at(1)
        ) == RecordResult(changed=(run,))
        assert await stores.cluster.request_preempt(run, "again", now=time_at(1)) == RecordResult()
        (running,) = (await stores.cluster.snapshot(now=time_at(1))).running
        assert (running.stopping, running.preempted_for) == (True, "")
        assert [event.detail for event in await stores.runs.events(run)] == ["its node is needed"]
        await stores.cluster.record_status(exited_status(attempt, kind=ExitKind.STOPPED), now=time_at(2))
        assert await stores.cluster.request_preempt(run, "it waits", now=time_at(3)) == RecordResult()
        assert (await stores.runs.get(run)).phase is RunPhase.QUEUED
        with pytest.raises(NotFound):
            await stores.cluster.request_preempt(RunId("missing"), "why", now=time_at(1))

    async def test_late_report_of_preempted_attempt_is_ignored(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await apply_preemption(stores, attempt, seconds=1)
        exited = exited_status(attempt, kind=ExitKind.PREEMPTED)
        await record_observation(stores, exited, nodes=[make_node()], seconds=2)
        second = await start_run(stores, run, seconds=3)
        for report in (exited, exited_status(attempt), running_status(attempt)):
            assert (
                await record_observation(
                    stores, report, AttemptStatus(second, ()), nodes=[make_node()], seconds=4
                )
                == RecordResult()
            )
        assert await phases(stores, run) == ("starting", "starting")
