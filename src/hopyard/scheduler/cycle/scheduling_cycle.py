"""One scheduling cycle: from a snapshot to a plan. The steps follow docs/designs/0002-scheduler.md, section
3."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from math import inf

from hopyard.domain.cluster import Plan
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import GangId, QueueName
from hopyard.scheduler.cycle.cluster_state import ClusterState
from hopyard.scheduler.cycle.cycle_state import CycleState
from hopyard.scheduler.cycle.hold_explanations import CycleHolds, HoldDetail, HoldExplainer
from hopyard.scheduler.cycle.pending_gangs import GangClass
from hopyard.scheduler.cycle.pending_iterator import PendingIterator
from hopyard.scheduler.cycle.preemption_requests import RECHECK_INTERVAL, PreemptionRequests
from hopyard.scheduler.cycle.promises import QUOTA_REASONS, outranks
from hopyard.scheduler.cycle.quota_starvation import QuotaStarvationGuard
from hopyard.scheduler.timeline.block_reason import BlockReason

NO_CAPACITY_BLOCK = BlockReason(HoldReason.NO_CAPACITY, None)
# number of victim searches for a queue whose gangs are examined although there is no capacity
SEARCHES_PER_QUEUE = 4
# in a large cluster, each promised gang is examined again once in this many cycles
EARLIER_START_INTERVAL = 4
RETRY_INTERVAL = timedelta(seconds=10)
OVERDUE_WINDOW = timedelta(seconds=2)  # an overdue run is always expected to end this soon
YIELD_REASONS = (HoldReason.BEHIND, HoldReason.RESERVED)  # there is capacity, but it is promised or reserved
NO_CAPACITY_REASONS = (HoldReason.NO_CAPACITY, HoldReason.TOPOLOGY, HoldReason.NO_NODES)


class SchedulingCycle:
    """One cycle; an instance is used once."""

    def __init__(self, cluster_state: ClusterState) -> None:
        self._cluster_state = cluster_state
        self._state = CycleState(cluster_state)
        self._preemption_requests = PreemptionRequests(self._state)
        self._starvation_guard = QuotaStarvationGuard(self._state)
        self._pending_iterator = PendingIterator(
            cluster_state.pending_gangs,
            cluster_state.snapshot.queues.queues,
            cluster_state.leaf_queues,
            self._state.timeline.promised_usage,
            self._starvation_guard.is_held_back,
        )
        self._state.timeline.on_promised_usage_change(self._pending_iterator.record_charge)
        self._postponed_promises: dict[GangId, Gang] = {}
        self._skipping_full_classes = self._patient_queues_dropped = False
        # shapes of which no gang fits now
        self._full_classes = dict.fromkeys(
            cluster_state.no_capacity_cache.still_full(cluster_state.capacity), NO_CAPACITY_BLOCK
        )
        # shapes whose last gang was placed: the next gang is not checked beforehand
        self._recently_placed: set[GangClass] = set()
        self._never_promisable: set[GangClass] = set()  # does not fit even after all runs have ended
        # a gang with at least this duration would delay a promised gang
        self._blocked_if_longer_than: dict[tuple[GangClass, QueueName, str], float] = {}
        self._blocked_behind: dict[GangClass, BlockReason] = {}
        # a gang with at least this duration does not fit in its own reservation
        self._reservation_too_short: dict[tuple[GangClass, QueueName, str], float] = {}

    def plan(self) -> Plan:
        try:
            self._preemption_requests.preempt_for_reservations()
            self._honour_promises()
            self._schedule_pending()
            for gang in list(self._postponed_promises.values()):
                self._place_or_renew(gang)
            self._start_beside_evaluators()
            self._preemption_requests.preempt_evaluators()
        finally:
            self._preemption_requests.discard_assumed_stops()
        state = self._state
        capacity_after = state.close()
        self._cluster_state.no_capacity_cache.add(self._full_classes)
        for placement in state.placed.values():  # these starts may fail
            self._cluster_state.no_capacity_cache.invalidate_nodes(
                assignment.node for assignment in placement.assignments
            )
        blocked_classes = {
            gang_class.key: HoldDetail(block.reason, block.cause, block.blocked_by)
            for gang_class, block in self._blocked_behind.items()
        }
        explainer = HoldExplainer(
            capacity_after,
            state.quota_usage,
            self._cluster_state.never_fits_check(),
            state.own_holds,
            blocked_classes,
            self._starvation_guard.hold_detail,
        )
        return Plan(
            state.snapshot.version,
            tuple(state.placed.values()),
            CycleHolds(
                state.snapshot.pending, state.placed.keys(), self._cluster_state.rank_function, explainer
            ),
            tuple(self._preemption_requests.preemptions),
            tuple(state.promises.current.values()),
            state.promises.breaches,
            self._next_recheck_at(),
        )

    def _next_recheck_at(self) -> datetime | None:
        """Returns when time alone changes the plan: at a promised start, for a reservation or another
        preemption request, or when an expected end is overdue."""
        state = self._state
        times = [
            *self._preemption_requests.recheck_times,
            *(promise.start_at for promise in state.promises.current.values()),
        ]
        expected = [
            time
            for gang in state.promises.current
            if (time := state.timeline.expected_start_at(gang)) is not None
        ]
        # an expected start within this window is already late
        times += [time + RECHECK_INTERVAL for time in expected if time > state.now + OVERDUE_WINDOW]
        return min((time for time in times if time > state.now), default=None)

    # Step 2

    def _honour_promises(self) -> None:
        """Starts gangs whose promised place is free. Then the other promised gangs may be placed elsewhere
        without delaying any gang."""
        pending_preemptions = self._preemption_requests.pending_preemptions
        promised = [
            self._state.pending_gang(promise.gang)
            for promise in self._state.promises.renewal_order(pending_preemptions.keys())
        ]
        heads = self._pending_iterator.heads() if promised else []
        protected = {
            gang.id
            for gang in promised
            if gang.id in pending_preemptions or self._state.promises.is_protected(gang.id)
        }
        for gang in promised:
            if gang.id not in protected and any(
                outranks(head, gang, self._state.quota_usage, self._state.pending_gangs) for head in heads
            ):
                # another gang comes before it: it is examined in its turn
                self._postponed_promises[gang.id] = gang
        self._state.promises.renew(
            {gang.id: (gang, self._state.estimate_of(gang)) for gang in promised}, protected
        )
        # only after all of them are renewed, so that no gang takes the place of another
        for gang in promised:
            self._start_as_promised(gang)
        for gang_id in [
            *(gang.id for gang in promised),
            *sorted(pending_preemptions.keys() - self._state.snapshot.promises.keys()),
        ]:
            if gang_id not in self._postponed_promises and gang_id not in self._state.placed:
                self._place_or_renew(self._state.pending_gang(gang_id))
        self._pending_iterator.restart({gang.queue for gang in promised})

    def _start_as_promised(self, gang: Gang) -> None:
        """Starts the gang in its promised place if its start is due and delays no other promised gang."""
        state, promise = self._state, self._state.snapshot.promises[gang.id]
        expected_at, placement = (
            state.timeline.expected_start_at(gang.id),
            state.timeline.promised_placement(gang.id),
        )
        if (
            gang.id in self._postponed_promises
            or expected_at is None
            or placement is None
            or expected_at > state.now
        ):
            return
        if {assignment.node for assignment in placement.assignments} <= {*promise.nodes}:
            result = self._try_start_promised(gang)
            if isinstance(result, Placement):
                state.start(result)
            else:
                state.promises.renew({gang.id: (gang, state.estimate_of(gang))})

    def _try_start_promised(self, gang: Gang) -> Placement | BlockReason:
        """A gang that runs were preempted for starts no larger than its guarantee covers: the preempted runs
        could reclaim the rest."""
        state = self._state
        is_protected = gang.id in state.snapshot.promises and state.promises.is_protected(gang.id)
        return state.try_start(
            state.quota_usage.limit_to_guarantee(gang)
            if is_protected or gang.id in self._preemption_requests.pending_preemptions
            else gang
        )

    def _place_or_renew(self, gang: Gang) -> None:
        """Starts the gang if possible; otherwise keeps its promise, or reports the breach."""
        state, gang_class = self._state, self._state.pending_gangs.class_of(gang)
        self._postponed_promises.pop(gang.id, None)
        promise = state.snapshot.promises.get(gang.id)
        if self._cluster_state.never_schedulable(gang_class):
            state.promises.drop(gang.id)
            if promise is not None:
                state.promises.report_breach(promise, None)
            return
        block = state.quick_block_reason(gang) if promise is not None else None
        result = block or self._try_start_promised(gang)
        if isinstance(result, Placement):
            state.start(result)
        elif gang.id in self._preemption_requests.pending_preemptions:
            if block is not None:
                state.promises.confirm(gang, HoldReason.PREEMPTING)
            else:
                state.promises.promise_start(gang, state.estimate_of(gang), HoldReason.PREEMPTING)
            self._preemption_requests.hold_for_preemption(gang)
        elif block is not None:
            state.confirm_promise(gang, block)
        else:
            state.try_promise(gang, result)

    # Steps 3 to 8

    def _schedule_pending(self) -> None:
        """Promised gangs count as started, so that no queue or user gets more than its share on top of its
        promises."""
        iterator, state = self._pending_iterator, self._state
        max_placements = state.snapshot.max_placements or sys.maxsize
        while len(state.placed) < max_placements and (gang := iterator.head()) is not None:
            if gang.id in self._postponed_promises:
                self._place_or_renew(gang)
            if gang.id in state.placed:
                iterator.advance(gang)
            elif gang.id in state.promises.current:
                self._try_earlier(gang)
                iterator.advance(gang)
            elif gang.id in state.snapshot.promises or gang.id in state.own_holds:
                iterator.advance(gang)
            elif self._cluster_state.never_schedulable(state.pending_gangs.class_of(gang)):
                iterator.skip_all([state.pending_gangs.class_of(gang)])
            else:
                self._schedule_gang(gang)
                self._skip_full_classes()
        if self._preemption_requests.budget_spent:
            self._preemption_requests.recheck_times.append(state.now + RECHECK_INTERVAL)

    def _try_earlier(self, gang: Gang) -> None:
        """Starts a promised gang earlier, at the cost of promised gangs that it outranks."""
        detail = self._state.own_holds.get(gang.id)
        result = None
        if detail is not None and detail.reason in YIELD_REASONS:
            result = self._overtake_outranked(
                gang, BlockReason(detail.reason, detail.cause, detail.blocked_by)
            )
        if not isinstance(result, Placement) and self._preemption_requests.is_due(
            list(self._state.promises.current).index(gang.id), EARLIER_START_INTERVAL
        ):
            self._preemption_requests.preempt_for(gang)

    def _schedule_gang(self, gang: Gang) -> None:
        state, gang_class = self._state, self._state.pending_gangs.class_of(gang)
        result = self._known_block_reason(gang, gang_class) or self._try_start(gang, gang_class)
        if isinstance(result, BlockReason) and result.reason in YIELD_REASONS:
            result = self._overtake_outranked(gang, result)
        elif isinstance(result, Placement):
            state.start(result)
        if isinstance(result, Placement):
            self._pending_iterator.advance(gang)
            return
        self._record_refusal(gang, gang_class, result)
        may_preempt = not self._skipping_full_classes or self._pending_iterator.may_still_preempt(gang.queue)
        if (may_preempt and self._preemption_requests.preempt_for(gang)) or self._promise_start(
            gang, gang_class, result
        ):
            self._pending_iterator.advance(gang)
        else:
            self._pending_iterator.close(self._starvation_guard.hold_back_followers(gang))
            self._skip_equivalent(gang, gang_class, result)

    def _known_block_reason(self, gang: Gang, gang_class: GangClass) -> BlockReason | None:
        """Returns a reason that is certain without a search: the queue refuses the gang, there is no capacity
        even without promises, or equivalent gangs did not fit."""
        refusal = self._state.quota_usage.refusal(gang)
        if refusal is not None:
            return BlockReason.of(refusal.cause, refusal.blocked_by)
        limit_s = self._blocked_if_longer_than.get((gang_class, gang.queue, gang.user))
        is_too_long = limit_s is not None and self._state.estimate_of(gang).high_s >= limit_s
        if (is_too_long or gang_class not in self._recently_placed) and self._is_full(gang_class):
            return NO_CAPACITY_BLOCK
        return self._blocked_behind[gang_class] if is_too_long else None

    def _is_full(self, gang_class: GangClass) -> bool:
        """Returns whether a gang of this shape does not fit, ignoring promises."""
        if (
            gang_class not in self._full_classes
            and self._state.capacity.place(gang_class.representative) is None
        ):
            self._full_classes[gang_class] = NO_CAPACITY_BLOCK
            if self._skipping_full_classes:
                self._pending_iterator.add_skipped_class(gang_class)
        return gang_class in self._full_classes

    def _try_start(self, gang: Gang, gang_class: GangClass) -> Placement | BlockReason:
        """Returns a placement, or why the gang cannot start. If the last gang of its shape could start,
        capacity was not checked beforehand."""
        result = self._state.try_start(gang, quota_checked=True)
        if isinstance(result, Placement):
            self._recently_placed.add(gang_class)
        elif gang_class in self._recently_placed:
            self._recently_placed.discard(gang_class)
            return NO_CAPACITY_BLOCK if self._is_full(gang_class) else result
        return result

    def _overtake_outranked(self, gang: Gang, block: BlockReason) -> Placement | BlockReason:
        """Starts the gang, or promises it a start, before promised gangs that it outranks."""
        if block.reason is HoldReason.BEHIND:
            result = self._displace_promises(gang, block)
            if isinstance(result, Placement) or result.reason not in YIELD_REASONS:
                return result
            block = result
        return self._start_in_reservation(gang, block)

    def _start_in_reservation(self, gang: Gang, block: BlockReason) -> Placement | BlockReason:
        """Starts the gang in its own active reservation, which it may use for as long as it takes. Gangs that
        were promised a start there after the reservation yield."""
        state, key = self._state, (self._state.pending_gangs.class_of(gang), gang.queue, gang.user)
        estimate = state.estimate_of(gang)
        others = [
            other
            for other in state.timeline.non_binding_promises(gang)
            if other not in self._preemption_requests.pending_preemptions
        ]
        if not others or estimate.high_s >= self._reservation_too_short.get(key, inf):
            return block
        placement = state.timeline.try_in_reservation(gang, estimate, others)
        if placement is None:
            self._reservation_too_short[key] = estimate.high_s
            return block
        others = [other for other in others if state.timeline.expected_start_at(other) is None]
        for other in others:
            state.promises.drop(other)
        state.start(placement)
        reservation = state.timeline.reservation_of(placement)
        for other in others:
            state.promises.record_displacement(other, gang.id, reservation or "")
            state.renew_promise(state.pending_gang(other))
        return placement

    def _displace_promises(self, gang: Gang, block: BlockReason) -> Placement | BlockReason:
        """Promises to gangs that it outranks do not bind the gang, nor do promises that wait for the end of
        its own evaluators: these end after it. Promises for which runs were preempted do bind it, or these
        runs would end in vain."""
        state, evaluators = self._state, self._cluster_state.evaluators.get(gang.id, {}).keys()
        others = [
            other
            for other in state.promises.non_binding(gang, evaluators)
            if other.id not in self._preemption_requests.pending_preemptions
        ]
        if not others:
            return block
        for other in others:
            state.promises.drop(other.id)
        result = state.try_start(gang)
        if isinstance(result, Placement):
            state.start(result)
        elif gang.id in state.promises.current or not state.promises.is_unavailable(gang, result.reason):
            state.try_promise(gang, result)
        for other in reversed(others):
            state.renew_promise(other)
        return result

    def _start_beside_evaluators(self) -> None:
        """Starts gangs of which evaluators run, also if they were skipped because gangs ahead of them were
        refused: these would wait for resources or quota of evaluators that wait for the gang."""
        state, max_placements = self._state, self._state.snapshot.max_placements or sys.maxsize
        for gang in self._cluster_state.evaluated_gangs():
            if (
                gang.id in state.placed
                or gang.id in self._preemption_requests.pending_preemptions
                or len(state.placed) >= max_placements
                or state.quick_block_reason(gang) is not None
            ):
                continue
            evaluators = self._cluster_state.evaluators_of(gang.id)
            if state.promises.waiting_for({running.gang.id for running in evaluators}):
                self._displace_promises(gang, NO_CAPACITY_BLOCK)
            elif gang.id not in state.promises.current and any(
                self._starvation_guard.hold_detail(running.gang) is not None for running in evaluators
            ):
                result = state.try_start(gang)
                if isinstance(result, Placement):
                    state.start(result)

    def _record_refusal(self, gang: Gang, gang_class: GangClass, block: BlockReason) -> None:
        """Applies the consequences of a refusal to other gangs."""
        state = self._state
        if block.reason not in NO_CAPACITY_REASONS and block.reason not in QUOTA_REASONS:
            key, high_s = (gang_class, gang.queue, gang.user), state.estimate_of(gang).high_s
            self._blocked_if_longer_than[key] = min(high_s, self._blocked_if_longer_than.get(key, high_s))
            self._blocked_behind.setdefault(gang_class, block)

    def _promise_start(self, gang: Gang, gang_class: GangClass, block: BlockReason) -> bool:
        """Step 7: promises the gang a start."""
        promises = self._state.promises
        if gang.id in promises.current:
            return True
        if promises.is_unavailable(gang, block.reason) or gang_class in self._never_promisable:
            return False
        if not self._state.try_promise(gang, block):
            if block.reason in NO_CAPACITY_REASONS:
                self._never_promisable.add(gang_class)
            return False
        return True

    def _skip_equivalent(self, gang: Gang, gang_class: GangClass, block: BlockReason) -> None:
        """Step 8: skips equivalent gangs."""
        refusal = self._state.quota_usage.refusal(gang)
        if block.reason is HoldReason.USER_LIMIT or (
            refusal is not None and refusal.reason is HoldReason.USER_LIMIT
        ):
            self._pending_iterator.skip_user(gang, gang_class)
        elif block.reason in NO_CAPACITY_REASONS or block.reason is HoldReason.QUOTA:
            self._pending_iterator.skip_queue(gang.queue, gang_class)
        else:
            self._pending_iterator.skip_group(gang, self._state.pending_gangs.group_of(gang))

    def _skip_full_classes(self) -> None:
        """Skips gangs without capacity once all promises are given, in queues where no run may be
        preempted."""
        if not self._skipping_full_classes and self._state.promises.is_exhausted:
            self._skipping_full_classes = True
            for gang_class in self._state.pending_gangs.classes:
                if gang_class not in self._full_classes and not self._state.has_room(gang_class):
                    self._full_classes[gang_class] = NO_CAPACITY_BLOCK
            self._pending_iterator.skip_classes(self._full_classes.keys(), self._queues_to_search)
        if (
            self._skipping_full_classes
            and not self._patient_queues_dropped
            and self._preemption_requests.budget_spent
        ):
            self._patient_queues_dropped = True
            self._pending_iterator.drop_patient_queues()

    def _queues_to_search(self, queues: list[tuple[QueueName, int]]) -> list[QueueName]:
        """Returns the queues whose gangs may preempt runs. queues: each with the highest priority that waits
        in it. If there are too many, each cycle searches some of them in turn."""
        state = self._state
        candidates = sorted(
            queue for queue, priority in queues if self._preemption_requests.may_preempt(queue, priority)
        )
        count = self._preemption_requests.search_budget // SEARCHES_PER_QUEUE
        if len(candidates) <= count:
            return candidates
        self._preemption_requests.recheck_times.append(state.now + RETRY_INTERVAL)
        first = self._preemption_requests.cycle_number % len(candidates)
        return (candidates + candidates)[first : first + count]
