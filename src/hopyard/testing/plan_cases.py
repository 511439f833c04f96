"""What a snapshot holds, what a plan may ask for, and what is checked once more when it is committed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.cluster import Breach, BreachCause, Hold, HoldReason, Plan, Promise
from hopyard.domain.gang import NODE_LEVEL, Closeness, Topology
from hopyard.domain.ids import GangId, NodeId, QueueName, attempt_id
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
    """`lab` with `vision` and `speech` below it; `limits` are fields of the queue of that name."""
    made = [Queue(LAB, **limits.get("lab", {}))]  # type: ignore[arg-type]
    made += [Queue(name, LAB, **limits.get(name, {})) for name in (VISION, SPEECH)]  # type: ignore[arg-type]
    return QueueTree({queue.name: queue for queue in made}, default=VISION)


class SnapshotCases:
    """What a policy sees."""

    async def test_a_gang_says_all_that_its_run_asks_for(self, stores: ClusterStores) -> None:
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

    async def test_what_did_not_change_is_the_same_object(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        kept = await submit_run(stores)
        before = await stores.cluster.snapshot(now=time_at(1))
        again = await stores.cluster.snapshot(now=time_at(2))
        assert again.version == before.version
        assert again.now == time_at(2)
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
            assert getattr(again, name) is getattr(before, name), name
        await submit_run(stores)
        after = await stores.cluster.snapshot(now=time_at(3))
        assert pending_gang(after, kept.id) is pending_gang(before, kept.id)
        assert after.running is before.running
        assert after.nodes is before.nodes
        await stores.cluster.record_status(running_status(attempt), now=time_at(4))
        later = await stores.cluster.snapshot(now=time_at(5))
        assert later.pending is after.pending
        assert (later.running[0].started_at, after.running[0].started_at) == (time_at(4), None)
        assert later.running[0].gang is before.running[0].gang
        assert later.running[0].gang.id == GangId(run)

    async def test_a_checkpoint_makes_an_attempt_cheaper_to_lose(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        other = attempt_id(run, 7)
        for seconds, of in ((5, attempt), (9, other)):
            before = await stores.cluster.snapshot(now=time_at(0))
            await stores.runs.record_checkpoint(
                Checkpoint(run, of, 0, seconds, make_digest("c"), 1, time_at(seconds))
            )
            (seen,) = (await stores.cluster.snapshot(now=time_at(0))).running
            assert seen.saved_at == time_at(5)
        assert (await stores.cluster.snapshot(now=time_at(0))).running is before.running

    async def test_a_run_that_came_and_went_leaves_nothing(self, stores: ClusterStores) -> None:
        """Also where nobody looked in between."""
        await stores.cluster.snapshot(now=time_at(0))
        run, attempt = await started_run(stores)
        await stores.cluster.snapshot(now=time_at(0))
        await stores.cluster.record_status(exited_status(attempt), now=time_at(1))
        await stores.runs.delete(run)
        waits = await submit_run(stores)
        await stores.cluster.snapshot(now=time_at(1))
        await stores.cluster.request_stop(waits.id, now=time_at(1))
        await stores.runs.delete(waits.id)
        snapshot = await stores.cluster.snapshot(now=time_at(2))
        assert (snapshot.pending, snapshot.running, await stores.cluster.live_attempts()) == ((), (), {})


class CheckCases:
    """Each gang once more, from what the store holds."""

    @pytest.mark.parametrize(
        ("asked", "where", "fits"),
        [
            (Resources(100, gpu_milli=500), ("n1", (0,), 500), True),
            (Resources(100, gpu_milli=500), ("n1", (0,), 400), False),  # less than it asks for
            (Resources(100, gpu_milli=500), ("n1", (0,)), False),  # all of it
            (Resources(100, gpu_milli=700), ("n1", (1,), 700), False),  # more than is left
            (Resources(100, gpu_milli=400), ("n1", (1,), 400), True),
            (Resources(100, gpus=1), ("n1", (1,)), False),  # a part is taken
            (Resources(100, gpus=1), ("n1", (0,)), True),
            (Resources(100, gpus=2), ("n1", (0, 0)), False),
            (Resources(100, gpu_memory_bytes=20 * GIB), ("n1", (0,), 500), True),  # half of this card
            (Resources(100, gpu_memory_bytes=20 * GIB), ("n1", (2,), 1000), False),  # too much for this one
            (Resources(100, extras=(("fpga", 2),)), "n1", True),
            (Resources(100, extras=(("fpga", 3),)), "n1", False),
            (Resources(100, extras=(("tape", 1),)), "n1", False),
        ],
    )
    async def test_shares_of_gpus_and_extras(
        self, stores: ClusterStores, asked: Resources, where: ReplicaPlace, fits: bool
    ) -> None:
        cards = (Gpu(0, "A100", 40 * GIB), Gpu(1, "A100", 40 * GIB), Gpu(2, "T4", 16 * GIB))
        await record_observation(stores, nodes=[make_node(cards=cards, extras={"fpga": 2})])
        first = await submit_run(stores, resources=Resources(100, gpu_milli=600))
        await start_run(stores, first.id, ("n1", (1,), 600))
        run = await submit_run(stores, resources=asked)
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

    async def test_replicas_of_one_gang_share_a_gpu(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node(gpus=1)])
        runs = [
            await submit_run(stores, replicas=2, resources=Resources(100, gpu_milli=milli))
            for milli in (600, 500)
        ]
        snapshot = await stores.cluster.snapshot(now=time_at(0))
        wanted = [
            make_placement(pending_gang(snapshot, run.id), *[("n1", (0,), milli)] * 2)
            for run, milli in zip(runs, (600, 500), strict=True)
        ]
        assert (await apply_placements(stores, *wanted)).applied == (GangId(runs[1].id),)

    async def test_an_elastic_gang_starts_with_as_many_as_are_placed(self, stores: ClusterStores) -> None:
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
        (seen,) = (await stores.cluster.snapshot(now=time_at(0))).running
        assert seen.gang == gang.with_replica_counts([3])
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
            (Topology("zone", Closeness.NEAR), "ab", False),  # nobody has this label
        ],
    )
    async def test_how_close_replicas_are(
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
    """A plan gives no queue and no user more than the tree allows."""

    @pytest.mark.parametrize(
        ("limits", "started_in", "may"),
        [
            ({"vision": {"maximum": {CPU: 2000}}}, "vision", 2),
            ({"lab": {"maximum": {CPU: 3000}}}, "speech", 3),  # the level above counts too
            ({"vision": {"guarantee": {CPU: 1000}, "borrow_limit": {CPU: 1000}}}, "vision", 2),
            ({"vision": {"user_limit": {MEMORY: GIB}}}, "vision", 1),
            ({"lab": {"user_limit": {CPU: 2000}}}, "speech", 2),
            ({"speech": {"maximum": {CPU: 0}}}, "vision", 4),
            ({"vision": {"maximum": {GPU: 0}}}, "vision", 4),
        ],
    )
    async def test_limits(
        self, stores: ClusterStores, limits: dict[str, dict[str, object]], started_in: str, may: int
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
        assert len(result.applied) == may
        if may == 4:
            return
        attempt = result.attempts[0]
        left = pending_gang(await stores.cluster.snapshot(now=time_at(1)), runs[may].id)
        assert (await apply_placements(stores, make_placement(left, "n1"))).applied == ()
        await stores.cluster.record_status(exited_status(attempt), now=time_at(2))
        assert (await apply_placements(stores, make_placement(left, "n1"))).applied == (left.id,)

    async def test_users_are_limited_one_by_one(self, stores: ClusterStores) -> None:
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

    async def test_a_plan_for_another_tree_is_refused(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node()])
        run = await submit_run(stores, queue=VISION)
        snapshot = await stores.cluster.snapshot(now=time_at(0))
        plan = Plan(snapshot.version, (make_placement(pending_gang(snapshot, run.id), "n1"),))
        await stores.queues.replace(tree())
        epoch = await acquire_epoch(stores)
        assert list((await stores.cluster.apply(plan, now=time_at(0), epoch=epoch)).rejected) == [
            GangId(run.id)
        ]
        assert (await stores.cluster.snapshot(now=time_at(0))).queues == tree()
        await start_run(stores, run.id)


class PromiseCases:
    """What runs are told while they wait."""

    async def test_holds_tell_of_what_stands_in_the_way(self, stores: ClusterStores) -> None:
        runs = [await submit_run(stores, queue=queue) for queue in (VISION, SPEECH, VISION)]
        holds = [
            Hold(GangId(runs[0].id), HoldReason.QUOTA, "full", 1, ("queue:vision", "run:x"), time_at(60)),
            Hold(GangId(runs[1].id), HoldReason.NO_CAPACITY, "busy", 1),
            Hold(GangId(runs[2].id), HoldReason.BEHIND, "waits", 2),
        ]
        assert set(await record_holds(stores, *holds)) == {run.id for run in runs}
        assert list(await record_holds(stores, *holds)) == []
        found = [await stores.runs.get(run.id) for run in runs]
        assert [(run.position, run.hold_reason, run.blocked_by, run.expected_at) for run in found] == [
            (1, "quota", ("queue:vision", "run:x"), time_at(60)),
            (1, "no-capacity", (), None),
            (2, "behind", (), None),
        ]
        await record_observation(stores, nodes=[make_node()])
        await start_run(stores, runs[0].id)
        moved = Hold(GangId(runs[2].id), HoldReason.BEHIND, "waits", 1)
        assert list(await record_holds(stores, moved, holds[1])) == []  # it moved up: that alone is not told
        assert [(await stores.runs.get(run.id)).position for run in runs] == [None, 1, 1]
        again = Hold(GangId(runs[2].id), HoldReason.BEHIND, "waits", 1, expected_at=time_at(90))
        assert list(await record_holds(stores, again, holds[0])) == [runs[2].id]
        assert (await stores.runs.get(runs[0].id)).blocked_by == ()

    async def test_a_plan_alone_tells_nothing(self, stores: ClusterStores) -> None:
        run = await submit_run(stores)
        await apply_placements(stores, hold=(Hold(GangId(run.id), HoldReason.BEHIND, "waits", 1),))
        assert (await stores.runs.get(run.id)).position is None

    async def test_promises_stand_until_they_are_replaced(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node()])
        runs = [await submit_run(stores) for _ in range(3)]
        first, second, third = [
            Promise(GangId(run.id), time_at(60 + n), time_at(0), (NodeId("n1"),), has_preempted=n == 1)
            for n, run in enumerate(runs)
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
        breach = Breach(first.gang, BreachCause.NODE_LOST, "n9 is gone", time_at(60), time_at(99))
        await apply_placements(stores, promises=(second, third), breaches=(breach,), seconds=2)
        assert set((await stores.cluster.snapshot(now=time_at(2))).promises) == {second.gang, third.gang}
        kinds = [(one.kind, one.at) for one in await stores.runs.events(runs[0].id)]
        assert kinds == [(RunEventKind.PROMISED, time_at(0)), (RunEventKind.BREACHED, time_at(2))]
        assert "n9 is gone" in (await stores.runs.events(runs[0].id))[-1].detail
        assert len(await stores.runs.events(runs[1].id)) == 1

    async def test_who_waits_no_longer_is_promised_nothing(self, stores: ClusterStores) -> None:
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
        await apply_placements(stores, promises=promises, seconds=2)  # a stale one
        assert set((await stores.cluster.snapshot(now=time_at(2))).promises) == {promises[2].gang}
