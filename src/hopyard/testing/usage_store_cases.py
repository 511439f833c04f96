"""Cases of usage: the resources of runs are summed, and the sums outlive the runs."""

from __future__ import annotations

import pytest

from hopyard.domain.attempt import ExitKind
from hopyard.domain.ids import DEFAULT_QUEUE, QueueName
from hopyard.domain.resources import Resources
from hopyard.domain.usage import Usage
from hopyard.testing.stores import (
    GIB,
    ClusterStores,
    apply_preemption,
    exited_status,
    make_node,
    record_observation,
    running_status,
    start_run,
    started_run,
    submit_run,
    time_at,
)

LAB = QueueName("lab")


class UsageCases:
    """Amounts times the time from placement to end, within the time range."""

    async def test_usage_counts_gpus_cpus_and_memory(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node(gpus=2)])
        run = await submit_run(stores, user="bob", queue=LAB, project="p", resources=Resources(1500, GIB, 2))
        attempt = await start_run(stores, run.id, ("n1", (0, 1)), seconds=10)
        await stores.cluster.record_status(running_status(attempt), now=time_at(20))
        await stores.cluster.record_status(exited_status(attempt), now=time_at(110))
        assert await stores.usage.usage(time_at(0), time_at(1000), now=time_at(500)) == [
            Usage("bob", LAB, "p", 1, 100.0, 200.0, 150.0, 100.0 * GIB)
        ]

    async def test_usage_counts_gpu_shares_of_every_replica(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node(gpus=1)])
        run = await submit_run(stores, replicas=2, resources=Resources(500, GIB, gpu_milli=250))
        attempt = await start_run(stores, run.id, *[("n1", (0,), 250)] * 2)
        await stores.cluster.fail_launch(attempt, "gone", now=time_at(40))
        (usage,) = await stores.usage.usage(time_at(0), time_at(1000), now=time_at(500))
        assert (usage.gpu_s, usage.cpu_s, usage.memory_byte_s) == (20.0, 40.0, 80.0 * GIB)

    @pytest.mark.parametrize(
        ("since", "until", "held_s"),
        [(0, 1000, 100), (50, 1000, 60), (0, 50, 40), (20, 30, 10), (110, 200, None), (0, 10, None)],
    )
    async def test_usage_outside_range_is_excluded(
        self, stores: ClusterStores, since: float, until: float, held_s: float | None
    ) -> None:
        await record_observation(stores, nodes=[make_node()])
        run = await submit_run(stores)
        attempt = await start_run(stores, run.id, seconds=10)
        await stores.cluster.record_status(exited_status(attempt), now=time_at(110))
        rows = await stores.usage.usage(time_at(since), time_at(until), now=time_at(500))
        assert [row.held_s for row in rows] == ([] if held_s is None else [held_s])

    async def test_usage_of_live_attempt_counts_until_now(self, stores: ClusterStores) -> None:
        _, attempt = await started_run(stores, resources=Resources(2000, GIB))
        await stores.cluster.record_status(running_status(attempt), now=time_at(5))
        (usage,) = await stores.usage.usage(time_at(0), time_at(1000), now=time_at(60))
        assert (usage.attempts, usage.held_s, usage.cpu_s) == (1, 60.0, 120.0)

    async def test_usage_sums_attempts_and_outlives_run(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await stores.cluster.record_status(running_status(attempt), now=time_at(0))
        await apply_preemption(stores, attempt, seconds=10)
        await stores.cluster.record_status(exited_status(attempt, kind=ExitKind.PREEMPTED), now=time_at(20))
        second_attempt = await start_run(stores, run, seconds=100)
        await stores.cluster.record_status(exited_status(second_attempt), now=time_at(130))
        other = await submit_run(stores, user="bob")
        other_attempt = await start_run(stores, other.id, seconds=200)
        await stores.cluster.record_status(exited_status(other_attempt), now=time_at(201))
        before = await stores.usage.usage(time_at(0), time_at(1000), now=time_at(500))
        assert [(row.user, row.queue, row.attempts, row.held_s) for row in before] == [
            ("alice", DEFAULT_QUEUE, 2, 50.0),
            ("bob", DEFAULT_QUEUE, 1, 1.0),
        ]
        await stores.runs.delete(run)
        assert await stores.usage.usage(time_at(0), time_at(1000), now=time_at(500)) == before

    async def test_usage_ignores_clock_that_jumps_back(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node()])
        run = await submit_run(stores)
        attempt = await start_run(stores, run.id, seconds=100)
        await stores.cluster.record_status(exited_status(attempt), now=time_at(50))
        assert await stores.usage.usage(time_at(0), time_at(1000), now=time_at(500)) == []
