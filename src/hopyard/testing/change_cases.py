"""Cases of changed runs: their requests while they wait, their name, tags and note at any time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hopyard.domain.attempt import ExitKind
from hopyard.domain.breach_causes import BreachCause
from hopyard.domain.cluster import Promise
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import GangId, NodeId, QueueName, RunId, attempt_id
from hopyard.domain.plan_record import BreachRecord, HoldRecord, PlanRecord, PreemptionRecord
from hopyard.domain.queue import Queue, QueueTree
from hopyard.domain.run import HELD_REASON, Run, RunEvent, RunEventKind, RunPhase
from hopyard.errors import Conflict, NotFound
from hopyard.interfaces.run_store import RunFilter
from hopyard.testing.run_store_cases import MISSING_RUN
from hopyard.testing.stores import (
    ClusterStores,
    acquire_epoch,
    apply_placements,
    exited_status,
    make_node,
    make_placement,
    pending_gang,
    record_holds,
    record_observation,
    start_run,
    started_run,
    submit_run,
    time_at,
)

_OTHER_QUEUE = QueueName("other")


async def _update_run(stores: ClusterStores, run: RunId, *, before: Run | None = None, **changes: Any) -> Run:
    """Changes a run and returns it. changes: fields of its spec, or held_by and note."""
    current = before or await stores.runs.get(run)
    run_fields = {name: changes.pop(name) for name in ("held_by", "note") if name in changes}
    changed = replace(current, spec=replace(current.spec, **changes), **run_fields)
    await stores.cluster.update_run(
        current, changed, RunEvent(time_at(50), RunEventKind.CHANGED, "by bob: this")
    )
    return await stores.runs.get(run)


async def _two_queues(stores: ClusterStores) -> None:
    await stores.queues.replace(
        QueueTree(
            {name: Queue(name) for name in (QueueName("default"), _OTHER_QUEUE)}, default=QueueName("default")
        )
    )


class ChangeCases:
    """A change is stored only if the run still is as expected."""

    async def test_request_of_waiting_run_changes(self, stores: ClusterStores) -> None:
        await _two_queues(stores)
        await record_observation(stores, nodes=[make_node(cpus=8)])
        run = await submit_run(stores, now=time_at(1))
        await submit_run(stores, now=time_at(2))
        await record_holds(stores, HoldRecord(GangId(run.id), HoldReason.NO_CAPACITY, "no room", 1))
        before = (await stores.cluster.snapshot(now=time_at(3))).version
        (role,) = run.spec.roles
        bigger = replace(role, resources=replace(role.resources, cpu_milli=5000))
        after = await _update_run(
            stores, run.id, queue=_OTHER_QUEUE, priority=70, time_limit_s=60.0, roles=(bigger,)
        )
        assert (after.spec.queue, after.spec.priority, after.spec.time_limit_s, after.spec.roles) == (
            _OTHER_QUEUE,
            70,
            60.0,
            (bigger,),
        )
        assert (after.submitted_at, after.position, after.hold_detail) == (time_at(1), None, "")
        snapshot = await stores.cluster.snapshot(now=time_at(4))
        assert snapshot.version > before
        gang = pending_gang(snapshot, run.id)
        assert gang == after.spec.to_gang(run.id, "alice", submitted_at=time_at(1))
        assert await stores.queues.count_waiting() == {_OTHER_QUEUE: 1, QueueName("default"): 1}
        assert [(event.at, event.kind, event.detail) for event in await stores.runs.events(run.id)] == [
            (time_at(50), RunEventKind.CHANGED, "by bob: this")
        ]
        await record_holds(stores, HoldRecord(GangId(run.id), HoldReason.QUOTA, "quota", 1))
        assert (await stores.runs.get(run.id)).hold_detail == "quota"
        assert await start_run(stores, run.id, seconds=5) == attempt_id(run.id, 1)

    async def test_earlier_plan_does_not_start_changed_run(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node(cpus=8)])
        changed, held, other = [await submit_run(stores) for _ in range(3)]
        snapshot = await stores.cluster.snapshot(now=time_at(1))
        plan = [make_placement(pending_gang(snapshot, run.id), "n1") for run in (changed, held, other)]
        await _update_run(stores, changed.id, priority=90)
        await _update_run(stores, held.id, held_by="bob")
        result = await apply_placements(stores, *plan)
        assert (result.applied, set(result.rejected)) == (
            (GangId(other.id),),
            {GangId(changed.id), GangId(held.id)},
        )
        assert (await stores.runs.get(changed.id)).phase is RunPhase.QUEUED

    @pytest.mark.parametrize(
        "since", ["priority", "queue", "held", "held and released", "stopped", "started"]
    )
    async def test_earlier_plan_does_not_preempt_or_promise_for_changed_run(
        self, stores: ClusterStores, since: str
    ) -> None:
        await _two_queues(stores)
        await record_observation(stores, nodes=[make_node(cpus=8)])
        victims = [await submit_run(stores) for _ in range(2)]
        attempts = [await start_run(stores, victim.id) for victim in victims]
        changed, other = [await submit_run(stores) for _ in range(2)]
        gangs = [GangId(run.id) for run in (changed, other)]
        snapshot = await stores.cluster.snapshot(now=time_at(1))
        plan = PlanRecord(
            snapshot.version,
            preempt=tuple(
                PreemptionRecord(attempt, victim, gang, "makes room")
                for attempt, victim, gang in zip(
                    attempts, [GangId(run.id) for run in victims], gangs, strict=True
                )
            ),
            promises=tuple(
                Promise(gang, time_at(60), time_at(1), (NodeId("n1"),), has_preempted=True) for gang in gangs
            ),
            breaches=tuple(BreachRecord(gang, BreachCause.OVERRUN, "late") for gang in gangs),
        )
        if since == "stopped":
            await stores.cluster.request_stop(changed.id, now=time_at(2))
        elif since == "started":
            await start_run(stores, changed.id, seconds=2)
        elif since.startswith("held"):
            await _update_run(stores, changed.id, held_by="bob")
            if since == "held and released":
                await _update_run(stores, changed.id, held_by=None)
        else:
            await _update_run(
                stores, changed.id, **({"priority": 10} if since == "priority" else {"queue": _OTHER_QUEUE})
            )
        result = await stores.cluster.apply(
            plan, now=time_at(3), epoch=await acquire_epoch(stores, seconds=3)
        )
        assert result.preempted == (attempts[1],)
        after = await stores.cluster.snapshot(now=time_at(4))
        assert ([running.attempt for running in after.running if running.stopping], list(after.promises)) == (
            [attempts[1]],
            [gangs[1]],
        )
        kinds = {event.kind for event in await stores.runs.events(changed.id)}
        assert not kinds & {RunEventKind.BREACHED, RunEventKind.PROMISED}
        assert {event.kind for event in await stores.runs.events(other.id)} == {
            RunEventKind.BREACHED,
            RunEventKind.PROMISED,
        }

    async def test_earlier_plan_does_not_set_hold_of_changed_run(self, stores: ClusterStores) -> None:
        """The holds of other runs are stored as planned. The earlier hold of the changed run is removed."""
        await record_observation(stores, nodes=[make_node()])
        changed, other = await submit_run(stores, now=time_at(1)), await submit_run(stores, now=time_at(2))
        holds = [
            HoldRecord(GangId(run.id), HoldReason.NO_CAPACITY, "needs 1 CPU", number)
            for number, run in enumerate((changed, other), 1)
        ]
        based_on, epoch = (await stores.cluster.snapshot(now=time_at(3))).version, await acquire_epoch(stores)
        await _update_run(stores, changed.id, priority=70)
        assert list(
            await stores.cluster.record_holds(holds, based_on=based_on, now=time_at(3), epoch=epoch)
        ) == [other.id]
        assert [(await stores.runs.get(run.id)).hold_detail for run in (changed, other)] == [
            "",
            "needs 1 CPU",
        ]
        await record_holds(stores, HoldRecord(GangId(changed.id), HoldReason.QUOTA, "quota", 1), holds[1])
        assert (
            list(await stores.cluster.record_holds(holds, based_on=based_on, now=time_at(4), epoch=epoch))
            == []
        )
        assert (await stores.runs.get(changed.id)).hold_detail == "quota"

    async def test_held_run_is_in_no_snapshot_until_released(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node()])
        run = await submit_run(stores, now=time_at(1))
        await record_holds(stores, HoldRecord(GangId(run.id), HoldReason.NO_CAPACITY, "no room", 1))
        held = await _update_run(stores, run.id, held_by="bob")
        assert (held.phase, held.held_by, held.hold_reason, held.position) == (
            RunPhase.QUEUED,
            "bob",
            HELD_REASON,
            None,
        )
        assert "held by bob" in held.hold_detail
        assert list((await stores.cluster.snapshot(now=time_at(2))).pending) == []
        await record_holds(stores, HoldRecord(GangId(run.id), HoldReason.NO_CAPACITY, "late", 1))
        assert (await stores.runs.get(run.id)).hold_reason == HELD_REASON
        released = await _update_run(stores, run.id, held_by=None)
        assert (released.held_by, released.hold_reason) == (None, "")
        assert pending_gang(await stores.cluster.snapshot(now=time_at(3)), run.id).submitted_at == time_at(1)
        await record_holds(stores, HoldRecord(GangId(run.id), HoldReason.NO_CAPACITY, "no room", 1))
        assert (await stores.runs.get(run.id)).position == 1
        attempt = await start_run(stores, run.id, seconds=4)
        await stores.cluster.record_status(exited_status(attempt), now=time_at(5))
        assert (await stores.runs.get(run.id)).held_by is None

    async def test_held_run_can_be_stopped(self, stores: ClusterStores) -> None:
        run = await submit_run(stores)
        await _update_run(stores, run.id, held_by="bob")
        await stores.cluster.request_stop(run.id, now=time_at(2))
        ended = await stores.runs.get(run.id)
        assert (ended.phase, ended.held_by, ended.hold_reason) == (RunPhase.CANCELLED, None, "")

    async def test_promise_to_changed_run_is_withdrawn(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node()])
        run = await submit_run(stores)
        promise = Promise(GangId(run.id), time_at(60), time_at(0), (NodeId("n1"),))
        await apply_placements(stores, promises=(promise,))
        await _update_run(stores, run.id, label="named")
        assert (await stores.runs.get(run.id)).promised_at == time_at(60)
        await _update_run(stores, run.id, priority=70)
        assert (await stores.runs.get(run.id)).promised_at is None
        assert not (await stores.cluster.snapshot(now=time_at(1))).promises

    async def test_name_tags_and_note_change_in_every_phase(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores, label="old", tags={"a": "1", "b": "2"})
        version = (await stores.cluster.snapshot(now=time_at(1))).version
        after = await _update_run(stores, run, label="new", tags={"b": "3"}, note="look\nhere")
        assert (after.spec.label, after.spec.tags, after.note, after.phase) == (
            "new",
            {"b": "3"},
            "look\nhere",
            RunPhase.STARTING,
        )
        assert (await stores.cluster.snapshot(now=time_at(1))).version == version
        for where, expected in (
            (RunFilter(label="new"), [run]),
            (RunFilter(label="old"), []),
            (RunFilter(tags={"b": "3"}), [run]),
            (RunFilter(tags={"a": "1"}), []),
            (RunFilter(text="NEW"), [run]),
        ):
            assert [listed.id for listed in await stores.runs.list(where)] == expected
        await stores.cluster.record_status(exited_status(attempt), now=time_at(2))
        assert (await _update_run(stores, run, note="")).note == ""

    async def test_second_of_two_concurrent_changes_is_rejected(self, stores: ClusterStores) -> None:
        await record_observation(stores, nodes=[make_node()])
        run = await submit_run(stores)
        await _update_run(stores, run.id, priority=70)
        for changes in ({"priority": 80}, {"note": "n"}, {"held_by": "bob"}):
            with pytest.raises(Conflict, match="changed at the same time"):
                await _update_run(stores, run.id, before=run, **changes)
        current = await stores.runs.get(run.id)
        await start_run(stores, run.id, seconds=1)
        late: list[dict[str, Any]] = [{"priority": 80}, {"held_by": "bob"}, {"time_limit_s": 1.0}]
        for changes in late:
            with pytest.raises(Conflict, match="does not wait: it is starting"):
                await _update_run(stores, run.id, before=current, **changes)
        assert (await stores.runs.get(run.id)).spec == current.spec
        assert len(await stores.runs.events(run.id)) == 1
        with pytest.raises(NotFound):
            await _update_run(stores, run.id, before=replace(current, id=MISSING_RUN), note="n")

    async def test_requeued_run_changes(self, stores: ClusterStores) -> None:
        run, attempt = await started_run(stores)
        await stores.cluster.fail_launch(attempt, "no", now=time_at(1))
        await _update_run(stores, run, time_limit_s=5.0)
        assert await start_run(stores, run, seconds=2) == attempt_id(run, 2)
        (running,) = (await stores.cluster.snapshot(now=time_at(3))).running
        assert running.gang.time_limit_s == 5.0

    async def test_backoff_of_requeued_run_survives_change(self, stores: ClusterStores) -> None:
        await _two_queues(stores)
        run, first = await started_run(stores)
        await stores.cluster.request_preempt(run, "room", now=time_at(1))
        await stores.cluster.record_status(exited_status(first, kind=ExitKind.PREEMPTED), now=time_at(2))
        second = await start_run(stores, run, seconds=3)
        await stores.cluster.fail_launch(second, "no driver", now=time_at(4), kind=ExitKind.NODE_FAULT)
        (before,) = (await stores.cluster.snapshot(now=time_at(5))).backing_off
        assert (before.preemptions, before.requeue_reason) == (1, "no driver")
        assert before.not_before is not None and before.not_before > time_at(5)
        held = await _update_run(stores, run, queue=_OTHER_QUEUE, held_by="bob")
        assert held.preemptions == 1
        snapshot = await stores.cluster.snapshot(now=time_at(5))
        assert (snapshot.backing_off, list(snapshot.pending)) == ((), [])
        assert await stores.queues.count_waiting() == {_OTHER_QUEUE: 1}
        await _update_run(stores, run, held_by=None)
        assert (await stores.cluster.snapshot(now=time_at(5))).backing_off == (
            replace(before, queue=_OTHER_QUEUE),
        )
        assert await stores.queues.count_waiting() == {_OTHER_QUEUE: 1}
        with pytest.raises(Conflict, match=str(_OTHER_QUEUE)):
            await stores.queues.replace(
                QueueTree({QueueName("default"): Queue(QueueName("default"))}, default=QueueName("default"))
            )
        assert pending_gang(await stores.cluster.snapshot(now=before.not_before), run) == replace(
            before, queue=_OTHER_QUEUE
        )
