"""Cases of the history of ended attempts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hopyard.domain.attempt import AttemptStatus, Exit, ExitKind, ReplicaPhase, ReplicaStatus
from hopyard.domain.cluster import Observation
from hopyard.domain.duration_keys import MAX_DURATIONS, history_keys
from hopyard.domain.ids import DEFAULT_QUEUE, QueueName
from hopyard.domain.queue import SINGLE_QUEUE_TREE
from hopyard.domain.resources import Resources
from hopyard.testing.stores import (
    ENGINE,
    GIB,
    ClusterStores,
    apply_placements,
    apply_preemption,
    exited_status,
    make_node,
    make_placement,
    new_run,
    pending_gang,
    record_observation,
    running_status,
    start_run,
    started_run,
    submit_run,
    time_at,
)

DAY = 86400.0
WEEK = 7 * DAY


class HistoryCases:
    """Durations of runs, past usage of users, and served time of runs."""

    async def test_duration_is_stored_under_all_history_keys(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node(gpus=1)])
        run = await submit_run(
            stores, resources=Resources(1000, GIB, 1), command=("python", "train.py", "--lr", "1")
        )
        gang = pending_gang(await stores.cluster.snapshot(now=time_at(0)), run.id)
        attempt = await start_run(stores, run.id, ("n1", (0,)))
        await stores.cluster.record_status(running_status(attempt), now=time_at(10))
        assert (await stores.cluster.snapshot(now=time_at(11))).durations == {}
        await stores.cluster.record_status(exited_status(attempt), now=time_at(40))
        durations = (await stores.cluster.snapshot(now=time_at(41))).durations
        assert durations == dict.fromkeys(history_keys(gang), (30.0,))
        assert "script:alice/mnist:train.py/1" in durations

    async def test_attempts_of_run_are_one_duration(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await stores.cluster.record_status(running_status(attempt), now=time_at(0))
        await apply_preemption(stores, attempt, seconds=10)
        await stores.cluster.record_status(exited_status(attempt, kind=ExitKind.PREEMPTED), now=time_at(20))
        attempt = await start_run(stores, run, seconds=100)
        await stores.cluster.record_status(running_status(attempt), now=time_at(110))
        await stores.cluster.fail_launch(attempt, "gone", now=time_at(115))
        assert (await stores.cluster.snapshot(now=time_at(120))).durations == {}
        assert (await stores.runs.get(run)).served_s == 25.0
        attempt = await start_run(stores, run, seconds=200)
        await stores.cluster.record_status(running_status(attempt), now=time_at(200))
        await stores.cluster.record_status(exited_status(attempt), now=time_at(201))
        assert (await stores.cluster.snapshot(now=time_at(202))).durations["all"] == (26.0,)
        stored = await stores.runs.get(run)
        assert (stored.served_s, stored.preemptions) == (26.0, 1)

    @pytest.mark.parametrize(
        ("began", "ended", "times", "served_s"),
        [
            (2, 32, (2, 32), 30.0),
            (-100, 1000, (0, 70), 70.0),  # its clock is wrong: limited to the time between placement and now
            (50, 20, (40, 40), 0.0),
            (None, None, (40, 70), 30.0),  # it did not report times
        ],
    )
    async def test_late_report_does_not_prolong_attempt(
        self,
        stores: ClusterStores,
        began: int | None,
        ended: int | None,
        times: tuple[int, int],
        served_s: float,
    ) -> None:
        """The server, or its database, was unavailable when the script started and ended."""
        run, attempt = await started_run(stores)
        began_at, ended_at = (None if seconds is None else time_at(seconds) for seconds in (began, ended))
        running_report = AttemptStatus(attempt, (ReplicaStatus(0, ReplicaPhase.RUNNING, began_at=began_at),))
        await stores.cluster.record_status(running_report, now=time_at(40))
        exit = Exit(ExitKind.EXIT_CODE, 0, "finished")
        exited_report = AttemptStatus(
            attempt, (ReplicaStatus(0, ReplicaPhase.EXITED, "", exit, began_at, ended_at),)
        )
        await stores.cluster.record_status(exited_report, now=time_at(70))
        stored = await stores.runs.get(run)
        assert stored.attempt is not None
        for record in (stored, stored.attempt):
            assert (record.started_at, record.ended_at) == (time_at(times[0]), time_at(times[1]))
        assert stored.served_s == served_s
        (usage,) = await stores.usage.usage(time_at(0), time_at(1000), now=time_at(500))
        assert usage.held_s == 70.0, "what it held was free only then"

    async def test_gang_ends_with_last_replica_in_any_order_of_reports(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, replicas=2)
        exit = Exit(ExitKind.EXIT_CODE, 0, "finished")
        for rank, ended in ((1, 35), (0, 5)):  # no earlier report of either
            status = ReplicaStatus(rank, ReplicaPhase.EXITED, "", exit, time_at(rank + 1), time_at(ended))
            await stores.cluster.record_status(AttemptStatus(attempt, (status,)), now=time_at(70))
        stored = await stores.runs.get(run)
        assert (stored.started_at, stored.ended_at, stored.served_s) == (time_at(2), time_at(35), 33.0)

    async def test_stopped_run_has_no_duration(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await stores.cluster.record_status(running_status(attempt), now=time_at(0))
        await stores.cluster.request_stop(run, now=time_at(5))
        await stores.cluster.record_status(
            exited_status(attempt, code=143, kind=ExitKind.STOPPED), now=time_at(6)
        )
        failed = await submit_run(stores)
        await stores.cluster.fail_launch(await start_run(stores, failed.id, seconds=7), "no", now=time_at(8))
        assert (await stores.cluster.snapshot(now=time_at(9))).durations == {}

    async def test_only_success_and_time_limit_count_as_duration(self, stores: ClusterStores) -> None:
        ends = [
            (exit_fields, seconds)
            for seconds, exit_fields in (
                (2.0, {"code": 1}),
                (3.0, {"code": 137, "kind": ExitKind.OUT_OF_MEMORY}),
                (0.5, {}),
                (4.0, {"code": 124, "kind": ExitKind.TIME_LIMIT}),
                (5.0, {}),
            )
        ]
        for number, (exit_fields, seconds) in enumerate(ends):
            _, attempt = await started_run(stores)
            await stores.cluster.record_status(running_status(attempt), now=time_at(100 * number))
            await stores.cluster.record_status(
                exited_status(attempt, **exit_fields), now=time_at(100 * number + seconds)
            )
        assert (await stores.cluster.snapshot(now=time_at(1000))).durations["all"] == (4.0, 5.0)

    async def test_only_newest_durations_are_kept(self, stores: ClusterStores) -> None:
        large = [make_node(cpus=1000, memory_gib=4000)]
        await record_observation(stores, nodes=large)
        await stores.runs.create([new_run() for _ in range(MAX_DURATIONS + 10)], now=time_at(0))
        pending = (await stores.cluster.snapshot(now=time_at(0))).pending
        attempts = (
            await apply_placements(stores, *(make_placement(gang, "n1") for gang in pending))
        ).attempts
        await record_observation(stores, *(running_status(attempt) for attempt in attempts), nodes=large)
        for seconds, batch in enumerate((attempts[:10], attempts[10:20], attempts[20:]), 1):
            await stores.cluster.record_observation(
                ENGINE,
                Observation((), tuple(exited_status(ended_attempt) for ended_attempt in batch)),
                now=time_at(seconds),
                complete=False,
            )
        kept = (await stores.cluster.snapshot(now=time_at(1000))).durations["all"]
        assert kept == (2.0,) * 10 + (3.0,) * (MAX_DURATIONS - 10)

    async def test_past_usage_decays_and_adds_up(self, stores: ClusterStores) -> None:
        """Half of the cluster's CPUs for 10 s, and again a week later, when the first use counts half. Use
        decays from its first moment, here by some millionths."""
        share_seconds = 0.5 * WEEK / math.log(2) * (1 - 0.5 ** (10 / WEEK))
        assert share_seconds == pytest.approx(5.0, rel=1e-5)
        _, attempt = await started_run(stores, resources=Resources(2000, GIB))
        await stores.cluster.record_status(running_status(attempt), now=time_at(4))
        assert (await stores.cluster.snapshot(now=time_at(5))).past_usage == {}
        # held since its placement
        await stores.cluster.record_status(exited_status(attempt), now=time_at(10))
        key = (DEFAULT_QUEUE, "alice")
        past_usage = (await stores.cluster.snapshot(now=time_at(11))).past_usage
        assert set(past_usage) == {key}
        assert past_usage[key].share_seconds == pytest.approx(share_seconds)
        assert past_usage[key].at == time_at(10)
        assert await stores.queues.past_usage() == past_usage
        second = await submit_run(stores, resources=Resources(2000, GIB))
        other = await submit_run(stores, queue=QueueName("other"), resources=Resources(1000, 4 * GIB))
        attempts = [await start_run(stores, run.id, seconds=WEEK) for run in (second, other)]
        for attempt in attempts:
            await stores.cluster.fail_launch(attempt, "gone", now=time_at(WEEK + 10))
        past_usage = (await stores.cluster.snapshot(now=time_at(WEEK + 11))).past_usage
        assert past_usage[key].share_seconds == pytest.approx(1.5 * share_seconds)
        # its largest share is of memory
        assert past_usage[QueueName("other"), "alice"].share_seconds == pytest.approx(share_seconds)

    async def test_long_run_counts_as_much_as_consecutive_short_runs(self, stores: ClusterStores) -> None:
        """Half of the cluster for ten half-lives, in one run or in ten: nearly half of it on average."""
        half_life_s = 60.0
        await stores.queues.replace(replace(SINGLE_QUEUE_TREE, half_life_s=half_life_s))
        await record_observation(stores, nodes=[make_node()])
        end_s = 10 * half_life_s
        for user, run_count in (("long", 1), ("short", 10)):
            for number in range(run_count):
                begin_s, length_s = number * end_s / run_count, end_s / run_count
                run = await submit_run(stores, user=user, resources=Resources(2000, GIB))
                attempt = await start_run(stores, run.id, seconds=begin_s)
                await stores.cluster.record_status(running_status(attempt), now=time_at(begin_s + 1))
                await stores.cluster.record_status(exited_status(attempt), now=time_at(begin_s + length_s))
        past_usage = await stores.queues.past_usage()
        averages = {
            user: usage.share_seconds * math.log(2) / half_life_s for (_, user), usage in past_usage.items()
        }
        assert averages == pytest.approx(dict.fromkeys(("long", "short"), 0.5 * (1 - 0.5**10)))

    async def test_clock_that_jumps_back_is_harmless(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await stores.cluster.record_status(running_status(attempt), now=time_at(100))
        await stores.cluster.record_status(exited_status(attempt), now=time_at(50))
        stored = await stores.runs.get(run)
        assert (stored.phase, stored.served_s) == ("succeeded", 0.0)
        second = await submit_run(stores)
        attempt = await start_run(stores, second.id, seconds=60)
        await stores.cluster.record_status(exited_status(attempt), now=time_at(-1000))
        past_usage = (await stores.cluster.snapshot(now=time_at(0))).past_usage
        assert all(usage.share_seconds >= 0 for usage in past_usage.values())
