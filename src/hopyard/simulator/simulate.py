"""Simulates a workload on a cluster: the real controller over an engine whose runs only take time.

Time jumps to the next event when all tasks wait, and not before. Equal arguments give equal reports.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hopyard.controller.controller import Controller
from hopyard.controller.launch_builder import LaunchBuilder
from hopyard.domain.attempt import ReplicaStatus
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.cluster import PREEMPT_GRACE_S, Plan, Snapshot
from hopyard.domain.gang import Gang
from hopyard.domain.ids import AttemptId, GangId, NodeId, RunId, new_run_id
from hopyard.domain.placement_causes import NeverFitsCause
from hopyard.domain.queue import Amounts
from hopyard.domain.run import RunSpec
from hopyard.errors import SpecError
from hopyard.interfaces.policy import SchedulingPolicy
from hopyard.interfaces.run_store import NewRun, RunStore
from hopyard.scheduler.explain.placement_messages import never_fits_message
from hopyard.scheduler.placement.never_fits import never_fits
from hopyard.simulator.allocation_audit import AllocationAudit
from hopyard.simulator.clock import ManualClock
from hopyard.simulator.engine import SimulatedAttempt, SimulatedEngine, SimulatedWork
from hopyard.simulator.event_queue import EventAction, EventQueue
from hopyard.simulator.fairness import FairShareAccounting
from hopyard.simulator.fragmentation import RequestMix
from hopyard.simulator.policies import DEFAULT_POLICY, new_policy
from hopyard.simulator.queues import check_queues, workload_queue_tree
from hopyard.simulator.recorder import SimulationRecorder
from hopyard.simulator.report import RejectedRow, SimulationReport, Timing, make_report
from hopyard.simulator.reservations import ReservationMeter, admit_reservations
from hopyard.simulator.settings import SimulatedCluster, SimulationProgress, SimulationSettings
from hopyard.simulator.stores import AtomicTimesteps, SimulationStores, open_stores
from hopyard.simulator.timed_policy import TimedPolicy
from hopyard.simulator.virtual_event_loop import IdleDetector, run_virtual
from hopyard.simulator.workload import Workload

NEVER_ENDING = timedelta(days=36500)
STUCK_TIMEOUT = timedelta(days=30)  # nothing happened for so long: nothing will
# times that each machine is lost, on average, while no run comes any further: none ever will
MAX_NODE_LOSSES = 1000
MAX_ATTEMPTS = 1_000_000  # the engine loses runs only when nodes are lost


def simulate(
    workload: Workload,
    cluster: SimulatedCluster,
    policy: str | SchedulingPolicy = DEFAULT_POLICY,
    settings: SimulationSettings | None = None,
) -> SimulationReport:
    """Simulates the workload once. Raises SpecError for an unknown policy or store, for reservations that
    cannot be honoured, and where machines are lost too often for any run to end. Passes on every error of the
    policy."""
    chosen = new_policy(policy) if isinstance(policy, str) else policy
    name = policy if isinstance(policy, str) else getattr(policy, "__name__", type(policy).__name__)
    return run_virtual(
        lambda stillness: Simulation(
            workload, cluster, name, chosen, settings or SimulationSettings(), stillness
        ).run()
    )


class Simulation:
    """One simulation. Implements the listener of the engine (`hopyard.simulator.engine.EngineListener`)."""

    def __init__(
        self,
        workload: Workload,
        cluster: SimulatedCluster,
        name: str,
        policy: SchedulingPolicy,
        settings: SimulationSettings,
        idle_detector: IdleDetector,
    ) -> None:
        self._workload, self._cluster, self._name, self._settings, self._idle_detector = (
            workload,
            cluster,
            name,
            settings,
            idle_detector,
        )
        self._policy = TimedPolicy(policy, self._on_plan)
        self._tree = cluster.queues or workload_queue_tree(workload)
        check_queues(workload, self._tree)
        self._reservations = admit_reservations(
            cluster.requested_reservations, cluster.nodes, self._tree, workload.begin, cluster.reservations
        )
        self._clock, self._events = ManualClock(workload.begin), EventQueue()
        self._random = random.Random(settings.seed)
        self._work_of_run: dict[RunId, SimulatedWork] = {}
        self._rejected: list[RejectedRow] = []
        self._remaining_submissions = 0
        self._allocations = AllocationAudit(cluster.nodes)
        shapes = RequestMix(role for one in workload.runs for role in one.spec.gang_roles())
        self._recorder = SimulationRecorder(
            workload.begin,
            self._allocations,
            shapes,
            FairShareAccounting(self._tree, cluster.nodes),
            [ReservationMeter(one, cluster.nodes, self._tree) for one in self._reservations],
        )
        self._engine = SimulatedEngine(
            self._clock, self._events, cluster.nodes, self._work_of_run, settings.costs, self
        )
        self._progress_shown_at = 0.0
        self._node_losses = 0  # of machines since a run last came any further

    async def run(self) -> SimulationReport:
        began = time.perf_counter()
        driver = asyncio.current_task()
        assert driver is not None
        async with open_stores(self._settings.store, self._idle_detector) as stores:
            self._runs, moments = stores.runs, AtomicTimesteps(stores.cluster, driver)
            await self._prepare(stores)
            controller = self._controller = self._new_controller(stores.runs, moments)
            loops = asyncio.get_running_loop().create_task(controller.run())
            try:
                await self._run_events(loops, moments)
            finally:
                loops.cancel()
                with suppress(asyncio.CancelledError):
                    await loops
        waiting: dict[str, str] = (
            {}
            if controller.latest_plan is None
            else {hold.gang: hold.reason.value for hold in controller.latest_plan[1].hold}
        )
        timing = Timing(time.perf_counter() - began, self._policy.spent_s, self._policy.cycles)
        return make_report(
            self._name, self._workload, self._recorder, waiting=waiting, refused=self._rejected, timing=timing
        )

    async def _prepare(self, stores: SimulationStores) -> None:
        await stores.prepare(self._tree, self._reservations)
        shares = self._recorder.shares
        seen: dict[object, tuple[NeverFitsCause | None, Amounts]] = {}
        for index, one in enumerate(self._workload.runs):
            at = self._workload.begin + timedelta(seconds=one.at_s)
            run_id = new_run_id(at, index.to_bytes(7, "big")[::-1])
            spec = self._simulated_spec(one.spec)
            shape = (spec.gang_roles(), spec.topology)
            if shape not in seen:
                gang = Gang(GangId(""), shape[0], at, topology=spec.topology)
                seen[shape] = never_fits(gang, self._cluster.nodes), shares.demand_of(gang)
            never, demand = seen[shape]
            if never is not None:
                location = self._workload.location_of(one) or f"run {index + 1}"
                self._rejected.append(RejectedRow(location, never_fits_message(never)))
                continue
            shares.add_expected(spec.queue or self._tree.default, demand, one.duration_s)
            self._work_of_run[run_id] = SimulatedWork(timedelta(seconds=one.duration_s), spec.size)
            self._remaining_submissions += 1
            self._events.schedule(at, self._submit_action(NewRun(run_id, one.user, spec)))
        shares.choose_measures()
        for node in self._cluster.nodes if self._settings.mtbf_s else ():
            self._schedule_node_loss(node.id, self._workload.begin)

    def _simulated_spec(self, spec: RunSpec) -> RunSpec:
        limit_s = spec.time_limit_s if self._settings.know_time_limits else None
        queue = spec.queue or self._tree.default
        priority = self._tree.queues[queue].default_priority if spec.priority is None else spec.priority
        return replace(spec, queue=queue, priority=priority, time_limit_s=limit_s, max_attempts=MAX_ATTEMPTS)

    def _new_controller(self, runs: RunStore, cluster: Any) -> Controller:
        return Controller(
            cluster=cluster,
            runs=runs,
            engine=self._engine,
            policy=self._policy,
            clock=self._clock,
            launch_builder=LaunchBuilder(runs, server_url="", sign_token=lambda _: ""),
            observe_interval=timedelta(seconds=self._settings.observe_interval_s),
            holder="simulator",
            lease=NEVER_ENDING,
            preempt_grace=timedelta(seconds=max(self._settings.costs.save_s, PREEMPT_GRACE_S)),
            holds_interval=None,
        )

    # -- time ------------------------------------------------------------------------------------------------

    async def _run_events(self, loops: asyncio.Task[None], moment_store: AtomicTimesteps) -> None:
        until = self._end_time()
        while True:
            moment_store.end()
            await self._idle_detector.wait_idle()
            moment_store.begin()
            self._policy.raise_fault()
            if loops.done():
                loops.result()
            if not self._remaining_submissions and self._recorder.ended == len(self._recorder.timelines):
                return
            coming = min(
                (at for at in (self._events.next_at(), self._clock.next_at()) if at is not None), default=None
            )
            if coming is None or coming > until or self._is_stuck(coming):
                if coming is not None and coming > until:
                    self._recorder.advance_to(until)
                return
            await self._move_to(coming)
            while (happening := self._events.pop_due(self._clock.now())) is not None:
                await happening()

    def _is_stuck(self, next_event_at: datetime) -> bool:
        """Returns whether the simulation is stuck: no run is submitted, no run is running, and the pending
        runs have waited long enough for machines, reservations or another plan."""
        return (
            not self._remaining_submissions
            and not self._recorder.running
            and next_event_at > self._recorder.changed_at + STUCK_TIMEOUT
        )

    def _end_time(self) -> datetime:
        return self._workload.begin + (
            NEVER_ENDING if self._settings.until_s is None else timedelta(seconds=self._settings.until_s)
        )

    async def _move_to(self, when: datetime) -> None:
        if self._settings.speed and when > self._clock.now():
            await asyncio.sleep((when - self._clock.now()).total_seconds() / self._settings.speed)
        if when > self._recorder.now:
            self._recorder.advance_to(when)
        self._clock.move_to(when)
        self._show_progress()

    def _show_progress(self) -> None:
        if (
            self._settings.on_progress is None
            or time.monotonic() - self._progress_shown_at < self._settings.progress_interval.total_seconds()
        ):
            return
        self._progress_shown_at = time.monotonic()
        record, ledger = self._recorder, self._allocations
        used = (
            ledger.gpu_used / ledger.gpu_total
            if ledger.gpu_total
            else ledger.cpu_used / max(ledger.cpu_total, 1)
        )
        runs = len(self._work_of_run)
        self._settings.on_progress(
            SimulationProgress(
                self._name, self._clock.now(), record.ended, runs, record.running, record.waiting, used
            )
        )

    # -- what happens ----------------------------------------------------------------------------------------

    def _submit_action(self, new: NewRun) -> EventAction:
        async def submit() -> None:
            (made,) = await self._runs.create([new], now=self._clock.now())
            self._remaining_submissions -= 1
            self._recorder.on_submitted(
                made.id,
                new.spec.to_gang(made.id, new.user, submitted_at=made.submitted_at),
                self._work_of_run[made.id].duration,
            )
            self._controller.add_submitted([made])

        return submit

    def _schedule_node_loss(self, node: NodeId, after: datetime) -> None:
        at = after + timedelta(seconds=self._random.expovariate(1 / self._settings.mtbf_s))

        async def lose() -> None:
            self._recorder.node_losses += 1
            self._node_losses += 1
            if self._node_losses > MAX_NODE_LOSSES * len(self._cluster.nodes):
                raise SpecError(
                    f"--mtbf: machines were lost {self._node_losses} times one after the other, and no run "
                    "came any further meanwhile",
                    hints=(
                        "let runs save what they did: --checkpoint-every 10m",
                        "or let machines live longer",
                    ),
                )
            self._allocations.set_ready(node, False)
            self._events.schedule(self._clock.now() + timedelta(seconds=self._settings.repair_s), repair)
            await self._engine.lose_node(node)

        async def repair() -> None:
            self._allocations.set_ready(node, True)
            await self._engine.return_node(node)
            self._schedule_node_loss(node, self._clock.now())

        self._events.schedule(at, lose)

    def _on_plan(self, _snapshot: Snapshot, plan: Plan) -> None:
        self._recorder.on_plan(plan)

    async def on_status(self, attempt: AttemptId, status: ReplicaStatus) -> None:
        await self._controller.record_status(attempt, status)

    async def on_checkpoint(self, checkpoint: Checkpoint) -> None:
        self._node_losses = 0
        await self._runs.record_checkpoint(checkpoint)

    async def on_nodes_changed(self) -> None:
        await self._controller.observe_now()

    def on_started(self, attempt: SimulatedAttempt) -> None:
        self._recorder.on_started(attempt)

    def on_ended(self, attempt: SimulatedAttempt, saved_work: timedelta) -> None:
        if saved_work > timedelta(0):
            self._node_losses = 0
        self._recorder.on_stopped(attempt, saved_work)
