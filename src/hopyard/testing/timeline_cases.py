"""Cases of what a timeline and a waiting line read: attempts in a time range, and positions in queries."""

from __future__ import annotations

from hopyard.domain.attempt import ExitKind
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import GangId, QueueName
from hopyard.domain.plan_record import HoldRecord
from hopyard.interfaces.run_store import AttemptFilter, RunFilter
from hopyard.testing.stores import (
    ClusterStores,
    exited_status,
    make_node,
    record_holds,
    record_observation,
    running_status,
    start_run,
    submit_run,
    time_at,
)

LAB = QueueName("lab")


class TimelineCases:
    """Attempts of all runs, the newest first, by range, queue and node, in pages."""

    async def test_attempts_are_found_by_range_queue_and_node(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node(), make_node("N1"), make_node("n2")])
        ended = await submit_run(stores)
        attempt = await start_run(stores, ended.id, seconds=10)
        await stores.cluster.record_status(running_status(attempt), now=time_at(12))
        await stores.cluster.record_status(exited_status(attempt), now=time_at(20))
        live = await submit_run(stores, queue=LAB)
        await start_run(stores, live.id, "N1", seconds=30)

        async def found(since: float, until: float, **where: object) -> list[str]:
            rows = await stores.runs.attempts_between(
                AttemptFilter(time_at(since), time_at(until), **where)  # type: ignore[arg-type]
            )
            return [row.run for row in rows]

        assert await found(0, 100) == [live.id, ended.id]
        assert await found(19, 30) == [ended.id]
        assert await found(20, 100) == [live.id]
        assert await found(0, 10) == []
        assert await found(0, 100, queues=frozenset({LAB})) == [live.id]
        assert await found(0, 100, node="n1") == [ended.id]
        assert await found(0, 100, node="n2") == []
        (first,) = await stores.runs.attempts_between(AttemptFilter(time_at(0), time_at(100), limit=1))
        assert (first.name, first.queue, first.attempt.nodes) == (live.name, LAB, ("N1",))
        assert await found(0, 100, before=(first.attempt.placed_at, first.attempt.id)) == [ended.id]

    async def test_every_attempt_of_a_run_is_found(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node()])
        run = await submit_run(stores)
        first = await start_run(stores, run.id, seconds=10)
        await stores.cluster.fail_launch(first, "gone", now=time_at(20), kind=ExitKind.LOST)
        second = await start_run(stores, run.id, seconds=30)
        rows = await stores.runs.attempts_between(AttemptFilter(time_at(0), time_at(100)))
        assert [(row.attempt.id, row.attempt.ended_at) for row in rows] == [
            (second, None),
            (first, time_at(20)),
        ]

    async def test_query_reads_the_position_of_waiting_runs(self, stores: ClusterStores) -> None:
        runs = [await submit_run(stores) for _ in range(2)]
        holds = [
            HoldRecord(GangId(run.id), HoldReason.NO_CAPACITY, "waits", position)
            for run, position in zip(runs, (2, 1), strict=True)
        ]
        await record_holds(stores, *holds)
        values = dict(await stores.runs.query_values(RunFilter(), now=time_at(0)))
        assert [values[run.id].fields["position"] for run in runs] == [2, 1]
