"""Promised starts of one cycle: earlier promises that are kept or broken, and new ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hopyard.domain.breach_causes import (
    BreachCause,
    GuaranteePrecedence,
    PriorityPrecedence,
    PromisePrecedence,
    PropagatedDelay,
    QueueSharePrecedence,
    ReservationUsage,
    RootBreachDetail,
    ServicePrecedence,
    UserSharePrecedence,
)
from hopyard.domain.cluster import Breach, Promise
from hopyard.domain.gang import Gang, NodeSelector, Placement
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.domain.queue import Queue
from hopyard.scheduler.cycle.imminent_releases import IMMINENT_WINDOW
from hopyard.scheduler.cycle.pending_gangs import PendingGangs, Rank, submission_order
from hopyard.scheduler.duration_estimates import DurationEstimate
from hopyard.scheduler.quota.quota_usage import QuotaUsage
from hopyard.scheduler.timeline.backfill import BackfillTimeline

MAX_PROMISES = 8  # blocked gangs with a promised start; gangs without one may be overtaken by backfill
QUOTA_REASONS = (HoldReason.QUOTA, HoldReason.USER_LIMIT)
ResourceFootprint = frozenset[tuple[bool, tuple[str, ...], NodeSelector]]


class CyclePromises:
    """Gives start promises to the first MAX_PROMISES gangs that wait for capacity, one per user and queue.
    More promises for one user would take shares from users that come later.

    A gang gets no promise of capacity that a gang ahead of it in its queue, by priority and without a
    promise, waits for. Gangs that wait for quota compete only inside their queue and get no promise (see
    `QuotaStarvationGuard`). In a queue with time slicing only the first gang gets a promise; the others take
    their time slice from runs with more service.

    previous: the promises of earlier cycles.
    """

    def __init__(
        self,
        previous: Mapping[GangId, Promise],
        timeline: BackfillTimeline,
        quota_usage: QuotaUsage,
        pending_gangs: PendingGangs,
        queues: Mapping[QueueName, Queue],
        now: datetime,
    ) -> None:
        self.previous = previous
        self.current: dict[GangId, Promise] = {}
        self._breaches: dict[GangId, Breach] = {}
        self._timeline, self._quota_usage, self._pending_gangs, self._now = (
            timeline,
            quota_usage,
            pending_gangs,
            now,
        )
        self._new_count = 0
        self._queues = queues
        self._waiting_for_capacity: dict[GangId, QueueName] = {}
        # gangs that wait for capacity without a promise
        self._unpromised: dict[QueueName, list[tuple[Rank, ResourceFootprint]]] = {}
        self._delay_reasons: dict[GangId, ReservationUsage] = {}  # reasons of possible delays

    @property
    def is_exhausted(self) -> bool:
        """Returns whether no further gang that waits for capacity gets a promise."""
        return len(self._waiting_for_capacity) >= MAX_PROMISES

    def is_unavailable(self, gang: Gang, reason: HoldReason) -> bool:
        """Returns whether no promise is left for a gang that is blocked for this reason. In a queue with time
        slicing, gangs that have received service get no further promise: they yielded to gangs that come
        first, and must not delay these."""
        if reason in QUOTA_REASONS or self.is_exhausted:
            return True
        rank, footprint, unpromised = (
            self._pending_gangs.rank_of(gang),
            _resource_footprint(gang),
            self._unpromised.setdefault(gang.queue, []),
        )
        if any(
            earlier_rank < rank and earlier_footprint == footprint
            for earlier_rank, earlier_footprint in unpromised
        ):
            return True
        is_passed_over = bool(rank[1]) or (
            self._queues[gang.queue].time_slices and gang.queue in self._waiting_for_capacity.values()
        )
        others = [
            self._gang(self.current[name])
            for name, queue in self._waiting_for_capacity.items()
            if queue == gang.queue and name != gang.id
        ]
        if is_passed_over or any(
            other.user == gang.user and _resource_footprint(other) == footprint for other in others
        ):
            unpromised.append((rank, footprint))
            return True
        return False

    def renewal_order(self, preemptors: Set[GangId]) -> list[Promise]:
        """Returns the promises of gangs that are still pending. Overdue promises and promises of preemptors
        come first by due time, then the others in fair order. Within a queue, gangs of higher priority take
        the places of gangs of lower priority."""
        fair_order = self._fair_order(
            [promise for promise in self.previous.values() if promise.gang in self._pending_gangs]
        )
        by_due_time = sorted(fair_order, key=lambda candidate: self._due_at(candidate, preemptors))
        by_queue: dict[QueueName, list[Promise]] = {}
        for promise in by_due_time:
            by_queue.setdefault(self._gang(promise).queue, []).append(promise)
        for queue, promises in by_queue.items():
            promises.sort(
                key=lambda candidate: (
                    candidate.gang not in preemptors and not self.is_protected(candidate.gang),
                    self._pending_gangs.rank_of(self._gang(candidate)),
                )
            )
            by_queue[queue] = promises[::-1]
        return [by_queue[self._gang(promise).queue].pop() for promise in by_due_time]

    def _fair_order(self, promises: Iterable[Promise]) -> list[Promise]:
        """Returns the order as if no promise had been given. Between queues of equal rank, the oldest promise
        comes first, so that they take turns."""
        by_queue: dict[QueueName, list[Promise]] = {}
        for promise in sorted(
            promises, key=lambda candidate: self._gang_key(self._gang(candidate)), reverse=True
        ):
            by_queue.setdefault(self._gang(promise).queue, []).append(promise)
        ordered = []
        while by_queue:
            queue = min(by_queue, key=lambda name: self._queue_key(by_queue[name][-1]))
            ordered.append(by_queue[queue].pop())
            if not by_queue[queue]:
                del by_queue[queue]
        return ordered

    def _queue_key(self, promise: Promise) -> tuple[list[tuple[int, float]], datetime, GangId]:
        """Returns the sort key of the first gangs of the queues."""
        gang = self._gang(promise)
        levels = self._quota_usage.queue_key(gang.queue, gang)
        return [(beyond, share) for beyond, share, _ in levels], promise.given_at, promise.gang

    def _gang_key(self, gang: Gang) -> tuple[Rank, tuple[float, ...], tuple[datetime, GangId]]:
        """Returns the sort key of gangs in one queue."""
        return (
            self._pending_gangs.rank_of(gang),
            self._quota_usage.user_key(gang.queue, gang.user),
            submission_order(gang),
        )

    def is_protected(self, gang: GangId) -> bool:
        """Returns whether runs were preempted for the gang; no other gang is put before it."""
        return self.previous[gang].has_preempted

    def _due_at(self, promise: Promise, preemptors: Set[GangId]) -> datetime:
        """Returns when the promise is due; all promises that are not due yet are equal. So a later promise
        does not take resources that runs were preempted for, and a late gang is not overtaken repeatedly."""
        is_due = promise.gang in preemptors or promise.has_preempted or promise.start_at <= self._now
        return promise.start_at if is_due else datetime.max.replace(tzinfo=UTC)

    def confirm(self, gang: Gang, reason: HoldReason) -> Promise | None:
        """Records the renewed promise: it is kept, or reported as broken."""
        promise = self.current.get(gang.id)
        self.report_breach(self.previous[gang.id], promise)
        return self._record_renewal(gang, promise, reason)

    def renew(
        self, gangs: Mapping[GangId, tuple[Gang, DurationEstimate]], protected: Set[GangId] = frozenset()
    ) -> None:
        """Renews the promises, so that no other gang is placed in their way. Whether each is kept is decided
        later. protected: no gang is put before these gangs."""
        requests = [(gang, expected, self.previous[name]) for name, (gang, expected) in gangs.items()]
        for name, promise in self._timeline.renew_promises(requests, protected).items():
            if promise is None:
                self.current.pop(name, None)
            else:
                self.current[name] = promise

    def promise_start(self, gang: Gang, estimate: DurationEstimate, reason: HoldReason) -> Promise | None:
        """Promises the earliest start that delays no other gang. An earlier promise is kept, or reported as
        broken. A gang that yielded on reserved nodes does not keep waiting for just these nodes."""
        previous = self.previous.get(gang.id)
        is_displaced = previous is not None and gang.id in self._delay_reasons
        promise = self._timeline.promise(
            gang,
            estimate,
            previous=replace(previous, nodes=()) if previous is not None and is_displaced else previous,
        )
        if previous is not None:
            self.report_breach(previous, promise)
        return self._record_renewal(gang, promise, reason)

    def _record_renewal(self, gang: Gang, promise: Promise | None, reason: HoldReason) -> Promise | None:
        if promise is None:
            self.current.pop(gang.id, None)
            return None
        self.current[gang.id] = self._with_date(promise, preempting=reason is HoldReason.PREEMPTING)
        if reason is not HoldReason.PREEMPTING:
            self._waiting_for_capacity[gang.id] = gang.queue
        return promise

    def record_preemption(self, gang: GangId, promise: Promise) -> None:
        """Records that the gang starts where preempted runs release resources. Its earlier promise stays if
        it is sooner."""
        previous, breach = self.previous.get(gang), self._breaches.get(gang)
        self._forget(gang)
        expected_at = self._timeline.expected_start_at(gang)
        if (
            previous is not None
            and expected_at is not None
            and expected_at <= previous.start_at < promise.start_at
        ):
            promise = replace(promise, start_at=previous.start_at)
        self.current[gang] = replace(promise, given_at=self._next_timestamp(), has_preempted=True)
        if previous is not None and breach is not None and promise.start_at > previous.start_at:
            self._breaches[gang] = replace(breach, expected_at=self._timeline.expected_start_at(gang))

    def _with_date(self, promise: Promise, *, preempting: bool) -> Promise:
        """Returns the promise with its final start time.

        - A late promise keeps the time at which it was given, so that the order of promises stays.
        - No promise is closer than IMMINENT_WINDOW: a smaller delay must not break a promise in each cycle.
        - While preempted runs have not ended, the promise covers all nodes on which they ran, although fewer
          may suffice.
        - Once they have ended, a promise that is late or moved to other nodes loses its protection.

        preempting: some preempted runs have not ended yet.
        """
        previous = self.previous.get(promise.gang)
        if previous is None:
            start_at = max(promise.start_at, self._now + IMMINENT_WINDOW)
            return replace(
                promise, start_at=start_at, given_at=self._next_timestamp(), has_preempted=preempting
            )
        if previous.has_preempted and {*promise.nodes} < {*previous.nodes}:
            promise = replace(promise, nodes=previous.nodes)
        is_late = promise.start_at > previous.start_at
        start_at = (
            max(promise.start_at, max(self._now, previous.given_at) + IMMINENT_WINDOW)
            if is_late
            else promise.start_at
        )
        on_same_nodes = not is_late and {*promise.nodes} <= {*previous.nodes}
        return replace(
            promise,
            start_at=start_at,
            given_at=previous.given_at,
            has_preempted=previous.has_preempted and (preempting or on_same_nodes),
        )

    def _next_timestamp(self) -> datetime:
        """Returns a time one microsecond after the last, which preserves the order of the promises."""
        self._new_count += 1
        return self._now + timedelta(microseconds=self._new_count)

    def record_displacement(self, gang: GangId, winner: GangId, reservation: str) -> None:
        """Records that a gang uses its own reservation, and so delays a gang that was promised the nodes
        after it. This becomes the reason of the delay, unless the gang was already late."""
        if gang not in self._breaches:
            self._delay_reasons[gang] = ReservationUsage(winner, reservation)

    def report_breach(self, previous: Promise, replacement: Promise | None) -> None:
        breach = self._timeline.explain_breach(
            self._gang(previous), previous, replacement, self._precedence_rule
        )
        self._breaches.pop(previous.gang, None)
        if (
            breach is not None
            and previous.gang in self._delay_reasons
            and breach.cause is not BreachCause.NODE_LOST
        ):
            breach = replace(breach, detail=self._delay_reasons[previous.gang], displaced_by=None)
        if breach is not None:
            self._breaches[previous.gang] = self._trace_root_cause(breach)

    def _precedence_rule(self, other: Placement, gang: Gang) -> RootBreachDetail:
        """Returns the rule by which the other gang, which holds or will hold the promised resources, comes
        first. Usage is compared without the other gang."""
        other_gang = other.gang
        usage = self._quota_usage.copy()
        if self._timeline.is_placed(other_gang.id):
            usage.credit(other)
        if other_gang.queue == gang.queue:
            if other_gang.priority > gang.priority:
                return PriorityPrecedence(other_gang.id, other_gang.priority, gang.priority)
            if other_gang.priority == gang.priority:
                if self._pending_gangs.rank_of(other_gang) < self._pending_gangs.rank_of(gang):
                    return ServicePrecedence(other_gang.id, gang.queue)
                if other_gang.user != gang.user and usage.user_key(
                    other_gang.queue, other_gang.user
                ) < usage.user_key(gang.queue, gang.user):
                    return UserSharePrecedence(other_gang.id, other_gang.user, gang.user, gang.queue)
        elif {other_gang.queue, gang.queue} <= self._queues.keys():
            levels = zip(
                usage.queue_key(other_gang.queue, other_gang), usage.queue_key(gang.queue, gang), strict=False
            )
            other_level, own_level = next(
                (
                    (level_of_other, level_of_gang)
                    for level_of_other, level_of_gang in levels
                    if level_of_other[2] != level_of_gang[2]
                ),
                ((0, 0.0, other_gang.queue), (0, 0.0, gang.queue)),
            )
            if other_level[0] < own_level[0]:
                return GuaranteePrecedence(other_gang.id, other_level[2], own_level[2])
            if other_level[:2] < own_level[:2]:
                return QueueSharePrecedence(other_gang.id, other_level[2], own_level[2])
        return PromisePrecedence(other_gang.id, started=self._timeline.is_placed(other_gang.id))

    def _trace_root_cause(self, breach: Breach) -> Breach:
        """Returns the root cause: a gang that is late because of another late gang is late for the same
        cause."""
        if breach.displaced_by is None:
            return breach
        if breach.displaced_by in self._delay_reasons:
            return replace(breach, detail=self._delay_reasons[breach.displaced_by])
        cause_breach = self._breaches.get(breach.displaced_by)
        if cause_breach is None:
            return breach
        root = (
            cause_breach.detail.root
            if isinstance(cause_breach.detail, PropagatedDelay)
            else cause_breach.detail
        )
        return replace(breach, detail=PropagatedDelay(breach.displaced_by, root))

    @property
    def breaches(self) -> tuple[Breach, ...]:
        return tuple(self._breaches[gang] for gang in sorted(self._breaches))

    def drop(self, gang: GangId) -> Promise | None:
        """Withdraws the promise: the gang starts, or a gang that comes before it needs the resources."""
        self._timeline.withdraw_promise(gang)
        return self._forget(gang)

    def _forget(self, gang: GangId) -> Promise | None:
        self._breaches.pop(gang, None)
        self._waiting_for_capacity.pop(gang, None)
        return self.current.pop(gang, None)

    def promised_on(self, nodes: Iterable[NodeId]) -> list[Gang]:
        """Returns the gangs with a promise on these nodes."""
        node_set = {*nodes}
        return [
            self._gang(promise) for promise in self.current.values() if not node_set.isdisjoint(promise.nodes)
        ]

    def non_binding(self, gang: Gang, evaluators: Set[GangId]) -> list[Gang]:
        """Returns the gangs with promises that do not bind this gang, newest first: it outranks them, or they
        wait for the end of its evaluators, which wait for it."""
        waiting = self.waiting_for(evaluators)
        gangs = [self._gang(promise) for promise in self.current.values()]
        return [
            other
            for other in reversed(gangs)
            if other.id != gang.id
            and (other.id in waiting or outranks(gang, other, self._quota_usage, self._pending_gangs))
        ]

    def waiting_for(self, runs: Set[GangId]) -> frozenset[GangId]:
        """Returns the gangs with promises that depend on the end of one of these runs."""
        return self._timeline.promises_after(runs) if runs and self.current else frozenset()

    def _gang(self, promise: Promise) -> Gang:
        gang = self._pending_gangs.find(promise.gang)
        assert gang is not None
        return gang


def _resource_footprint(gang: Gang) -> ResourceFootprint:
    """Returns the resources that the gang competes for: gangs with other GPU models or other nodes do not
    delay it."""
    requests = [(role.resources, role.where) for role in gang.roles]
    return frozenset(
        (bool(request.gpus or request.is_gpu_share), request.gpu_models, where) for request, where in requests
    )


def outranks(gang: Gang, other: Gang, quota_usage: QuotaUsage, pending_gangs: PendingGangs) -> bool:
    """Returns whether the gang comes before the other regardless of promises. Within one queue, priority and
    service class decide. Between two queues, a level above the gang alone must be within its guarantee while
    the other borrows."""
    if gang.queue == other.queue:
        return pending_gangs.rank_of(gang) < pending_gangs.rank_of(other)
    own_key, other_key = quota_usage.queue_key(gang.queue, gang), quota_usage.queue_key(other.queue, other)
    for (beyond, _, queue), (other_beyond, _, other_queue) in zip(own_key, other_key, strict=False):
        if queue != other_queue:
            return beyond < other_beyond
    return False
