"""Making room for others, and what comes of it."""

from __future__ import annotations

import pytest

from hopyard.domain.attempt import AttemptStatus, ExitKind
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.cluster import Preemption
from hopyard.domain.ids import AttemptId, GangId, RunId, attempt_id
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
    """A plan asks a live attempt to end; its run waits again and goes on later."""

    async def test_an_attempt_is_asked_and_its_run_waits_again(self, stores: ClusterStores) -> None:
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
        (seen,) = (await stores.cluster.snapshot(now=time_at(3))).running
        assert (seen.stopping, seen.preempted_for, seen.started_at, seen.saved_at) == (
            True,
            GangId(urgent),
            time_at(1),
            time_at(2),
        )
        assert seen.preempt_requested_at == time_at(3)
        told = (await stores.runs.get(run)).attempt
        assert told is not None
        assert (told.preempted_for, told.preempt_reason, told.saved_at) == (
            urgent,
            "it makes room",
            time_at(2),
        )
        assert [(one.at, one.kind, one.detail) for one in await stores.runs.events(run)] == [
            (time_at(3), RunEventKind.PREEMPTED, "it makes room")
        ]
        left = await stores.cluster.record_status(
            exited_status(attempt, code=143, kind=ExitKind.PREEMPTED), now=time_at(5)
        )
        assert left == RecordResult((run,), (EndedAttempt(run, attempt),), (run,))
        assert await phases(stores, run) == ("queued", "stopped")
        found = await stores.runs.get(run)
        assert (found.submitted_at, found.exit, found.ended_at, found.preemptions, found.served_s) == (
            time_at(0),
            None,
            None,
            1,
            4.0,
        )
        gang = pending_gang(await stores.cluster.snapshot(now=time_at(6)), run)
        assert (gang.submitted_at, gang.served_s) == (time_at(0), 4.0)
        assert await start_run(stores, run, seconds=7) == attempt_id(run, 2)
        assert [one.resumed_from_step for one in await stores.runs.attempts(run)] == [None, 7]
        (again,) = (await stores.cluster.snapshot(now=time_at(8))).running
        assert (again.stopping, again.preempted_for, again.saved_at, again.preempt_requested_at) == (
            False,
            None,
            None,
            None,
        )

    async def test_it_is_told_when_an_attempt_was_asked_first(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await stores.cluster.record_status(running_status(attempt), now=time_at(1))
        await apply_preemption(stores, attempt, seconds=3)
        await stores.cluster.request_stop(run, now=time_at(7))
        await stores.runs.record_checkpoint(
            Checkpoint(run, attempt, 0, 7, make_digest("seven"), 1, time_at(8))
        )
        (seen,) = (await stores.cluster.snapshot(now=time_at(9))).running
        assert (seen.stopping, seen.preempt_requested_at, seen.saved_at) == (True, time_at(3), time_at(8))

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
    async def test_how_it_ends(
        self, stores: ClusterStores, code: int, kind: ExitKind, expected: tuple[str, str]
    ) -> None:
        """It loses none of its attempts: it may have one only."""
        run, attempt = await started_run(stores, max_attempts=1)
        await stores.cluster.record_status(running_status(attempt), now=time_at(1))
        await apply_preemption(stores, attempt, seconds=2)
        await stores.cluster.record_status(exited_status(attempt, code=code, kind=kind), now=time_at(3))
        assert await phases(stores, run) == expected

    async def test_only_lost_attempts_run_out(self, stores: ClusterStores) -> None:
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

    async def test_one_that_is_not_seen_any_more_waits_again(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, max_attempts=1)
        await stores.cluster.record_status(running_status(attempt), now=time_at(1))
        await apply_preemption(stores, attempt, seconds=2)
        assert (await record_observation(stores, nodes=[make_node()], seconds=3)).requeued == (run,)

    async def test_a_user_who_stops_it_has_the_last_word(self, stores: ClusterStores) -> None:
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
    async def test_who_loses_a_peer_that_left_was_preempted_too(
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

    async def test_some_are_not_asked(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, preemptible=False)
        stays = await apply_preemption(stores, attempt)
        waits = await submit_run(stores)
        other = await start_run(stores, waits.id)
        await stores.cluster.request_stop(waits.id, now=time_at(1))
        stopping = await apply_preemption(stores, other, seconds=1)
        unknown = await apply_preemption(stores, AttemptId("nobody.1"), seconds=1)
        assert [result.preempted for result in (stays, stopping, unknown)] == [(), (), ()]
        assert await phases(stores, run) == ("starting", "starting")
        await stores.cluster.record_status(exited_status(other, kind=ExitKind.STOPPED), now=time_at(2))
        assert await phases(stores, waits.id) == ("cancelled", "stopped")

    async def test_victims_and_newcomers_of_one_plan(self, stores: ClusterStores) -> None:
        """What a victim holds is not free before it has ended."""
        await record_observation(stores, nodes=[make_node(cpus=2)])
        first, second, third = [await submit_run(stores) for _ in range(3)]
        attempts = [await start_run(stores, run.id) for run in (first, second)]
        waiting = (await stores.cluster.snapshot(now=time_at(1))).pending[0]
        wanted = tuple(
            Preemption(attempt, GangId(attempt.rpartition(".")[0]), waiting.id, "makes room")
            for attempt in attempts
        )
        result = await apply_placements(stores, preempt=wanted, seconds=1)
        assert result.preempted == tuple(attempts)
        for seconds, attempt in enumerate(attempts, 2):
            await stores.cluster.record_status(
                exited_status(attempt, kind=ExitKind.PREEMPTED), now=time_at(seconds)
            )
        assert await start_run(stores, third.id, seconds=5) == attempt_id(third.id, 1)

    async def test_somebody_asks_outside_of_a_plan(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        assert await stores.cluster.request_preempt(
            run, "its node is needed", now=time_at(1)
        ) == RecordResult(changed=(run,))
        assert await stores.cluster.request_preempt(run, "again", now=time_at(1)) == RecordResult()
        (seen,) = (await stores.cluster.snapshot(now=time_at(1))).running
        assert (seen.stopping, seen.preempted_for) == (True, "")
        assert [one.detail for one in await stores.runs.events(run)] == ["its node is needed"]
        await stores.cluster.record_status(exited_status(attempt, kind=ExitKind.STOPPED), now=time_at(2))
        assert await stores.cluster.request_preempt(run, "it waits", now=time_at(3)) == RecordResult()
        assert (await stores.runs.get(run)).phase is RunPhase.QUEUED
        with pytest.raises(NotFound):
            await stores.cluster.request_preempt(RunId("nobody"), "why", now=time_at(1))

    async def test_late_news_of_a_preempted_attempt_is_ignored(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await apply_preemption(stores, attempt, seconds=1)
        gone = exited_status(attempt, kind=ExitKind.PREEMPTED)
        await record_observation(stores, gone, nodes=[make_node()], seconds=2)
        second = await start_run(stores, run, seconds=3)
        for news in (gone, exited_status(attempt), running_status(attempt)):
            assert (
                await record_observation(
                    stores, news, AttemptStatus(second, ()), nodes=[make_node()], seconds=4
                )
                == RecordResult()
            )
        assert await phases(stores, run) == ("starting", "starting")
