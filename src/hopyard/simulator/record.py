"""What happened in a simulation, as it happens: sums over time, samples, and a story per run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from hopyard.domain.attempt import ExitKind
from hopyard.domain.cluster import Plan
from hopyard.domain.durations import gpus_of
from hopyard.domain.gang import Gang
from hopyard.domain.ids import GangId, QueueName, RunId
from hopyard.domain.queue import Amounts
from hopyard.domain.resources import WHOLE_GPU
from hopyard.simulator.engine import Live
from hopyard.simulator.fairness import FairShares
from hopyard.simulator.fragments import Shapes
from hopyard.simulator.ledger import Ledger
from hopyard.simulator.reservations import Kept

MOST_SAMPLES = 1024


@dataclass(slots=True)
class Story:
    """One run. gpus: asked for. lost: time on machines that did not bring it forward, of attempts that ended
    early, and of starting and restoring those that followed; gpu_lost: the same for each GPU that it held."""

    submitted_at: datetime
    queue: QueueName
    gpus: int
    demand: Amounts
    takes: timedelta
    started_at: datetime | None = None
    ended_at: datetime | None = None
    attempts: int = 0
    preempted: int = 0
    killed: int = 0
    held: timedelta = timedelta(0)
    lost: timedelta = timedelta(0)
    gpu_lost: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    gpu_used: float
    cpu_used: float
    waiting: int
    running: int
    fragmentation: float


class Record:
    """start: the moment of 0. changed_at: when a run came, started or ended last.
    Times go on by `pass_to`; everything else happens at the moment reached."""

    def __init__(
        self, start: datetime, ledger: Ledger, shapes: Shapes, shares: FairShares, kept: Sequence[Kept] = ()
    ) -> None:
        self.start = self.now = self.changed_at = start
        self.ledger, self._shapes, self.shares = ledger, shapes, shares
        self.kept = kept
        self.stories: dict[RunId, Story] = {}
        self.samples: list[Sample] = []
        self.sample_every = timedelta(seconds=60)
        self._sample_at = start
        self.waiting = self.running = self.ended = 0
        self.gpu_time = self.cpu_time = 0  # thousandths times microseconds
        self.first_at: datetime | None = None
        self.last_end: datetime | None = None
        self.node_losses = 0
        self.breaches: list[tuple[float, str, GangId, str]] = []
        self.causes: Counter[str] = Counter()
        self.promised: dict[GangId, datetime] = {}
        self.promises_given = self.promises_kept = self.promises_late = 0

    # -- time
    # -------------------------------------------------------------------------------------------------------

    def pass_to(self, now: datetime) -> None:
        """Nothing changed until now."""
        while self._sample_at <= now:
            self._sample(self._sample_at)
        us = (now - self.now) // timedelta(microseconds=1)
        self.gpu_time += us * self.ledger.gpu_used
        self.cpu_time += us * self.ledger.cpu_used
        self.shares.pass_by(us)
        for one in self.kept if us else ():
            one.pass_by(self.now, now)
        self.now = now

    def _sample(self, at: datetime) -> None:
        ledger = self.ledger
        self.samples.append(
            Sample(
                (at - self.start).total_seconds(),
                ledger.gpu_used / ledger.gpu_total if ledger.gpu_total else 0.0,
                ledger.cpu_used / ledger.cpu_total if ledger.cpu_total else 0.0,
                self.waiting,
                self.running,
                self._shapes.fragmentation(ledger),
            )
        )
        self._sample_at = at + self.sample_every
        if len(self.samples) >= MOST_SAMPLES:  # half as many, twice as far apart
            self.samples = self.samples[::2]
            self.sample_every *= 2
            self._sample_at = self.start + timedelta(seconds=self.samples[-1].at_s) + self.sample_every

    # -- runs
    # -------------------------------------------------------------------------------------------------------

    def submitted(self, run: RunId, gang: Gang, takes: timedelta) -> None:
        self.first_at = self.first_at or self.now
        self.changed_at = self.now
        demand = self.shares.demand_of(gang)
        self.stories[run] = Story(self.now, gang.queue, gpus_of(gang), demand, takes)
        self.waiting += 1
        self.shares.wants(gang.queue, demand)

    def started(self, live: Live) -> None:
        story = self.stories[live.run]
        self.changed_at = self.now
        if story.started_at is None:
            story.started_at = self.now
        story.attempts += 1
        self.waiting -= 1
        self.running += 1
        self.ledger.take(live.placement)
        self._count(live, 1)
        self.shares.gets(story.queue, live.placement)
        promised = self.promised.pop(GangId(live.run), None)
        if promised is not None:
            self.promises_kept += self.now <= promised
            self.promises_late += self.now > promised

    def stopped(self, live: Live, kept: timedelta) -> None:
        """An attempt is over; its run waits again, or (see `finished`) is over too."""
        story, held = self.stories[live.run], self.now - live.placed_at
        assert live.ends_with is not None
        self.changed_at = self.now
        self.running -= 1
        self.ledger.give_back(live.placement)
        self._count(live, -1)
        self.shares.gets(story.queue, live.placement, -1)
        story.held += held
        if story.attempts > 1 or not _completes(live):
            lost = held - kept / live.rate
            story.lost += lost
            story.gpu_lost += (
                lost * sum(one.gpu_milli * len(one.gpus) for one in live.placement.assignments) / WHOLE_GPU
            )
        story.preempted += live.ends_with.kind is ExitKind.PREEMPTED
        story.killed += live.ends_with.kind is ExitKind.LOST
        if _completes(live):
            story.ended_at = self.last_end = self.now
            self.ended += 1
            self.shares.wants(story.queue, story.demand, -1)
        else:
            self.waiting += 1

    def _count(self, live: Live, sign: int) -> None:
        for one in self.kept:
            one.count(live.placement, sign)

    def planned(self, plan: Plan) -> None:
        """A plan was made: its promises and breaches."""
        for breach in plan.breaches:
            self.causes[breach.cause.value] += 1
            self.breaches.append(
                ((self.now - self.start).total_seconds(), breach.cause.value, breach.gang, breach.detail)
            )
            self.promised.pop(breach.gang, None)
        for promise in plan.promises:
            self.promises_given += promise.gang not in self.promised
            self.promised[promise.gang] = promise.start_at


def _completes(live: Live) -> bool:
    return live.ends_with is not None and live.ends_with.kind in (ExitKind.EXIT_CODE, ExitKind.TIME_LIMIT)
