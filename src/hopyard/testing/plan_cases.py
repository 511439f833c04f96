"""Cases of snapshots and plans: their content, and the checks of a plan at commit."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from hopyard.domain.breach_causes import BreachCause
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.cluster import Promise
from hopyard.domain.gang import NODE_LEVEL, Closeness, Topology
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import GangId, NodeId, QueueName, attempt_id
from hopyard.domain.plan_record import BreachRecord, HoldRecord, PlanRecord
from hopyard.domain.queue import CPU, GPU, MEMORY, Queue, QueueTree
from hopyard.domain.resources import Gpu, Resources
from hopyard.domain.run import DatasetRef, Environment, RoleSpec, RunEventKind, RunSpec
from hopyard.interfaces.run_store import NewRun
from hopyard.testing.stores import (
    GIB,
    ClusterStores,
    ReplicaPlace,
    acquire_epoch,
    apply_placements,
    exited_status,
    make_digest,
    make_node,
    make_placement,
    new_run,
    pending_gang,
    record_holds,
    record_observation,
    running_status,
    start_run,
    started_run,
    submit_run,
    time_at,
)

LAB, VISION, SPEECH = QueueName("lab"), QueueName("vision"), QueueName("speech")


def tree(**limits: dict[str, object]) -> QueueTree:
    """Returns `lab` with `vision` and `speech` below it. limits: fields of the queue of that name."""
    queues = [Queue(LAB, **limits.get("lab", {}))]  # type: ignore[arg-type]
    queues += [Queue(name, LAB, **limits.get(name, {})) for name in (VISION, SPEECH)]  # type: ignore[arg-type]
    return QueueTree({queue.name: queue for queue in queues}, default=VISION)


class SnapshotCases:
    """The content of snapshots."""

    async def test_gang_holds_complete_request_of_run(self, stores: ClusterStores) -> None:
        spec = RunSpec(
            "mnist",
            (
                RoleSpec(
                    ("python", "-u", "train.py", "--lr", "1"),
                    "worker",
                    8,
                    Resources(2000, GIB, 1, ("A100",)),
                    min_replicas=2,
                ),
                RoleSpec(
                    ("python", "ps.py"),
                    "ps",
                    1,
                    Resources(500, extras=(("fpga", 1),)),
                    topology=Topology("rack", Closeness.SAME),
                ),
            ),
            datasets=(DatasetRef("mnist", 3, make_digest("mnist")),),
            environment=Environment(requirements=make_digest("requirements")),
            queue=SPEECH,
            priority=7,
            preemptible=False,
            topology=Topology("zone", Closeness.NEAR, slice=4),
            time_limit_s=90.0,
        )
        (run,) = await stores.runs.create([NewRun(new_run().id, "bob", spec)], now=time_at(1))
        (gang,) = (await stores.cluster.snapshot(now=time_at(2))).pending
        assert gang == spec.to_gang(run.id, "bob", submitted_at=time_at(1))
        assert (gang.script, gang.input_digests, gang.is_elastic) == (
            "mnist:train.py",
            (make_digest("mnist"), make_digest("requirements")),
            True,
        )
        await stores.runs.record_lock(run.id, make_digest("lock"), {"torch": "2.0"})
        (gang,) = (await stores.cluster.snapshot(now=time_at(3))).pending
        assert gang.input_digests == (make_digest("mnist"), make_digest("lock"), make_digest("requirements"))

    async def test_unchanged_parts_of_snapshot_are_same_objects(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        waiting_run = await submit_run(stores)
        before = await stores.cluster.snapshot(now=time_at(1))
        repeated = await stores.cluster.snapshot(now=time_at(2))
        assert repeated.version == before.version
        assert repeated.now == time_at(2)
        for name in (
            "nodes",
            "pending",
            "running",
            "queues",
            "past_usage",
            "reservations",
            "promises",
            "durations",
        ):
            assert getattr(repeated, name) is getattr(before, name), name
        await submit_run(stores)
        after = await stores.cluster.snapshot(now=time_at(3))
        assert pending_gang(after, waiting_run.id) is pending_gang(before, waiting_run.id)
        assert after.running is before.running
        assert after.nodes is before.nodes
        await stores.cluster.record_status(running_status(attempt), now=time_at(4))
        later = await stores.cluster.snapshot(now=time_at(5))
        assert later.pending is after.pending
        assert (later.running[0].started_at, after.running[0].started_at) == (time_at(4), None)
        assert later.running[0].gang is before.running[0].gang
        assert later.running[0].gang.id == GangId(run)

    async def test_snapshot_holds_time_of_newest_checkpoint(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        other = attempt_id(run, 7)
        for seconds, saving_attempt in ((5, attempt), (9, other)):
            before = await stores.cluster.snapshot(now=time_at(0))
            await stores.runs.record_checkpoint(
                Checkpoint(run, saving_attempt, 0, seconds, make_digest("c"), 1, time_at(seconds))
            )
            (running,) = (await stores.cluster.snapshot(now=time_at(0))).running
            assert running.saved_at == time_at(5)
        assert (await stores.cluster.snapshot(now=time_at(0))).running is before.running

    async def test_deleted_run_leaves_nothing_in_snapshot(self, stores: ClusterStores) -> None:
        """Even without a snapshot in between."""
        await stores.cluster.snapshot(now=time_at(0))
        run, attempt = await started_run(stores)
        await stores.cluster.snapshot(now=time_at(0))
        await stores.cluster.record_status(exited_status(attempt), now=time_at(1))
        await stores.runs.delete(run)
        waiting_run = await submit_run(stores)
        await stores.cluster.snapshot(now=time_at(1))
        await stores.cluster.request_stop(waiting_run.id, now=time_at(1))
        await stores.runs.delete(waiting_run.id)
        snapshot = await stores.cluster.snapshot(now=time_at(2))
        assert (snapshot.pending, snapshot.running, await stores.cluster.live_attempts()) == ((), (), {})


class CheckCases:
    """Each gang is checked again with the state of the store."""

    @pytest.mark.parametrize(
        ("resources", "where", "fits"),
        [
            (Resources(100, gpu_milli=500), ("n1", (0,), 500), True),
            (Resources(100, gpu_milli=500), ("n1", (0,), 400), False),  # less than requested
            (Resources(100, gpu_milli=500), ("n1", (0,)), False),  # a whole GPU
            (Resources(100, gpu_milli=700), ("n1", (1,), 700), False),  # more than the rest
            (Resources(100, gpu_milli=400), ("n1", (1,), 400), True),
            (Resources(100, gpus=1), ("n1", (1,)), False),  # a part is in use
            (Resources(100, gpus=1), ("n1", (0,)), True),
            (Resources(100, gpus=2), ("n1", (0, 0)), False),
            (Resources(100, gpu_memory_bytes=20 * GIB), ("n1", (0,), 500), True),  # half of this card
            (Resources(100, gpu_memory_bytes=20 * GIB), ("n1", (2,), 1000), False),  # more than this card has
            (Resources(100, extras=(("fpga", 2),)), "n1", True),
            (Resources(100, extras=(("fpga", 3),)), "n1", False),
            (Resources(100, extras=(("tape", 1),)), "n1", False),
        ],
    )
    async def test_gpu_shares_and_extras_are_checked(
        self, stores: ClusterStores, resources: Resources, where: ReplicaPlace, fits: bool
    ) -> None:
        cards = (Gpu(0, "A100", 40 * GIB), Gpu(1, "A100", 40 * GIB), Gpu(2, "T4", 16 * GIB))
        await record_observation(stores, nodes=[make_node(cards=cards, extras={"fpga": 2})])
        first = await submit_run(stores, resources=Resources(100, gpu_milli=600))
        await start_run(stores, first.id, ("n1", (1,), 600))
        run = await submit_run(stores, resources=resources)
        result = await apply_placements(
            stores, make_placement(pending_gang(await stores.cluster.snapshot(now=time_at(0)), run.id), where)
        )
        assert bool(result.applied) is fits, result.rejected
        if fits and not isinstance(where, str):
            attempt = (await stores.runs.get(run.id)).attempt
            assert attempt is not None
            assert (attempt.gpus, attempt.gpu_milli) == (
                (where[1],),
                (where[2] if len(where) == 3 else 1000,),
            )

    async def test_replicas_of_gang_share_gpu(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node(gpus=1)])
        runs = [
            await submit_run(stores, replicas=2, resources=Resources(100, gpu_milli=milli))
            for milli in (600, 500)
        ]
        snapshot = await stores.cluster.snapshot(now=time_at(0))
        placements = [
            make_placement(pending_gang(snapshot, run.id), *[("n1", (0,), milli)] * 2)
            for run, milli in zip(runs, (600, 500), strict=True)
        ]
        assert (await apply_placements(stores, *placements)).applied == (GangId(runs[1].id),)

    async def test_elastic_gang_starts_with_placed_replicas(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node(cpus=3)])
        run = await submit_run(stores, replicas=4, min_replicas=2)
        gang = pending_gang(await stores.cluster.snapshot(now=time_at(0)), run.id)
        assert (
            await apply_placements(stores, make_placement(gang.with_replica_counts([1]), "n1"))
        ).applied == ()
        assert (
            await apply_placements(stores, make_placement(gang.with_replica_counts([3]), "n1", "n1"))
        ).applied == ()
        assert (
            await apply_placements(stores, make_placement(gang.with_replica_counts([3]), "n1", "n1", "n1"))
        ).applied == (gang.id,)
        (running,) = (await stores.cluster.snapshot(now=time_at(0))).running
        assert running.gang == gang.with_replica_counts([3])
        attempt = (await stores.runs.get(run.id)).attempt
        assert attempt is not None
        assert (attempt.counts, attempt.nodes) == ((3,), ("n1",) * 3)
        for rank in range(3):
            await stores.cluster.record_status(exited_status(attempt.id, rank), now=time_at(1))
        assert (await stores.runs.get(run.id)).phase == "succeeded"

    @pytest.mark.parametrize(
        ("topology", "where", "fits"),
        [
            (Topology(NODE_LEVEL, Closeness.SAME), "aa", True),
            (Topology(NODE_LEVEL, Closeness.SAME), "ab", False),
            (Topology("rack", Closeness.SAME), "ab", True),
            (Topology("rack", Closeness.SAME), "ac", False),
            (Topology(NODE_LEVEL, Closeness.SPREAD), "ab", True),
            (Topology(NODE_LEVEL, Closeness.SPREAD), "aa", False),
            (Topology("rack", Closeness.SPREAD), "ab", False),
            (Topology("rack", Closeness.NEAR), "ac", True),
            (Topology("zone", Closeness.NEAR), "ab", False),  # no node has this label
        ],
    )
    async def test_topology_is_checked(
        self, stores: ClusterStores, topology: Topology, where: str, fits: bool
    ) -> None:
        await record_observation(
            stores,
            nodes=[
                make_node("a", labels={"rack": "1"}),
                make_node("b", labels={"rack": "1"}),
                make_node("c", labels={"rack": "2"}),
            ],
        )
        run = await submit_run(stores, replicas=2, topology=topology)
        result = await apply_placements(
            stores,
            make_placement(pending_gang(await stores.cluster.snapshot(now=time_at(0)), run.id), *where),
        )
        assert bool(result.applied) is fits, result.rejected


class QuotaCases:
    """A plan exceeds no limit of a queue or a user."""

    @pytest.mark.parametrize(
        ("limits", "started_in", "expected"),
        [
            ({"vision": {"maximum": {CPU: 2000}}}, "vision", 2),
            ({"lab": {"maximum": {CPU: 3000}}}, "speech", 3),  # the limit of the parent counts too
            ({"vision": {"guarantee": {CPU: 1000}, "borrow_limit": {CPU: 1000}}}, "vision", 2),
            ({"vision": {"user_limit": {MEMORY: GIB}}}, "vision", 1),
            ({"lab": {"user_limit": {CPU: 2000}}}, "speech", 2),
            ({"speech": {"maximum": {CPU: 0}}}, "vision", 4),
            ({"vision": {"maximum": {GPU: 0}}}, "vision", 4),
        ],
    )
    async def test_limits_of_queues_and_users_are_checked(
        self, stores: ClusterStores, limits: dict[str, dict[str, object]], started_in: str, expected: int
    ) -> None:
        await record_observation(stores, nodes=[make_node()])
        await stores.queues.replace(tree(**limits))
        runs = [
            await submit_run(stores, queue=QueueName(started_in), resources=Resources(1000, GIB))
            for _ in range(4)
        ]
        snapshot = await stores.cluster.snapshot(now=time_at(0))
        result = await apply_placements(
            stores, *(make_placement(pending_gang(snapshot, run.id), "n1") for run in runs)
        )
        assert len(result.applied) == expected
        if expected == 4:
            return
        attempt = result.attempts[0]
        waiting_gang = pending_gang(await stores.cluster.snapshot(now=time_at(1)), runs[expected].id)
        assert (await apply_placements(stores, make_placement(waiting_gang, "n1"))).applied == ()
        await stores.cluster.record_status(exited_status(attempt), now=time_at(2))
        assert (await apply_placements(stores, make_placement(waiting_gang, "n1"))).applied == (
            waiting_gang.id,
        )

    async def test_user_limit_applies_per_user(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node()])
        await stores.queues.replace(tree(lab={"user_limit": {CPU: 1000}}))
        runs = [
            (await stores.runs.create([new_run(user, queue=VISION)], now=time_at(0)))[0]
            for user in ("ann", "ann", "bob")
        ]
        snapshot = await stores.cluster.snapshot(now=time_at(0))
        result = await apply_placements(
            stores, *(make_placement(pending_gang(snapshot, run.id), "n1") for run in runs)
        )
        assert result.applied == (GangId(runs[0].id), GangId(runs[2].id))

    async def test_plan_for_earlier_tree_is_rejected(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node()])
        run = await submit_run(stores, queue=VISION)
        snapshot = await stores.cluster.snapshot(now=time_at(0))
        plan = PlanRecord(snapshot.version, (make_placement(pending_gang(snapshot, run.id), "n1"),))
        await stores.queues.replace(tree())
        epoch = await acquire_epoch(stores)
        assert list((await stores.cluster.apply(plan, now=time_at(0), epoch=epoch)).rejected) == [
            GangId(run.id)
        ]
        assert (await stores.cluster.snapshot(now=time_at(0))).queues == tree()
        await start_run(stores, run.id)


class PromiseCases:
    """Holds and promises of waiting runs."""

    async def test_holds_store_reason_and_blockers(self, stores: ClusterStores) -> None:
        runs = [await submit_run(stores, queue=queue) for queue in (VISION, SPEECH, VISION)]
        holds = [
            HoldRecord(
                GangId(runs[0].id), HoldReason.QUOTA, "full", 1, ("queue:vision", "run:x"), time_at(60)
            ),
            HoldRecord(GangId(runs[1].id), HoldReason.NO_CAPACITY, "busy", 1),
            HoldRecord(GangId(runs[2].id), HoldReason.BEHIND, "waits", 2),
        ]
        assert set(await record_holds(stores, *holds)) == {run.id for run in runs}
        assert list(await record_holds(stores, *holds)) == []
        stored = [await stores.runs.get(run.id) for run in runs]
        assert [(run.position, run.hold_reason, run.blocked_by, run.expected_at) for run in stored] == [
            (1, "quota", ("queue:vision", "run:x"), time_at(60)),
            (1, "no-capacity", (), None),
            (2, "behind", (), None),
        ]
        await record_observation(stores, nodes=[make_node()])
        await start_run(stores, runs[0].id)
        moved = HoldRecord(GangId(runs[2].id), HoldReason.BEHIND, "waits", 1)
        # a change of position alone is not returned
        assert list(await record_holds(stores, moved, holds[1])) == []
        assert [(await stores.runs.get(run.id)).position for run in runs] == [None, 1, 1]
        delayed = HoldRecord(GangId(runs[2].id), HoldReason.BEHIND, "waits", 1, expected_at=time_at(90))
        assert list(await record_holds(stores, delayed, holds[0])) == [runs[2].id]
        assert (await stores.runs.get(runs[0].id)).blocked_by == ()

    async def test_plan_does_not_store_holds(self, stores: ClusterStores) -> None:
        run = await submit_run(stores)
        await apply_placements(stores)
        assert (await stores.runs.get(run.id)).position is None

    async def test_promises_stay_until_replaced(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node()])
        runs = [await submit_run(stores) for _ in range(3)]
        first, second, third = [
            Promise(
                GangId(run.id), time_at(60 + number), time_at(0), (NodeId("n1"),), has_preempted=number == 1
            )
            for number, run in enumerate(runs)
        ]
        before = (await stores.cluster.snapshot(now=time_at(0))).version
        result = await apply_placements(stores, promises=(first, second))
        snapshot = await stores.cluster.snapshot(now=time_at(1))
        assert dict(snapshot.promises) == {first.gang: first, second.gang: second}
        assert result.version == snapshot.version > before
        assert (await apply_placements(stores, promises=(second, first))).version == snapshot.version
        late = replace(second, start_at=time_at(90), has_preempted=False)
        await apply_placements(stores, promises=(first, late))
        assert (await stores.cluster.snapshot(now=time_at(1))).promises[second.gang] == late
        assert (await stores.runs.get(runs[0].id)).promised_at == time_at(60)
        breach = BreachRecord(first.gang, BreachCause.NODE_LOST, "n9 is gone")
        await apply_placements(stores, promises=(second, third), breaches=(breach,), seconds=2)
        assert set((await stores.cluster.snapshot(now=time_at(2))).promises) == {second.gang, third.gang}
        kinds = [(event.kind, event.at) for event in await stores.runs.events(runs[0].id)]
        assert kinds == [(RunEventKind.PROMISED, time_at(0)), (RunEventKind.BREACHED, time_at(2))]
        assert "n9 is gone" in (await stores.runs.events(runs[0].id))[-1].detail
        assert len(await stores.runs.events(runs[1].id)) == 1

    async def test_run_that_no_longer_waits_gets_no_promise(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node()])
        runs = [await submit_run(stores) for _ in range(3)]
        promises = tuple(Promise(GangId(run.id), time_at(60), time_at(0)) for run in runs)
        await apply_placements(stores, promises=promises)
        await stores.cluster.request_stop(runs[0].id, now=time_at(1))
        gang = pending_gang(await stores.cluster.snapshot(now=time_at(1)), runs[1].id)
        await apply_placements(stores, make_placement(gang, "n1"), promises=promises[1:], seconds=1)
        snapshot = await stores.cluster.snapshot(now=time_at(2) + timedelta(seconds=1))
        assert dict(snapshot.promises) == {promises[2].gang: promises[2]}
        assert (await stores.runs.get(runs[1].id)).promised_at is None
        await apply_placements(stores, promises=promises, seconds=2)  # a stale plan
        assert set((await stores.cluster.snapshot(now=time_at(2))).promises) == {promises[2].gang}
