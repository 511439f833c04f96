"""Cases of the lease of the leader."""

from __future__ import annotations

from datetime import timedelta

import pytest

from hopyard.domain.cluster import Promise
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import GangId
from hopyard.domain.plan_record import HoldRecord, PlanRecord, PreemptionRecord
from hopyard.errors import NotLeader
from hopyard.testing.stores import (
    LEASE,
    ClusterStores,
    acquire_epoch,
    make_node,
    make_placement,
    pending_gang,
    record_observation,
    started_run,
    submit_run,
    time_at,
)

TTL = timedelta(seconds=10)


class LeaseCases:
    """Only one server leads at a time, and plans of other servers are not written."""

    async def test_leader_holds_lease_until_it_expires(self, stores: ClusterStores) -> None:
        first = await stores.cluster.acquire_lease("a", now=time_at(0), ttl=TTL)
        assert first is not None
        assert (first.holder, first.expires_at) == ("a", time_at(10))
        assert await stores.cluster.acquire_lease("b", now=time_at(9.999), ttl=TTL) is None
        renewed = await stores.cluster.acquire_lease("a", now=time_at(9), ttl=TTL)
        assert renewed is not None
        assert (renewed.epoch, renewed.expires_at) == (first.epoch, time_at(19))
        assert await stores.cluster.acquire_lease("b", now=time_at(10), ttl=TTL) is None
        second = await stores.cluster.acquire_lease("b", now=time_at(19), ttl=TTL)
        assert second is not None
        assert second.epoch > first.epoch
        third = await stores.cluster.acquire_lease("a", now=time_at(40), ttl=TTL)
        assert third is not None
        assert third.epoch > second.epoch

    async def test_lease_from_before_clock_was_set_back_is_ignored(self, stores: ClusterStores) -> None:
        first = await stores.cluster.acquire_lease("a", now=time_at(3600), ttl=TTL)
        assert first is not None
        assert await stores.cluster.acquire_lease("b", now=time_at(3595), ttl=TTL) is None, (
            "clocks of two machines may differ a little"
        )
        renewed = await stores.cluster.acquire_lease("a", now=time_at(0), ttl=TTL)
        assert renewed is not None
        assert (renewed.epoch, renewed.expires_at) == (first.epoch, time_at(10))
        assert await stores.cluster.acquire_lease("b", now=time_at(5), ttl=TTL) is None
        second = await stores.cluster.acquire_lease("b", now=time_at(-3600), ttl=TTL)
        assert second is not None
        assert (second.epoch > first.epoch, second.expires_at) == (True, time_at(-3590))

    async def test_released_lease_is_free_at_once(self, stores: ClusterStores) -> None:
        first = await stores.cluster.acquire_lease("a", now=time_at(0), ttl=TTL)
        await stores.cluster.release_lease("b")
        assert await stores.cluster.acquire_lease("b", now=time_at(1), ttl=TTL) is None
        await stores.cluster.release_lease("a")
        assert first is not None
        with pytest.raises(NotLeader):
            await stores.cluster.apply(
                PlanRecord((await stores.cluster.snapshot(now=time_at(1))).version),
                now=time_at(1),
                epoch=first.epoch,
            )
        second = await stores.cluster.acquire_lease("b", now=time_at(1), ttl=TTL)
        assert second is not None
        assert second.epoch > first.epoch

    async def test_stale_epoch_writes_nothing(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        waiting_run = await submit_run(stores)
        snapshot = await stores.cluster.snapshot(now=time_at(1))
        gang = pending_gang(snapshot, waiting_run.id)
        plan = PlanRecord(
            snapshot.version,
            (make_placement(gang, "n1"),),
            preempt=(PreemptionRecord(attempt, GangId(run), gang.id, "makes room"),),
            promises=(Promise(gang.id, time_at(5), time_at(1)),),
        )
        stale = await acquire_epoch(stores, seconds=1)
        await acquire_epoch(stores, seconds=1 + LEASE.total_seconds(), holder="another")
        for epoch in (stale, stale + 7):
            with pytest.raises(NotLeader):
                await stores.cluster.apply(plan, now=time_at(100), epoch=epoch)
            with pytest.raises(NotLeader):
                await stores.cluster.record_holds(
                    [HoldRecord(gang.id, HoldReason.BEHIND, "waits", 1)],
                    based_on=snapshot.version,
                    now=time_at(100),
                    epoch=epoch,
                )
        after = await stores.cluster.snapshot(now=time_at(1))
        assert after == snapshot
        stored = await stores.runs.get(waiting_run.id)
        assert (stored.attempt, stored.position) == (None, None)
        assert list(await stores.runs.events(run)) == []

    async def test_no_leader_writes_nothing(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node()])
        run = await submit_run(stores)
        snapshot = await stores.cluster.snapshot(now=time_at(0))
        with pytest.raises(NotLeader):
            await stores.cluster.apply(
                PlanRecord(snapshot.version, (make_placement(pending_gang(snapshot, run.id), "n1"),)),
                now=time_at(0),
                epoch=0,
            )
