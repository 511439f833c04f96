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
STUCK_TIMEOUT = timedelta(days=30)  # without an event for so long, no event will come
# mean losses of each machine without progress of any run: no run will ever end
MAX_NODE_LOSSES = 1000
MAX_ATTEMPTS = 1_000_000  # the engine loses runs only when nodes are lost


def simulate(
    workload: Workload,
    cluster: SimulatedCluster,
    policy: str | SchedulingPolicy = DEFAULT_POLICY,
    settings: SimulationSettings | None = None,
) -> SimulationReport:
    """Simulates the workload once. Raises SpecError for an unknown policy or store, for reservations that
    cannot be granted, and if machines are lost too often for any run to end. Passes on every error of the
    policy."""
    instance = new_policy(policy) if isinstance(policy, str) else policy
    name = policy if isinstance(policy, str) else getattr(policy, "__name__", type(policy).__name__)
    return run_virtual(
        lambda idle_detector: Simulation(
            workload, cluster, name, instance, settings or SimulationSettings(), idle_detector
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
        shapes = RequestMix(role for entry in workload.runs for role in entry.spec.gang_roles())
        self._recorder = SimulationRecorder(
            workload.begin,
            self._allocations,
            shapes,
            FairShareAccounting(self._tree, cluster.nodes),
            [ReservationMeter(entry, cluster.nodes, self._tree) for entry in self._reservations],
        )
        self._engine = SimulatedEngine(
            self._clock, self._events, cluster.nodes, self._work_of_run, settings.costs, self
        )
        self._progress_shown_at = 0.0
        self._node_losses = 0  # since the last progress of a run

    async def run(self) -> SimulationReport:
        started = time.perf_counter()
        driver = asyncio.current_task()
        assert driver is not None
        async with open_stores(self._settings.store, self._idle_detector) as stores:
            self._runs, timesteps = stores.runs, AtomicTimesteps(stores.cluster, driver)
            await self._prepare(stores)
            controller = self._controller = self._new_controller(stores.runs, timesteps)
            controller_task = asyncio.get_running_loop().create_task(controller.run())
            try:
                await self._run_events(controller_task, timesteps)
            finally:
                controller_task.cancel()
                with suppress(asyncio.CancelledError):
                    await controller_task
        waiting: dict[str, str] = (
            {}
            if controller.latest_plan is None
            else {hold.gang: hold.reason.value for hold in controller.latest_plan[1].hold}
        )
        timing = Timing(time.perf_counter() - started, self._policy.spent_s, self._policy.cycles)
        return make_report(
            self._name, self._workload, self._recorder, waiting=waiting, refused=self._rejected, timing=timing
        )

    async def _prepare(self, stores: SimulationStores) -> None:
        await stores.prepare(self._tree, self._reservations)
        shares = self._recorder.shares
        checked: dict[object, tuple[NeverFitsCause | None, Amounts]] = {}
        for index, workload_run in enumerate(self._workload.runs):
            submit_at = self._workload.begin + timedelta(seconds=workload_run.at_s)
            run_id = new_run_id(submit_at, index.to_bytes(7, "big")[::-1])
            spec = self._simulated_spec(workload_run.spec)
            shape = (spec.gang_roles(), spec.topology)
            if shape not in checked:
                gang = Gang(GangId(""), shape[0], submit_at, topology=spec.topology)
                checked[shape] = never_fits(gang, self._cluster.nodes), shares.demand_of(gang)
            cause, demand = checked[shape]
            if cause is not None:
                location = self._workload.location_of(workload_run) or f"run {index + 1}"
                self._rejected.append(RejectedRow(location, never_fits_message(cause)))
                continue
            shares.add_expected(spec.queue or self._tree.default, demand, workload_run.duration_s)
            self._work_of_run[run_id] = SimulatedWork(timedelta(seconds=workload_run.duration_s), spec.size)
            self._remaining_submissions += 1
            self._events.schedule(submit_at, self._submit_action(NewRun(run_id, workload_run.user, spec)))
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

    async def _run_events(self, controller_task: asyncio.Task[None], timesteps: AtomicTimesteps) -> None:
        until = self._end_time()
        while True:
            timesteps.end()
            await self._idle_detector.wait_idle()
            timesteps.begin()
            self._policy.raise_fault()
            if controller_task.done():
                controller_task.result()
            if not self._remaining_submissions and self._recorder.ended == len(self._recorder.timelines):
                return
            next_event_at = min(
                (at for at in (self._events.next_at(), self._clock.next_at()) if at is not None), default=None
            )
            if next_event_at is None or next_event_at > until or self._is_stuck(next_event_at):
                if next_event_at is not None and next_event_at > until:
                    self._recorder.advance_to(until)
                return
            await self._move_to(next_event_at)
            while (action := self._events.pop_due(self._clock.now())) is not None:
                await action()

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
        recorder, allocations = self._recorder, self._allocations
        used = (
            allocations.gpu_used / allocations.gpu_total
            if allocations.gpu_total
            else allocations.cpu_used / max(allocations.cpu_total, 1)
        )
        runs = len(self._work_of_run)
        self._settings.on_progress(
            SimulationProgress(
                self._name, self._clock.now(), recorder.ended, runs, recorder.running, recorder.waiting, used
            )
        )

    # -- events ----------------------------------------------------------------------------------------------

    def _submit_action(self, new_run: NewRun) -> EventAction:
        async def submit() -> None:
            (run,) = await self._runs.create([new_run], now=self._clock.now())
            self._remaining_submissions -= 1
            self._recorder.on_submitted(
                run.id,
                new_run.spec.to_gang(run.id, new_run.user, submitted_at=run.submitted_at),
                self._work_of_run[run.id].duration,
            )
            self._controller.add_submitted([run])

        return submit

    def _schedule_node_loss(self, node: NodeId, after: datetime) -> None:
        lost_at = after + timedelta(seconds=self._random.expovariate(1 / self._settings.mtbf_s))

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

        self._events.schedule(lost_at, lose)

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
