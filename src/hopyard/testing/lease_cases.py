"""Who may write plans."""

from __future__ import annotations

from datetime import timedelta

import pytest

from hopyard.domain.cluster import Hold, HoldReason, Plan, Preemption, Promise
from hopyard.domain.ids import GangId
from hopyard.errors import NotLeader
from hopyard.testing.stores import LEASE, ClusterStores, at, gang_of, lead, node, place, see, started, submit

TTL = timedelta(seconds=10)


class LeaseCases:
    """One leads at a time, and what another one planned is not written."""

    async def test_one_leads_until_its_lease_is_over(self, stores: ClusterStores) -> None:
        first = await stores.cluster.lead("a", now=at(0), ttl=TTL)
        assert first is not None
        assert (first.holder, first.expires_at) == ("a", at(10))
        assert await stores.cluster.lead("b", now=at(9.999), ttl=TTL) is None
        renewed = await stores.cluster.lead("a", now=at(9), ttl=TTL)
        assert renewed is not None
        assert (renewed.epoch, renewed.expires_at) == (first.epoch, at(19))
        assert await stores.cluster.lead("b", now=at(10), ttl=TTL) is None
        second = await stores.cluster.lead("b", now=at(19), ttl=TTL)
        assert second is not None
        assert second.epoch > first.epoch
        third = await stores.cluster.lead("a", now=at(40), ttl=TTL)
        assert third is not None
        assert third.epoch > second.epoch

    async def test_a_lease_from_before_the_clock_was_set_back_holds_nobody_up(
        self, stores: ClusterStores
    ) -> None:
        first = await stores.cluster.lead("a", now=at(3600), ttl=TTL)
        assert first is not None
        assert await stores.cluster.lead("b", now=at(3595), ttl=TTL) is None, (
            "clocks of two machines may differ a little"
        )
        renewed = await stores.cluster.lead("a", now=at(0), ttl=TTL)
        assert renewed is not None
        assert (renewed.epoch, renewed.expires_at) == (first.epoch, at(10))
        assert await stores.cluster.lead("b", now=at(5), ttl=TTL) is None
        second = await stores.cluster.lead("b", now=at(-3600), ttl=TTL)
        assert second is not None
        assert (second.epoch > first.epoch, second.expires_at) == (True, at(-3590))

    async def test_a_lease_that_was_let_go_is_free_at_once(self, stores: ClusterStores) -> None:
        first = await stores.cluster.lead("a", now=at(0), ttl=TTL)
        await stores.cluster.resign("b")
        assert await stores.cluster.lead("b", now=at(1), ttl=TTL) is None
        await stores.cluster.resign("a")
        assert first is not None
        with pytest.raises(NotLeader):
            await stores.cluster.apply(
                Plan((await stores.cluster.snapshot(now=at(1))).version), now=at(1), epoch=first.epoch
            )
        second = await stores.cluster.lead("b", now=at(1), ttl=TTL)
        assert second is not None
        assert second.epoch > first.epoch

    async def test_under_a_stale_epoch_nothing_is_written(self, stores: ClusterStores) -> None:
        run, attempt = await started(stores)
        waits = await submit(stores)
        snapshot = await stores.cluster.snapshot(now=at(1))
        gang = gang_of(snapshot, waits.id)
        plan = Plan(
            snapshot.version,
            (place(gang, "n1"),),
            preempt=(Preemption(attempt, GangId(run), gang.id, "makes room"),),
            promises=(Promise(gang.id, at(5), at(1)),),
        )
        stale = await lead(stores, seconds=1)
        await lead(stores, seconds=1 + LEASE.total_seconds(), holder="another")
        for epoch in (stale, stale + 7):
            with pytest.raises(NotLeader):
                await stores.cluster.apply(plan, now=at(100), epoch=epoch)
            with pytest.raises(NotLeader):
                await stores.cluster.note_holds(
                    [Hold(gang.id, HoldReason.BEHIND, "waits", 1)],
                    based_on=snapshot.version,
                    now=at(100),
                    epoch=epoch,
                )
        after = await stores.cluster.snapshot(now=at(1))
        assert after == snapshot
        found = await stores.runs.get(waits.id)
        assert (found.attempt, found.position) == (None, None)
        assert list(await stores.runs.events(run)) == []

    async def test_without_a_leader_nothing_is_written(self, stores: ClusterStores) -> None:
        await see(stores, nodes=[node()])
        run = await submit(stores)
        snapshot = await stores.cluster.snapshot(now=at(0))
        with pytest.raises(NotLeader):
            await stores.cluster.apply(
                Plan(snapshot.version, (place(gang_of(snapshot, run.id), "n1"),)), now=at(0), epoch=0
            )
