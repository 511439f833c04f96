"""Cases of every ReservationStore."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hopyard.domain.gang import NodeSelector
from hopyard.domain.ids import DEFAULT_QUEUE, NodeId, PoolName, QueueName, ReservationId
from hopyard.domain.plan_record import PlanRecord
from hopyard.domain.queue import Queue, QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.domain.resources import Resources
from hopyard.errors import Conflict, NotFound
from hopyard.testing.stores import (
    ClusterStores,
    acquire_epoch,
    make_node,
    make_placement,
    pending_gang,
    record_observation,
    submit_run,
    time_at,
)

WHOLE = Reservation(
    ReservationId("r1"), "demo", time_at(600), time_at(900), ("ann",), None, (NodeId("n1"), NodeId("n2"))
)
PIECES = Reservation(
    ReservationId("r2"),
    "nightly",
    time_at(300),
    time_at(400),
    queue=QueueName("vision"),
    nodes=(NodeId("n1"),),
    pieces=(2,),
    resources=Resources(1000, gpus=1, gpu_models=("A100",)),
    where=NodeSelector((PoolName("big"),)),
    every_s=86400.0,
    until=time_at(864000),
    created_by="ann",
    created_at=time_at(1),
)


class ReservationCases:
    """Reservations are granted, listed and deleted."""

    async def test_reservations_are_stored_and_listed(self, stores: ClusterStores) -> None:
        before = await stores.cluster.snapshot(now=time_at(0))
        for reservation in (WHOLE, PIECES):
            await stores.reservations.create(reservation)
        assert list(await stores.reservations.list()) == [PIECES, WHOLE]
        assert await stores.reservations.get("nightly") == PIECES
        after = await stores.cluster.snapshot(now=time_at(1))
        assert after.reservations == (PIECES, WHOLE)
        assert after.version > before.version
        assert await stores.reservations.delete("nightly") == PIECES
        last = await stores.cluster.snapshot(now=time_at(2))
        assert last.reservations == (WHOLE,)
        assert last.version > after.version

    async def test_reservation_names_are_unique(self, stores: ClusterStores) -> None:
        await stores.reservations.create(WHOLE)
        with pytest.raises(Conflict, match="demo"):
            await stores.reservations.create(replace(PIECES, name="demo"))
        for method in (stores.reservations.get, stores.reservations.delete):
            with pytest.raises(NotFound) as raised:
                await method("demp")
            assert any("demo" in hint for hint in raised.value.hints)

    async def test_reservation_for_stale_snapshot_is_rejected(self, stores: ClusterStores) -> None:
        version = (await stores.cluster.snapshot(now=time_at(0))).version
        await stores.reservations.create(WHOLE, based_on=version)
        with pytest.raises(Conflict):
            await stores.reservations.create(PIECES, based_on=version)
        version = (await stores.cluster.snapshot(now=time_at(0))).version
        await submit_run(stores)  # a waiting run does not matter
        await stores.reservations.create(PIECES, based_on=version)
        version = (await stores.cluster.snapshot(now=time_at(0))).version
        await stores.queues.replace(QueueTree({DEFAULT_QUEUE: Queue(DEFAULT_QUEUE, weight=2.0)}))
        with pytest.raises(Conflict):
            await stores.reservations.create(replace(WHOLE, name="third"), based_on=version)

    async def test_plan_from_before_reservation_is_rejected(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node()])
        run = await submit_run(stores)
        snapshot = await stores.cluster.snapshot(now=time_at(0))
        plan = PlanRecord(snapshot.version, (make_placement(pending_gang(snapshot, run.id), "n1"),))
        await stores.reservations.create(WHOLE)
        epoch = await acquire_epoch(stores)
        assert list((await stores.cluster.apply(plan, now=time_at(0), epoch=epoch)).rejected) == [
            plan.place[0].gang.id
        ]
        new = PlanRecord((await stores.cluster.snapshot(now=time_at(0))).version, plan.place)
        assert (await stores.cluster.apply(new, now=time_at(0), epoch=epoch)).applied == (
            plan.place[0].gang.id,
        )
