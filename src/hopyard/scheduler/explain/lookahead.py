"""Simulates the next cycles: runs the real policy, cycle after cycle, on a cluster in which every run takes
exactly a given duration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType

from hopyard.domain.cluster import Breach, Plan, Promise, Running, Snapshot
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId, NodeId, Version
from hopyard.scheduler.cycle.planner import Planner
from hopyard.scheduler.duration_estimates import (
    MIN_PACE_PROGRESS,
    DurationEstimate,
    estimate_duration,
    has_known_duration,
)
from hopyard.scheduler.explain.next_cycle import with_requested_preemptions
from hopyard.scheduler.timeline.run_end_estimates import OVERDUE_WINDOW_S, RunEndEstimates

MAX_CYCLES = 100
MIN_CYCLES = 8  # fewer cycles give too little information for their cost
MAX_SIMULATED_SIZE = 20_000  # nodes and gangs: in a larger cluster even MIN_CYCLES take too long
# nodes and gangs examined in all cycles together, so that an answer takes a second or two
WORK_BUDGET = 12_000
# rechecks are at least one part in this many of the simulated time apart
RECHECKS_PER_HORIZON = 20
DurationPick = Callable[[DurationEstimate], float]
NO_PROGRESS: Mapping[GangId, float] = MappingProxyType({})


def mid_s(estimate: DurationEstimate) -> float:
    return estimate.mid_s


def expected_starts(
    snapshot: Snapshot, plan: Plan, progress: Mapping[GangId, float] = NO_PROGRESS
) -> dict[GangId, datetime]:
    """Returns the expected starts of gangs that are promised a start, as `explain_pending` reports them.
    Leaves out starts too many cycles ahead, and starts that depend on the end of a run with too little
    history.

    plan: the plan of this snapshot. progress: as in `explain_pending`.
    """
    simulation = LookaheadSimulation(with_requested_preemptions(snapshot, plan), plan, mid_s, progress)
    starts = {promise.gang: simulation.starts_at(promise.gang) for promise in plan.promises}
    return {
        gang: start_at
        for gang, start_at in starts.items()
        if start_at is not None and gang not in simulation.uncertain_gangs
    }


class LookaheadSimulation:
    """One possible future. The policy does not know the simulated durations: it estimates, promises and
    decides as usual.

    No run is submitted, no node comes or goes, and the history of durations does not change.
    """

    def __init__(
        self, snapshot: Snapshot, plan: Plan, pick_s: DurationPick, progress: Mapping[GangId, float]
    ) -> None:
        """plan: the plan of this snapshot, already applied. pick_s: selects the simulated duration from each
        estimate. progress: as in `explain_pending`."""
        self._snapshot, self._pick_s = snapshot, pick_s
        self.now = self._began_at = snapshot.now
        size = len(snapshot.nodes) + len(snapshot.pending) + len(snapshot.running)
        # number of remaining cycles
        self._cycles_left = (
            min(MAX_CYCLES, max(MIN_CYCLES, WORK_BUDGET // (size + 1))) if size <= MAX_SIMULATED_SIZE else 0
        )
        self._pending = {gang.id: gang for gang in snapshot.pending}
        self._running = {running.gang.id: running for running in snapshot.running if self._cycles_left}
        run_ends = RunEndEstimates.of(
            self._running.values(),
            snapshot.durations,
            snapshot.now,
            grace_s=snapshot.preempt_grace_s,
            pick_s=pick_s,
            progress=progress,
        )
        # for gangs that started since: start and end of their last attempt
        self.run_spans: dict[GangId, tuple[datetime, datetime]] = {}
        # gangs with a first start that depends on the end of a run of unknown duration
        self.uncertain_gangs: set[GangId] = set()
        self._progress = progress
        self._uncertain_nodes: set[NodeId] = set()  # nodes on which such a run ended
        self._first_starts: dict[GangId, datetime] = {}  # first start of each gang
        self.breaches: dict[GangId, Breach] = {}  # first breach of each promise
        self._ends = {end.gang: snapshot.now + timedelta(seconds=end.mid_s) for end in run_ends.ends()}
        # remaining work of preempted runs, which will resume
        self._remaining: dict[GangId, timedelta] = {}
        for preempted in self._running.values():
            if preempted.preempted_for is not None:
                continued = replace(preempted, stopping=False, preempted_for=None, preempt_requested_at=None)
                end = RunEndEstimates.of(
                    [continued], snapshot.durations, snapshot.now, pick_s=pick_s, progress=progress
                ).end(preempted.gang.id)
                assert end is not None
                self._remaining[preempted.gang.id] = timedelta(seconds=end.mid_s)
        self._requested_gangs: dict[GangId, Gang] = {}  # placed gangs, as they were requested
        self._promises: dict[GangId, Promise] = {}
        self._planner = Planner()
        self._recheck_at: datetime | None = None
        self._apply_plan(plan)

    def starts_at(self, gang: GangId) -> datetime | None:
        """Returns the start of a gang. Returns None if the simulation ended before, at `now`. The result does
        not depend on earlier calls for other gangs."""
        while (
            gang not in self._first_starts
            and self._cycles_left
            and (event_at := self._next_event_at()) is not None
        ):
            self._cycles_left -= 1
            self.now = event_at
            for ended in [name for name, end in self._ends.items() if end <= event_at]:
                self._end_gang(ended)
            self._apply_plan(self._planner(self._current_snapshot()))
        return self._first_starts.get(gang)

    def start_or_default(self, gang: GangId, default: Callable[[], datetime]) -> datetime:
        """Returns the start of a gang. If the simulation ended before, returns `default`, but no time before
        the end of the simulation."""
        return self.starts_at(gang) or max(default(), self.now)

    def unblocks_at(self, name: str, start_at: datetime | None) -> datetime | None:
        """Returns when a blocking run ("run:ID", pending runs included) no longer blocks a gang that starts
        at `start_at`: the blocking run has started, or ended."""
        span = self.run_spans.get(GangId(name.removeprefix("run:")))
        if span is None or start_at is None:
            return None
        return span[0] if start_at < span[1] else span[1]

    def _current_snapshot(self) -> Snapshot:
        return replace(
            self._snapshot,
            version=Version(self._snapshot.version + 1),
            now=self.now,
            pending=tuple(self._pending.values()),
            running=tuple(self._running.values()),
            promises=self._promises,
            max_placements=0,
        )

    def _next_event_at(self) -> datetime | None:
        """Returns when a run ends, or time alone changes the plan."""
        times = [*self._ends.values()]
        if self._recheck_at is not None:
            times.append(
                max(
                    self._recheck_at,
                    self.now
                    + max(
                        (self.now - self._began_at) / RECHECKS_PER_HORIZON,
                        timedelta(seconds=OVERDUE_WINDOW_S),
                    ),
                )
            )
        return min(times, default=None)

    def _apply_plan(self, plan: Plan) -> None:
        for placement in plan.place:
            self._start_gang(placement)
        for preemption in plan.preempt:
            run = self._running.get(preemption.gang)
            if run is not None and not run.stopping:
                self._preempt(
                    replace(
                        run,
                        stopping=True,
                        preempted_for=preemption.for_gang or None,
                        preempt_requested_at=self.now,
                    )
                )
        for breach in plan.breaches:
            self.breaches.setdefault(breach.gang, breach)
        self._promises = {promise.gang: promise for promise in plan.promises if promise.gang in self._pending}
        self._recheck_at = plan.next_cycle_at

    def _start_gang(self, placement: Placement) -> None:
        name = placement.gang.id
        self._requested_gangs[name] = self._pending.pop(name)
        self._running[name] = Running(placement, self.now, started_at=self.now)
        duration = self._remaining.pop(name, None) or timedelta(
            seconds=self._pick_s(estimate_duration(placement.gang, self._snapshot.durations))
        )
        self._ends[name] = self.now + max(duration, timedelta(seconds=OVERDUE_WINDOW_S))
        self.run_spans[name] = self.now, self._ends[name]
        if name not in self._first_starts and not self._uncertain_nodes.isdisjoint(
            assignment.node for assignment in placement.assignments
        ):
            self.uncertain_gangs.add(name)
        self._first_starts.setdefault(name, self.now)

    def _preempt(self, running: Running) -> None:
        """Preempts the run; it will resume from where it was."""
        name, end = running.gang.id, self._ends[running.gang.id]
        stop = RunEndEstimates.of(
            [running], {}, self.now, grace_s=self._snapshot.preempt_grace_s, pick_s=self._pick_s
        ).end(name)
        assert stop is not None
        stopped_at = self.now + timedelta(seconds=stop.mid_s)
        self._running[name] = running
        if stopped_at < end:
            self._ends[name], self._remaining[name] = stopped_at, end - self.now

    def _end_gang(self, name: GangId) -> None:
        ended = self._running.pop(name)
        del self._ends[name]
        if name in self.uncertain_gangs or not (ended.stopping or self._has_known_duration(ended.gang)):
            self._uncertain_nodes.update(assignment.node for assignment in ended.placement.assignments)
        if name in self._remaining:
            requested_gang = self._requested_gangs.get(name, ended.gang)
            served_s = requested_gang.served_s + (self.now - (ended.started_at or self.now)).total_seconds()
            self._pending[name] = replace(
                requested_gang, served_s=served_s, preemptions=requested_gang.preemptions + 1
            )

    def _has_known_duration(self, gang: Gang) -> bool:
        """Returns whether the history is enough to estimate its end."""
        return self._progress.get(gang.id, 0.0) >= MIN_PACE_PROGRESS or has_known_duration(
            gang, self._snapshot.durations
        )
