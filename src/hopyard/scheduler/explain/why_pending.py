"""Explains why a gang is pending, when it is expected to start, and which other request would start
sooner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import itemgetter

from hopyard.domain.amounts import dominant_share, requested_amounts, total_amounts
from hopyard.domain.breach_causes import BreachDetail
from hopyard.domain.cluster import Hold, Plan, Snapshot
from hopyard.domain.duration_text import format_time_until
from hopyard.domain.effective_limits import queue_path
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import GangId, QueueName
from hopyard.scheduler.cycle.quota_starvation import starvation_timeout
from hopyard.scheduler.duration_estimates import (
    MIN_PACE_PROGRESS,
    DurationEstimate,
    estimate_duration,
    exact_estimate,
    has_known_duration,
    history_for,
)
from hopyard.scheduler.explain.lookahead import NO_PROGRESS, DurationPick, LookaheadSimulation, mid_s
from hopyard.scheduler.explain.next_cycle import NextCycle, with_requested_preemptions
from hopyard.scheduler.explain.what_if import Alternative, alternatives
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.quota.quota_usage import QuotaUsage
from hopyard.scheduler.timeline.backfill import BackfillTimeline
from hopyard.scheduler.timeline.block_reason import MAX_NAMED_BLOCKERS, BlockReason
from hopyard.scheduler.timeline.reservation_windows import PLANNING_HORIZON_S, may_use, occurrences
from hopyard.scheduler.timeline.run_end_estimates import RunEndEstimates

# gangs ahead in the queue that are simulated individually; the work of the others is spread over the cluster
MAX_SIMULATED_AHEAD = 48
MAX_START_RATIO = 0.9  # alternatives that do not start at least this much sooner are not reported
# the gang waits for runs to end
CAPACITY_REASONS = (HoldReason.NO_CAPACITY, HoldReason.TOPOLOGY, HoldReason.PREEMPTING)
RECHECK_INTERVAL = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """The earliest, expected and latest start, from the estimates of all runs that run or are ahead."""

    low_at: datetime
    mid_at: datetime
    high_at: datetime


@dataclass(frozen=True, slots=True)
class Blocker:
    """A blocker of the gang, named as in Hold.blocked_by, and its expected end."""

    name: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """`text` is a line such as "with 4 GPUs: now". `start_at` is `now` of the snapshot if the gang starts at
    once."""

    text: str
    start_at: datetime


@dataclass(frozen=True, slots=True)
class UnknownDuration:
    """The duration of a run is uncertain, because only `ended_count` similar runs have ended."""

    run: GangId
    ended_count: int


@dataclass(frozen=True, slots=True)
class PendingExplanation:
    """expected: None if the gang never starts in the current state. promised_at: the latest start, if it was
    promised. delay: why the promise will probably be broken, or None. unknown_duration: a run ahead of the
    gang whose history is too short for an estimate, or None."""

    gang: GangId
    hold: Hold
    pending_count: int
    blocked_by: tuple[Blocker, ...] = ()
    expected: StartEstimate | None = None
    promised_at: datetime | None = None
    what_if: tuple[WhatIf, ...] = ()
    delay: BreachDetail | None = None
    unknown_duration: UnknownDuration | None = None


def explain_pending(
    snapshot: Snapshot, plan: Plan, gang_id: GangId, progress: Mapping[GangId, float] = NO_PROGRESS
) -> PendingExplanation | None:
    """Returns None if the gang is not pending, or starts by this plan. plan: the plan of this snapshot.
    progress: the reported progress of running gangs, 0 to 1. The cost grows with the cluster: seconds for ten
    thousand nodes."""
    snapshot = with_requested_preemptions(snapshot, plan)
    gangs = {gang.id: gang for gang in snapshot.pending}
    gang = gangs.get(gang_id)
    hold = next((hold for hold in plan.hold if hold.gang == gang_id), None) if gang is not None else None
    if gang is None or hold is None:
        return None
    queue = [
        (other.position, gangs[other.gang]) for other in plan.hold if gangs[other.gang].queue == gang.queue
    ]
    promised = next((promise for promise in plan.promises if promise.gang == gang_id), None)
    forecast_base = _ForecastBase(snapshot, plan, gangs, gang, progress)
    ahead_in_queue = [
        other for position, other in sorted(queue, key=lambda pair: pair[0]) if position < hold.position
    ]
    ahead = [*forecast_base.competitors(hold), *ahead_in_queue]
    likely_future, simulation = forecast_base.likely_future(mid_s, ahead), forecast_base.simulate(mid_s)
    likely_at, blocking_runs = likely_future.start_of(gang)
    never_starts = hold.reason in (HoldReason.NEVER_FITS, HoldReason.NO_QUEUE)
    simulated_at = None if never_starts else simulation.starts_at(gang.id)
    start_at = (
        max(likely_at, simulation.now)
        if simulated_at is None and likely_at is not None and not never_starts
        else simulated_at
    )
    runs = blocking_runs if hold.reason in CAPACITY_REASONS else ()
    blocker_names = _runs_at_user_limit(snapshot, gang, hold) or (*hold.blocked_by, *runs)
    return PendingExplanation(
        gang_id,
        hold,
        len(queue),
        (
            *(
                Blocker(name, forecast_base.ends_at(name) or simulation.unblocks_at(name, start_at))
                for name in dict.fromkeys(blocker_names)
            ),
            *(
                Blocker(name, start_at)
                for name in forecast_base.reservations_ending_at(start_at)
                if name not in blocker_names
            ),
        ),
        _start_estimate(forecast_base, ahead, start_at) if start_at is not None else None,
        promised.start_at if promised else None,
        tuple(_what_if(forecast_base, likely_future, hold.reason, start_at)),
        simulation.breaches[gang_id].detail if gang_id in simulation.breaches else None,
        _unknown_duration(snapshot, blocker_names, ahead, progress),
    )


def _runs_at_user_limit(snapshot: Snapshot, gang: Gang, hold: Hold) -> tuple[str, ...]:
    """Returns the user's runs that use up the user limit, named as in a Hold, if that limit blocks the
    gang."""
    if hold.reason is not HoldReason.USER_LIMIT:
        return ()
    limited = {name.removeprefix("queue:") for name in hold.blocked_by}
    user_gangs = (gang_or_run.gang for gang_or_run in snapshot.running if gang_or_run.gang.user == gang.user)
    return tuple(
        sorted(
            f"run:{gang_or_run.id}"
            for gang_or_run in user_gangs
            if not limited.isdisjoint(queue_path(snapshot.queues, gang_or_run.queue))
        )
    )[:MAX_NAMED_BLOCKERS]


def _unknown_duration(
    snapshot: Snapshot, blocker_names: Sequence[str], ahead: Sequence[Gang], progress: Mapping[GangId, float]
) -> UnknownDuration | None:
    """Returns the blocking run with the shortest history, if that history is too short."""
    runs = [
        item.gang
        for item in snapshot.running
        if f"run:{item.gang.id}" in blocker_names
        and not item.stopping
        and progress.get(item.gang.id, 0.0) < MIN_PACE_PROGRESS
    ]
    uncertain = [
        (history_for(item, snapshot.durations).runs, item.id)
        for item in [*runs, *ahead[:MAX_SIMULATED_AHEAD]]
        if not has_known_duration(item, snapshot.durations)
    ]
    count, name = min(uncertain, default=(0, None))
    return None if name is None else UnknownDuration(name, count)


def _start_estimate(base: _ForecastBase, ahead: Sequence[Gang], likely_at: datetime) -> StartEstimate:
    def start_at(pick: DurationPick) -> datetime:
        return base.simulate(pick).start_or_default(
            base.gang.id, lambda: base.likely_future(pick, ahead).start_of(base.gang)[0] or likely_at
        )

    return StartEstimate(min(start_at(_low_s), likely_at), likely_at, max(start_at(_high_s), likely_at))


def _what_if(
    base: _ForecastBase, likely_future: _ForecastFuture, reason: HoldReason, start_at: datetime | None
) -> list[WhatIf]:
    """Returns for each group the smallest change with which the gang starts now, else the change with the
    earliest start."""
    suggestions = []
    now, unchanged_at = (
        base.snapshot.now,
        likely_future.timeline.earliest_start(base.gang, likely_future.estimate),
    )
    for group in alternatives(base.gang, reason, base.snapshot, base.promised_starts_in_s()):
        starts = [
            (at, change)
            for change in group
            if (at := _alternative_start(base, likely_future, change)) is not None
        ]
        best = next(((at, change) for at, change in starts if at <= now), None)
        later = [(at, change) for at, change in starts if unchanged_at is None or at < unchanged_at]
        if best is None and later:
            best = _policy_start(base, *min(later, key=itemgetter(0)))
        if best is not None and (start_at is None or best[0] < _latest_useful_start(now, start_at)):
            at, change = best
            backfill = (
                ", by backfill" if at <= now and change.gang.time_limit_s != base.gang.time_limit_s else ""
            )
            suggestions.append(
                WhatIf(f"{change.text}: {format_time_until((at - now).total_seconds())}{backfill}", at)
            )
    return suggestions


def _policy_start(
    base: _ForecastBase, possible_at: datetime, change: Alternative
) -> tuple[datetime, Alternative]:
    """Returns when the policy starts the gang, which may be later than there is room: other gangs may come
    first."""
    return base.simulate(mid_s, change.gang).start_or_default(change.gang.id, lambda: possible_at), change


def _alternative_start(
    base: _ForecastBase, likely_future: _ForecastFuture, change: Alternative
) -> datetime | None:
    """Returns when the changed gang could start. "Now" requires room beside the plan, and that no gang that
    was held back for it takes that room first. The expected starts of gangs ahead do not count against it."""
    expected = estimate_duration(change.gang, base.snapshot.durations)
    if isinstance(
        base.current_timeline.try_backfill(change.gang, expected), Placement
    ) and base.next_cycle.would_start(change.gang):
        return base.snapshot.now
    at = likely_future.timeline.earliest_start(change.gang, expected)
    return None if at is None or at <= base.snapshot.now else at


def _latest_useful_start(now: datetime, start_at: datetime) -> datetime:
    return now + (start_at - now) * MAX_START_RATIO


class _ForecastBase:
    """The snapshot after the plan: the base of every forecast."""

    def __init__(
        self,
        snapshot: Snapshot,
        plan: Plan,
        gangs: dict[GangId, Gang],
        gang: Gang,
        progress: Mapping[GangId, float],
    ) -> None:
        self.snapshot, self.gang, self._progress = snapshot, gang, progress
        self._plan, self._gangs = plan, gangs
        nodes = snapshot.nodes.values()
        self._capacity = Capacity.of(nodes, (running.placement for running in snapshot.running))
        self._quota_usage = QuotaUsage.of(
            snapshot.queues, nodes, snapshot.running, snapshot.past_usage, snapshot.now
        )
        self._cluster = total_amounts(node for node in nodes if node.schedulable)
        future = RunEndEstimates.of(
            snapshot.running,
            snapshot.durations,
            snapshot.now,
            grace_s=snapshot.preempt_grace_s,
            progress=progress,
        )
        self.current_timeline = self._build_timeline(
            future, lambda gang: estimate_duration(gang, snapshot.durations)
        )
        self.current_timeline.withdraw_promise(gang.id)
        self._likely_run_ends = self._run_ends_assuming(mid_s)
        self.next_cycle = NextCycle(snapshot, plan, gang.id)

    def simulate(self, pick_s: DurationPick, replacement: Gang | None = None) -> LookaheadSimulation:
        """Simulates the policy with the durations that `pick_s` selects. replacement: the changed gang,
        without its promise."""
        if replacement is None:
            return LookaheadSimulation(self.snapshot, self._plan, pick_s, self._progress)
        pending = tuple(
            replacement if pending_gang.id == replacement.id else pending_gang
            for pending_gang in self.snapshot.pending
        )
        promises = tuple(promise for promise in self._plan.promises if promise.gang != replacement.id)
        return LookaheadSimulation(
            replace(self.snapshot, pending=pending),
            replace(self._plan, promises=promises),
            pick_s,
            self._progress,
        )

    def likely_future(self, pick_s: DurationPick, ahead: Sequence[Gang]) -> _ForecastFuture:
        """Returns the future with the gangs ahead, for the durations that `pick_s` selects."""
        snapshot = self.snapshot

        def assumed_estimate(gang: Gang) -> DurationEstimate:
            estimate = estimate_duration(gang, snapshot.durations)
            # for the gang itself, the whole band counts
            return estimate if gang.id == self.gang.id else exact_estimate(pick_s(estimate))

        timeline = self._build_timeline(self._run_ends_assuming(pick_s), assumed_estimate)
        promised = {promise.gang for promise in self._plan.promises}
        unpromised, hold_back_windows = (
            [gang for gang in ahead if gang.id not in promised],
            list[tuple[datetime, datetime]](),
        )
        for gang in unpromised[:MAX_SIMULATED_AHEAD]:
            result = timeline.try_backfill(gang, assumed_estimate(gang))
            if isinstance(result, Placement):
                timeline.start(result, assumed_estimate(gang))
                continue
            timeline.promise(gang, assumed_estimate(gang))
            starts_at = timeline.expected_start_at(gang.id)
            if starts_at is not None and self._is_held_back_for(gang, result):
                hold_back_windows.append(
                    (
                        gang.submitted_at + starvation_timeout(estimate_duration(gang, snapshot.durations)),
                        starts_at,
                    )
                )
        rest_s = sum(
            dominant_share(requested_amounts(gang), self._cluster) * assumed_estimate(gang).mid_s
            for gang in unpromised[MAX_SIMULATED_AHEAD:]
        )
        return _ForecastFuture(
            timeline,
            estimate_duration(self.gang, snapshot.durations),
            snapshot.now,
            timedelta(seconds=rest_s),
            tuple(hold_back_windows),
        )

    def _is_held_back_for(self, other: Gang, block: BlockReason) -> bool:
        """Returns whether this gang is held back once the other has waited long enough for quota (see
        `QuotaStarvationGuard`)."""
        return other.queue == self.gang.queue and (
            block.reason is HoldReason.QUOTA
            or (block.reason is HoldReason.USER_LIMIT and other.user == self.gang.user)
        )

    def competitors(self, hold: Hold) -> list[Gang]:
        """Returns the gangs of other queues that come before this gang, if it waits for the quota of a common
        ancestor. Gangs whose queue has a guarantee for their request, without its other runs, come first;
        then the current order."""
        tree, empty = (
            self.snapshot.queues,
            QuotaUsage.of(self.snapshot.queues, self.snapshot.nodes.values(), (), {}, self.snapshot.now),
        )

        def key(gang: Gang) -> tuple[list[int], tuple[tuple[int, float, QueueName], ...]]:
            return [
                beyond for beyond, _, _ in empty.queue_key(gang.queue, gang)
            ], self._quota_usage.queue_key(gang.queue, gang)

        limited_queues = {
            name.removeprefix("queue:") for name in hold.blocked_by if name.startswith("queue:")
        } - {self.gang.queue}
        if not limited_queues:
            return []
        own_key = key(self.gang)
        others = [
            self._gangs[other.gang]
            for other in self._plan.hold
            if self._gangs[other.gang].queue != self.gang.queue
        ]
        candidates = [
            (key(other), other)
            for other in others
            if not limited_queues.isdisjoint(queue_path(tree, other.queue))
        ]
        return [other for other_key, other in sorted(candidates, key=itemgetter(0)) if other_key < own_key]

    def ends_at(self, name: str) -> datetime | None:
        """Returns the expected end of a blocking run or reservation."""
        kind, _, blocker = name.partition(":")
        if kind == "run" and (end := self._likely_run_ends.end(GangId(blocker))) is not None:
            return self.snapshot.now + timedelta(seconds=end.mid_s)
        if kind == "reservation":
            now = self.snapshot.now
            reservations = [
                reservation for reservation in self.snapshot.reservations if reservation.name == blocker
            ]
            return next(
                (
                    end
                    for reservation in reservations
                    for _, end in occurrences(reservation, now, now + timedelta(seconds=PLANNING_HORIZON_S))
                ),
                None,
            )
        return None

    def reservations_ending_at(self, start_at: datetime | None) -> list[str]:
        """Returns reservations of other owners that end at the expected start, named as in a Hold: the gang
        waits for them."""
        if start_at is None or start_at <= self.snapshot.now:
            return []
        other_reservations = [
            reservation
            for reservation in self.snapshot.reservations
            if not may_use(self.gang, reservation, self.snapshot.queues)
        ]
        return [
            f"reservation:{reservation.name}"
            for reservation in sorted(other_reservations, key=lambda reservation: reservation.name)
            if any(
                abs(end - start_at) < RECHECK_INTERVAL
                for _, end in occurrences(reservation, start_at - RECHECK_INTERVAL, start_at)
            )
        ]

    def promised_starts_in_s(self) -> list[float]:
        """Returns the seconds until the expected starts of the other promised gangs."""
        starts = (
            self.current_timeline.expected_start_at(promise.gang)
            for promise in self._plan.promises
            if promise.gang != self.gang.id
        )
        return sorted((at - self.snapshot.now).total_seconds() for at in starts if at is not None)

    def _run_ends_assuming(self, pick_s: DurationPick) -> RunEndEstimates:
        """Returns the ends of running gangs for the durations that `pick_s` selects."""
        cluster = (self.snapshot.running, self.snapshot.durations, self.snapshot.now)
        return RunEndEstimates.of(
            *cluster, grace_s=self.snapshot.preempt_grace_s, pick_s=pick_s, progress=self._progress
        )

    def _build_timeline(
        self, run_ends: RunEndEstimates, estimate_of: Callable[[Gang], DurationEstimate]
    ) -> BackfillTimeline:
        snapshot = self.snapshot
        timeline = BackfillTimeline(
            self._capacity.copy(),
            self._quota_usage.copy(),
            run_ends,
            snapshot.reservations,
            snapshot.now,
            snapshot.queues,
            self._plan.promises,
        )
        for placement in self._plan.place:
            timeline.start(placement, estimate_of(placement.gang))
        # includes the gang's own promise: later promises depend on it
        for promise in self._plan.promises:
            if promise.gang in self._gangs:
                timeline.promise(
                    self._gangs[promise.gang], estimate_of(self._gangs[promise.gang]), previous=promise
                )
        return timeline


@dataclass(frozen=True, slots=True)
class _ForecastFuture:
    """One possible future. backlog: the duration of the work of gangs ahead that are not simulated
    individually. hold_back_windows: periods in which the gang is held back for gangs of its queue, each until
    their start."""

    timeline: BackfillTimeline
    estimate: DurationEstimate
    now: datetime
    backlog: timedelta
    hold_back_windows: tuple[tuple[datetime, datetime], ...] = ()

    def start_of(self, gang: Gang) -> tuple[datetime | None, tuple[str, ...]]:
        """Returns the start of the gang, as promised if it has a promise, and its blocking runs. The promise
        is withdrawn afterwards."""
        timeline, backlog = self.timeline, self.backlog
        start_at = timeline.expected_start_at(gang.id)
        if start_at is not None:
            backlog = timedelta()  # no gang is placed that would delay it
        elif isinstance(timeline.try_backfill(gang, self.estimate), Placement):
            return self.now + backlog, ()
        elif timeline.promise(gang, self.estimate) is not None:
            start_at = timeline.expected_start_at(gang.id)
        blocking_runs = timeline.blocking_runs(gang.id)
        timeline.withdraw_promise(gang.id)
        if start_at is None:
            return None, blocking_runs
        for since, starts_at in self.hold_back_windows:
            start_at = max(start_at, starts_at) if start_at > since else start_at
        return start_at + backlog, blocking_runs


def _low_s(estimate: DurationEstimate) -> float:
    return estimate.low_s


def _high_s(estimate: DurationEstimate) -> float:
    return estimate.high_s
