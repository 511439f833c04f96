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
# a queue whose gangs are looked at one by one although there is no room for them gets so many looks
SEARCHES_PER_QUEUE = 4
# in a large cluster, each promised gang is examined again once in so many cycles
EARLIER_START_INTERVAL = 4
RETRY_INTERVAL = timedelta(seconds=10)
OVERDUE_WINDOW = timedelta(seconds=2)  # what is over its time is expected to end so soon, all the time
YIELD_REASONS = (HoldReason.BEHIND, HoldReason.RESERVED)  # there is room, and it is for others
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
        # no gang of that shape fits now
        self._full_classes = dict.fromkeys(
            cluster_state.no_capacity_cache.still_full(cluster_state.capacity), NO_CAPACITY_BLOCK
        )
        # the last one of that shape found a place: the next is not asked about beforehand
        self._recently_placed: set[GangClass] = set()
        self._never_promisable: set[GangClass] = set()  # nor would if all that runs had ended
        # a gang with at least this duration would delay a promised gang
        self._blocked_if_longer_than: dict[tuple[GangClass, QueueName, str], float] = {}
        self._blocked_behind: dict[GangClass, BlockReason] = {}
        # for what is reserved for them, if they would be there so long
        self._reservation_too_short: dict[tuple[GangClass, QueueName, str], float] = {}

    def plan(self) -> Plan:
        try:
            self._preemption_requests.preempt_for_reservations()
            self._honour_promises()
            self._schedule_pending()
            for gang in list(self._postponed_promises.values()):
                self._place_or_renew(gang)
        finally:
            self._preemption_requests.discard_assumed_stops()
        state = self._state
        after = state.close()
        self._cluster_state.no_capacity_cache.add(self._full_classes)
        for placement in state.placed.values():  # perhaps they do not start
            self._cluster_state.no_capacity_cache.invalidate_nodes(
                assignment.node for assignment in placement.assignments
            )
        behind = {
            shape.key: HoldDetail(block.reason, block.cause, block.blocked_by)
            for shape, block in self._blocked_behind.items()
        }
        explainer = HoldExplainer(
            after,
            state.quota_usage,
            self._cluster_state.never_fits_check(),
            state.own_holds,
            behind,
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
            at
            for gang in state.promises.current
            if (at := state.timeline.expected_start_at(gang)) is not None
        ]
        # else it is late already
        times += [at + RECHECK_INTERVAL for at in expected if at > state.now + OVERDUE_WINDOW]
        return min((at for at in times if at > state.now), default=None)

    # Step 2

    def _honour_promises(self) -> None:
        """Starts gangs whose promised place is free. Then the other promised gangs may be placed elsewhere
        without delaying any gang."""
        making_room = self._preemption_requests.pending_preemptions
        promised = [
            self._state.pending_gang(promise.gang)
            for promise in self._state.promises.renewal_order(making_room.keys())
        ]
        heads = self._pending_iterator.heads() if promised else []
        firm = {
            gang.id
            for gang in promised
            if gang.id in making_room or self._state.promises.is_protected(gang.id)
        }
        for gang in promised:
            if gang.id not in firm and any(
                outranks(head, gang, self._state.quota_usage, self._state.pending_gangs) for head in heads
            ):
                # another gang comes before it: it is examined in its turn
                self._postponed_promises[gang.id] = gang
        self._state.promises.renew(
            {gang.id: (gang, self._state.estimate_of(gang)) for gang in promised}, firm
        )
        # only after all of them are renewed, so that no gang takes the place of another
        for gang in promised:
            self._start_as_promised(gang)
        for gang_id in [
            *(gang.id for gang in promised),
            *sorted(making_room.keys() - self._state.snapshot.promises.keys()),
        ]:
            if gang_id not in self._postponed_promises and gang_id not in self._state.placed:
                self._place_or_renew(self._state.pending_gang(gang_id))
        self._pending_iterator.restart({gang.queue for gang in promised})

    def _start_as_promised(self, gang: Gang) -> None:
        """Starts the gang in its promised place if its start is due and delays no other promised gang."""
        state, before = self._state, self._state.snapshot.promises[gang.id]
        at, place = state.timeline.expected_start_at(gang.id), state.timeline.promised_placement(gang.id)
        if gang.id in self._postponed_promises or at is None or place is None or at > state.now:
            return
        if {assignment.node for assignment in place.assignments} <= {*before.nodes}:
            found = self._try_start_promised(gang)
            if isinstance(found, Placement):
                state.start(found)
            else:
                state.promises.renew({gang.id: (gang, state.estimate_of(gang))})

    def _try_start_promised(self, gang: Gang) -> Placement | BlockReason:
        """A gang that runs were preempted for starts no larger than its guarantee covers: the preempted runs
        could reclaim the rest."""
        state = self._state
        firm = gang.id in state.snapshot.promises and state.promises.is_protected(gang.id)
        return state.try_start(
            state.quota_usage.limit_to_guarantee(gang)
            if firm or gang.id in self._preemption_requests.pending_preemptions
            else gang
        )

    def _place_or_renew(self, gang: Gang) -> None:
        """Starts the gang if possible; otherwise keeps its promise, or reports the breach."""
        state, shape = self._state, self._state.pending_gangs.class_of(gang)
        self._postponed_promises.pop(gang.id, None)
        before = state.snapshot.promises.get(gang.id)
        if self._cluster_state.never_schedulable(shape):
            state.promises.drop(gang.id)
            if before is not None:
                state.promises.report_breach(before, None)
            return
        blocked = state.quick_block_reason(gang) if before is not None else None
        found = blocked or self._try_start_promised(gang)
        if isinstance(found, Placement):
            state.start(found)
        elif gang.id in self._preemption_requests.pending_preemptions:
            if blocked is not None:
                state.promises.confirm(gang, HoldReason.PREEMPTING)
            else:
                state.promises.promise_start(gang, state.estimate_of(gang), HoldReason.PREEMPTING)
            self._preemption_requests.hold_for_preemption(gang)
        elif blocked is not None:
            state.confirm_promise(gang, blocked)
        else:
            state.try_promise(gang, found)

    # Steps 3 to 8

    def _schedule_pending(self) -> None:
        """Promised gangs count as started, so that no queue or user gets more than its share on top of its
        promises."""
        order, state = self._pending_iterator, self._state
        most = state.snapshot.max_placements or sys.maxsize
        while len(state.placed) < most and (gang := order.head()) is not None:
            if gang.id in self._postponed_promises:
                self._place_or_renew(gang)
            if gang.id in state.placed:
                order.advance(gang)
            elif gang.id in state.promises.current:
                self._try_earlier(gang)
                order.advance(gang)
            elif gang.id in state.snapshot.promises or gang.id in state.own_holds:
                order.advance(gang)
            elif self._cluster_state.never_schedulable(state.pending_gangs.class_of(gang)):
                order.skip_all([state.pending_gangs.class_of(gang)])
            else:
                self._schedule_gang(gang)
                self._skip_full_classes()
        if self._preemption_requests.budget_spent:
            self._preemption_requests.recheck_times.append(state.now + RECHECK_INTERVAL)

    def _try_earlier(self, gang: Gang) -> None:
        """Starts a promised gang earlier, at the cost of promised gangs that it outranks."""
        detail = self._state.own_holds.get(gang.id)
        found = None
        if detail is not None and detail.reason in YIELD_REASONS:
            found = self._overtake_outranked(
                gang, BlockReason(detail.reason, detail.cause, detail.blocked_by)
            )
        if not isinstance(found, Placement) and self._preemption_requests.is_due(
            list(self._state.promises.current).index(gang.id), EARLIER_START_INTERVAL
        ):
            self._preemption_requests.preempt_for(gang)

    def _schedule_gang(self, gang: Gang) -> None:
        state, shape = self._state, self._state.pending_gangs.class_of(gang)
        found = self._known_block_reason(gang, shape) or self._try_start(gang, shape)
        if isinstance(found, BlockReason) and found.reason in YIELD_REASONS:
            found = self._overtake_outranked(gang, found)
        elif isinstance(found, Placement):
            state.start(found)
        if isinstance(found, Placement):
            self._pending_iterator.advance(gang)
            return
        self._record_refusal(gang, shape, found)
        hopeful = not self._skipping_full_classes or self._pending_iterator.may_still_preempt(gang.queue)
        if (hopeful and self._preemption_requests.preempt_for(gang)) or self._promise_start(
            gang, shape, found
        ):
            self._pending_iterator.advance(gang)
        else:
            self._pending_iterator.close(self._starvation_guard.hold_back_followers(gang))
            self._skip_equivalent(gang, shape, found)

    def _known_block_reason(self, gang: Gang, gang_class: GangClass) -> BlockReason | None:
        """Returns a reason that is certain without a search: the queue refuses the gang, there is no room
        even without promises, or equivalent gangs found none."""
        refused = self._state.quota_usage.refusal(gang)
        if refused is not None:
            return BlockReason.of(refused.cause, refused.blocked_by)
        limit_s = self._blocked_if_longer_than.get((gang_class, gang.queue, gang.user))
        behind = limit_s is not None and self._state.estimate_of(gang).high_s >= limit_s
        if (behind or gang_class not in self._recently_placed) and self._is_full(gang_class):
            return NO_CAPACITY_BLOCK
        return self._blocked_behind[gang_class] if behind else None

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
        """Returns a place, or why the gang cannot start. If the last gang of its shape could start, it was
        not checked beforehand whether there is room."""
        found = self._state.try_start(gang, quota_checked=True)
        if isinstance(found, Placement):
            self._recently_placed.add(gang_class)
        elif gang_class in self._recently_placed:
            self._recently_placed.discard(gang_class)
            return NO_CAPACITY_BLOCK if self._is_full(gang_class) else found
        return found

    def _overtake_outranked(self, gang: Gang, block: BlockReason) -> Placement | BlockReason:
        """Starts the gang, or promises it a start, before promised gangs that it outranks."""
        if block.reason is HoldReason.BEHIND:
            again = self._displace_promises(gang, block)
            if isinstance(again, Placement) or again.reason not in YIELD_REASONS:
                return again
            block = again
        return self._start_in_reservation(gang, block)

    def _start_in_reservation(self, gang: Gang, block: BlockReason) -> Placement | BlockReason:
        """Starts the gang in its own active reservation, which it may use for as long as it takes. Gangs that
        were promised a start there after the reservation yield."""
        state, key = self._state, (self._state.pending_gangs.class_of(gang), gang.queue, gang.user)
        expected = state.estimate_of(gang)
        others = [
            other
            for other in state.timeline.non_binding_promises(gang)
            if other not in self._preemption_requests.pending_preemptions
        ]
        if not others or expected.high_s >= self._reservation_too_short.get(key, inf):
            return block
        place = state.timeline.try_in_reservation(gang, expected, others)
        if place is None:
            self._reservation_too_short[key] = expected.high_s
            return block
        others = [other for other in others if state.timeline.expected_start_at(other) is None]
        for other in others:
            state.promises.drop(other)
        state.start(place)
        reservation = state.timeline.reservation_of(place)
        for other in others:
            state.promises.record_displacement(other, gang.id, reservation or "")
            state.renew_promise(state.pending_gang(other))
        return place

    def _displace_promises(self, gang: Gang, block: BlockReason) -> Placement | BlockReason:
        """Promises to gangs that it outranks do not bind the gang: it is started, or promised a start, before
        they are promised one again. Promises for which runs were preempted do bind it, or these runs would
        end in vain."""
        state = self._state
        outranked = [
            other
            for other in state.promises.outranked(gang)
            if other.id not in self._preemption_requests.pending_preemptions
        ]
        if not outranked:
            return block
        for other in outranked:
            state.promises.drop(other.id)
        again = state.try_start(gang)
        if isinstance(again, Placement):
            state.start(again)
        elif gang.id in state.promises.current or not state.promises.is_unavailable(gang, again.reason):
            state.try_promise(gang, again)
        for other in reversed(outranked):
            state.renew_promise(other)
        return again

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
        refused = self._state.quota_usage.refusal(gang)
        if block.reason is HoldReason.USER_LIMIT or (
            refused is not None and refused.reason is HoldReason.USER_LIMIT
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
            for shape in self._state.pending_gangs.classes:
                if shape not in self._full_classes and not self._state.has_room(shape):
                    self._full_classes[shape] = NO_CAPACITY_BLOCK
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
        hopeful = sorted(
            queue for queue, priority in queues if self._preemption_requests.may_preempt(queue, priority)
        )
        count = self._preemption_requests.search_budget // SEARCHES_PER_QUEUE
        if len(hopeful) <= count:
            return hopeful
        self._preemption_requests.recheck_times.append(state.now + RETRY_INTERVAL)
        first = self._preemption_requests.cycle_number % len(hopeful)
        return (hopeful + hopeful)[first : first + count]
