"""Records a simulation as it runs: sums over time, samples, and a history per run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from hopyard.domain.attempt import ExitKind
from hopyard.domain.cluster import Plan
from hopyard.domain.duration_keys import total_gpus
from hopyard.domain.gang import Gang
from hopyard.domain.ids import GangId, QueueName, RunId
from hopyard.domain.queue import Amounts
from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.explain.breach_messages import breach_message
from hopyard.simulator.allocation_audit import AllocationAudit
from hopyard.simulator.engine import SimulatedAttempt
from hopyard.simulator.fairness import FairShareAccounting
from hopyard.simulator.fragmentation import RequestMix
from hopyard.simulator.reservations import ReservationMeter

MAX_SAMPLES = 1024


@dataclass(slots=True)
class RunTimeline:
    """One run. gpus: requested. lost_time: machine time without progress, of attempts that ended early and of
    starting and restoring the attempts after them. lost_gpu_time: the same for each GPU that it held."""

    submitted_at: datetime
    queue: QueueName
    gpus: int
    demand: Amounts
    duration: timedelta
    started_at: datetime | None = None
    ended_at: datetime | None = None
    attempts: int = 0
    preempted: int = 0
    killed: int = 0
    gpu_hold_time: timedelta = timedelta(0)
    lost_time: timedelta = timedelta(0)
    lost_gpu_time: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    gpu_used: float
    cpu_used: float
    waiting: int
    running: int
    fragmentation: float


class SimulationRecorder:
    """start: the moment of 0. changed_at: when a run was last submitted, started or ended. Only `advance_to`
    moves the time; all other methods record events at the moment reached."""

    def __init__(
        self,
        start: datetime,
        allocations: AllocationAudit,
        request_mix: RequestMix,
        shares: FairShareAccounting,
        reservations: Sequence[ReservationMeter] = (),
    ) -> None:
        self.start = self.now = self.changed_at = start
        self.allocations, self._request_mix, self.shares = allocations, request_mix, shares
        self.reservations = reservations
        self.timelines: dict[RunId, RunTimeline] = {}
        self.samples: list[Sample] = []
        self.sample_interval = timedelta(seconds=60)
        self._next_sample_at = start
        self.waiting = self.running = self.ended = 0
        self.gpu_time = self.cpu_time = 0  # thousandths times microseconds
        self.first_at: datetime | None = None
        self.last_end: datetime | None = None
        self.node_losses = 0
        self.breaches: list[tuple[float, str, GangId, str]] = []
        self.causes: Counter[str] = Counter()
        self.promised: dict[GangId, datetime] = {}
        self.promises_made = self.promises_kept = self.promises_late = 0

    # -- time ------------------------------------------------------------------------------------------------

    def advance_to(self, now: datetime) -> None:
        """Adds the time until now, in which nothing changed."""
        while self._next_sample_at <= now:
            self._sample(self._next_sample_at)
        us = (now - self.now) // timedelta(microseconds=1)
        self.gpu_time += us * self.allocations.gpu_used
        self.cpu_time += us * self.allocations.cpu_used
        self.shares.advance(us)
        for meter in self.reservations if us else ():
            meter.advance(self.now, now)
        self.now = now

    def _sample(self, at: datetime) -> None:
        allocations = self.allocations
        self.samples.append(
            Sample(
                (at - self.start).total_seconds(),
                allocations.gpu_used / allocations.gpu_total if allocations.gpu_total else 0.0,
                allocations.cpu_used / allocations.cpu_total if allocations.cpu_total else 0.0,
                self.waiting,
                self.running,
                self._request_mix.fragmentation(allocations),
            )
        )
        self._next_sample_at = at + self.sample_interval
        if len(self.samples) >= MAX_SAMPLES:  # half as many, twice as far apart
            self.samples = self.samples[::2]
            self.sample_interval *= 2
            self._next_sample_at = (
                self.start + timedelta(seconds=self.samples[-1].at_s) + self.sample_interval
            )

    # -- runs ------------------------------------------------------------------------------------------------

    def on_submitted(self, run: RunId, gang: Gang, duration: timedelta) -> None:
        self.first_at = self.first_at or self.now
        self.changed_at = self.now
        demand = self.shares.demand_of(gang)
        self.timelines[run] = RunTimeline(self.now, gang.queue, total_gpus(gang), demand, duration)
        self.waiting += 1
        self.shares.add_demand(gang.queue, demand)

    def on_started(self, state: SimulatedAttempt) -> None:
        timeline = self.timelines[state.run_id]
        self.changed_at = self.now
        if timeline.started_at is None:
            timeline.started_at = self.now
        timeline.attempts += 1
        self.waiting -= 1
        self.running += 1
        self.allocations.allocate(state.placement)
        self._count(state, 1)
        self.shares.add_usage(timeline.queue, state.placement)
        promised = self.promised.pop(GangId(state.run_id), None)
        if promised is not None:
            self.promises_kept += self.now <= promised
            self.promises_late += self.now > promised

    def on_stopped(self, state: SimulatedAttempt, saved_work: timedelta) -> None:
        """Records the end of an attempt. Its run waits again, or (see `_is_completed`) has ended too."""
        timeline, held = self.timelines[state.run_id], self.now - state.placed_at
        assert state.pending_exit is not None
        self.changed_at = self.now
        self.running -= 1
        self.allocations.release(state.placement)
        self._count(state, -1)
        self.shares.add_usage(timeline.queue, state.placement, -1)
        timeline.gpu_hold_time += held
        if timeline.attempts > 1 or not _is_completed(state):
            lost = held - saved_work / state.rate
            timeline.lost_time += lost
            timeline.lost_gpu_time += (
                lost
                * sum(
                    assignment.gpu_milli * len(assignment.gpus) for assignment in state.placement.assignments
                )
                / WHOLE_GPU
            )
        timeline.preempted += state.pending_exit.kind is ExitKind.PREEMPTED
        timeline.killed += state.pending_exit.kind is ExitKind.LOST
        if _is_completed(state):
            timeline.ended_at = self.last_end = self.now
            self.ended += 1
            self.shares.add_demand(timeline.queue, timeline.demand, -1)
        else:
            self.waiting += 1

    def _count(self, state: SimulatedAttempt, sign: int) -> None:
        for meter in self.reservations:
            meter.count(state.placement, sign)

    def on_plan(self, plan: Plan) -> None:
        """Records the promises and breaches of a plan."""
        for breach in plan.breaches:
            self.causes[breach.cause.value] += 1
            self.breaches.append(
                (
                    (self.now - self.start).total_seconds(),
                    breach.cause.value,
                    breach.gang,
                    breach_message(breach.detail),
                )
            )
            self.promised.pop(breach.gang, None)
        for promise in plan.promises:
            self.promises_made += promise.gang not in self.promised
            self.promised[promise.gang] = promise.start_at


def _is_completed(state: SimulatedAttempt) -> bool:
    return state.pending_exit is not None and state.pending_exit.kind in (
        ExitKind.EXIT_CODE,
        ExitKind.TIME_LIMIT,
    )
