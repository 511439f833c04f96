"""Backfill: places gangs now if they delay no promised start and no reservation, and promises starts to
blocked gangs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from datetime import datetime, timedelta

from hopyard.domain.amounts import amounts_by_node
from hopyard.domain.cluster import Breach, Promise, Running, Snapshot
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.hold_causes import QuotaPromised
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.scheduler.duration_estimates import MAX_DURATION_S, DurationEstimate
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.quota.quota_usage import QuotaUsage
from hopyard.scheduler.timeline.availability import Availability
from hopyard.scheduler.timeline.block_reason import MAX_NAMED_BLOCKERS, BlockReason, explain_block
from hopyard.scheduler.timeline.earliest_start import (
    PROMISE_SCORE,
    StartSlot,
    earliest_start,
    earliest_start_on,
)
from hopyard.scheduler.timeline.promise_breach import PrecedenceRule, explain_breach
from hopyard.scheduler.timeline.promised_slots import TIME_TOLERANCE_S, PromisedSlot
from hopyard.scheduler.timeline.run_end_estimates import EXPECTED_STOP_S, RunEndEstimates


class BackfillTimeline:
    """The future of one cycle: running gangs with their estimated ends, promised starts, and reservations.
    Backfill follows Mu'alem and Feitelson (TPDS 2001): conservative for promised gangs, free for all others.

    Mutable. `capacity` and `quota_usage` are shared with the caller: `start` charges them, so the caller must
    not. Gangs with a promise are handled first, in the order of their promises: `try_backfill`, and `promise`
    again if that fails.
    """

    def __init__(
        self,
        capacity: Capacity,
        quota_usage: QuotaUsage,
        run_ends: RunEndEstimates,
        reservations: Sequence[Reservation],
        now: datetime,
        queues: QueueTree,
        promises: Iterable[Promise] = (),
    ) -> None:
        """run_ends: the running gangs, as of `now`. queues: decide which gangs own a reservation for a queue.
        promises: promises of earlier cycles, which will probably be given again on the same nodes."""
        promises = tuple(promises)
        expected_nodes = [node for promise in promises for node in promise.nodes]
        protected = frozenset(promise.gang for promise in promises if promise.has_preempted)
        self._outlook = Availability(
            capacity, quota_usage, run_ends, reservations, now, queues, expected_nodes, protected
        )
        self._now = now

    @property
    def promised_usage(self) -> QuotaUsage:
        """The quota in use as if all promised gangs had started. The caller must not change it."""
        return self._outlook.promised_usage

    def on_promised_usage_change(self, listener: Callable[[QueueName], None]) -> None:
        """Registers a callback that receives the queue when `promised_usage` changes."""
        self._outlook.promised_usage_listener = listener

    @classmethod
    def of(cls, snapshot: Snapshot) -> BackfillTimeline:
        """Builds a timeline from a snapshot alone, for callers that keep no state between cycles."""
        nodes = snapshot.nodes.values()
        return cls(
            Capacity.of(nodes, (running.placement for running in snapshot.running)),
            QuotaUsage.of(snapshot.queues, nodes, snapshot.running, snapshot.past_usage, snapshot.now),
            RunEndEstimates.of(
                snapshot.running, snapshot.durations, snapshot.now, grace_s=snapshot.preempt_grace_s
            ),
            snapshot.reservations,
            snapshot.now,
            snapshot.queues,
        )

    def try_backfill(
        self,
        gang: Gang,
        estimate: DurationEstimate,
        *,
        score: str = "fragmentation",
        preferred_nodes: frozenset[NodeId] = frozenset(),
        explain: bool = True,
        quota_checked: bool = False,
    ) -> Placement | BlockReason:
        """Returns where the gang may start now, or why it may not. Takes no resources. Withdraws the promise
        of the gang in this cycle, if any: call `promise` again if the gang does not start.

        The gang delays no promised start and no reservation: it ends before them, for certain or by the upper
        end of its estimate, or fits beside them. explain: if false, a lack of room has no cause, since the
        cause needs a copy of all free resources. quota_checked: the caller knows that the queue does not
        refuse the gang.
        """
        availability = self._outlook
        availability.remove_slot(gang.id)
        allowed = self._allowed_sizes(gang, estimate, quota_checked=quota_checked)
        if isinstance(allowed, BlockReason):
            return allowed
        placement = availability.free_for(gang, estimate.high_s).place_largest(
            allowed, score=score, preferred_nodes=preferred_nodes
        )
        return placement or explain_block(availability, gang, estimate, allowed[0][1], explain=explain)

    def try_in_reservation(
        self, gang: Gang, estimate: DurationEstimate, others: Sequence[GangId]
    ) -> Placement | None:
        """Same as `try_backfill`, but promises to the gangs in `others` do not bind the gang in its own
        active reservation.

        If a place is found, withdraws their promises on these nodes, and the promise of the gang; otherwise
        changes nothing. Only for gangs that `try_backfill` finds no place for: it is not checked whether they
        need the reservation.
        """
        availability = self._outlook
        own_slots = self._remove_slots([gang.id])
        allowed = self._allowed_sizes(gang, estimate)
        if isinstance(allowed, BlockReason):
            self._add_slots(own_slots)
            return None
        capacity = availability.free_for(gang, estimate.high_s).copy()
        other_slots = self._remove_slots(others)
        capacity.raise_to(availability.reserved_free_for(gang, estimate.high_s))
        placement = capacity.place_largest(allowed)
        if placement is None:
            self._add_slots([*other_slots, *own_slots])
            return None
        nodes = {assignment.node for assignment in placement.assignments}
        self._add_slots(slot for slot in other_slots if nodes.isdisjoint(slot.promise.nodes))
        return placement

    def non_binding_promises(self, gang: Gang) -> list[GangId]:
        """Returns promises of this cycle that do not bind the gang in its own reservation."""
        return self._outlook.non_binding_promises(gang)

    def reservation_of(self, placement: Placement) -> str | None:
        """Returns the name of a reservation for the placed gang on these nodes, or None."""
        nodes = {assignment.node for assignment in placement.assignments}
        reservations = [window.reservation for window in self._outlook.active_windows(placement.gang)]
        return next(
            (reservation.name for reservation in reservations if not nodes.isdisjoint(reservation.nodes)),
            None,
        )

    def save_promises(self, gangs: Iterable[GangId]) -> dict[GangId, PromisedSlot | None]:
        """Returns the promises of these gangs in this cycle, for `restore_promises`."""
        return {gang: self._outlook.slots.get(gang) for gang in gangs}

    def restore_promises(self, saved: Mapping[GangId, PromisedSlot | None]) -> None:
        """Restores the saved promises of these gangs."""
        self._remove_slots(saved)
        self._add_slots([slot for slot in saved.values() if slot is not None])

    def _remove_slots(self, gangs: Iterable[GangId]) -> list[PromisedSlot]:
        slots = [slot for gang in gangs if (slot := self._outlook.slots.get(gang)) is not None]
        for slot in slots:
            self._outlook.remove_slot(slot.promise.gang)
        return slots

    def _add_slots(self, slots: Iterable[PromisedSlot]) -> None:
        for slot in slots:
            self._outlook.add_slot(slot)

    def _allowed_sizes(
        self, gang: Gang, estimate: DurationEstimate, *, quota_checked: bool = False
    ) -> list[tuple[Gang, frozenset[str]]] | BlockReason:
        """Returns the sizes that quota allows now and beside the promises, with the GPU models that each size
        may not use (see `QuotaUsage.allowed_sizes`)."""
        availability = self._outlook
        refused = None if quota_checked else availability.quota_usage.refusal(gang)
        if refused is not None:
            return BlockReason.of(refused.cause, refused.blocked_by)
        sizes = availability.quota_usage.allowed_sizes(gang)
        points = availability.overlapping(gang, estimate.high_s)
        for usage in availability.restricting_usages(gang, points):
            if (refused := usage.refusal(gang)) is not None:
                return BlockReason.of(QuotaPromised(refused.cause), refused.blocked_by)
            limited_sizes = [
                (smaller, closed | closed_then)
                for sized, closed in sizes
                for smaller, closed_then in usage.allowed_sizes(sized)
            ]
            sizes = [
                *{
                    (smaller_gang.size, closed): (smaller_gang, closed)
                    for smaller_gang, closed in limited_sizes
                }.values()
            ]
        return sizes

    def start(self, placement: Placement, estimate: DurationEstimate) -> None:
        """Starts the gang now, and charges its resources and quota."""
        self._outlook.remove_slot(placement.gang.id)
        self._outlook.start(placement, estimate)

    def promise(
        self, gang: Gang, estimate: DurationEstimate, *, previous: Promise | None = None
    ) -> Promise | None:
        """Promises the earliest start of a gang that cannot start now; from then on no other gang is placed
        so that it is delayed. Returns None if the gang finds no place even after all runs have ended.

        previous: the promise of an earlier cycle. The gang stays on those nodes, so that the drained nodes do
        not change, and keeps that time while possible; otherwise the new promise is later (see
        `explain_breach`). `start_at` is the latest expected start; `expected_start_at` returns the probable
        one.
        """
        availability = self._outlook
        availability.remove_slot(gang.id)
        gang = gang.with_replica_counts([role.required_replicas for role in gang.roles])
        slot, own_slot = (
            self._keep_on_nodes(gang, estimate, previous),
            self._start_in_own_reservation(gang, estimate),
        )
        if own_slot is not None and slot is not None and slot.at_s <= own_slot.at_s:
            own_slot = None
        slot = own_slot or slot
        if slot is None:
            return None
        nodes = tuple(sorted({assignment.node for assignment in slot.placement.assignments}))
        from_s = slot.at_s
        if previous is not None and self._to_datetime(slot.at_s) <= previous.start_at:
            start_at = previous.start_at
        else:
            start_at = self._to_datetime(self._latest_start_s(gang, estimate, nodes, slot))
            if previous is not None:
                from_s = max((previous.start_at - self._now).total_seconds(), 0.0)
        given_at = previous.given_at if previous and start_at == previous.start_at else self._now
        promise = Promise(gang.id, start_at, given_at, nodes, previous is not None and previous.has_preempted)
        awaited_runs = [end.gang for end in availability.ends_on(nodes) if end.mid_s <= slot.at_s]
        latest_end_s = max(slot.at_s, (start_at - self._now).total_seconds()) + estimate.high_s
        promised_slot = PromisedSlot(
            promise,
            slot.placement,
            slot.at_s,
            slot.at_s + estimate.high_s,
            latest_end_s,
            from_s,
            tuple(reversed(awaited_runs)),
            own_slot is not None,
        )
        availability.add_slot(promised_slot)
        return promise

    def renew_promises(
        self, requests: Sequence[tuple[Gang, DurationEstimate, Promise]], protected: Container[GangId] = ()
    ) -> dict[GangId, Promise | None]:
        """Calls `promise` for each gang with its promise of an earlier cycle. Returns the result with the
        fewest delays among several orders: as given, by the time of the promise, and by the promised start.

        The order matters since only the nodes of a promise are remembered: an earlier gang may take the
        resources that later ones count on, and starts sooner if it can. protected: these gangs come first in
        any order, since runs were preempted for them. Among them the newest first is tried, as they were
        promised what the others left, and the oldest first.
        """
        protected_requests = [request for request in requests if request[0].id in protected]
        other_requests = [request for request in requests if request[0].id not in protected]
        orders = [
            [*first_requests, *sorted(other_requests, key=key)]
            for first_requests in (
                protected_requests,
                sorted(protected_requests, key=_given_order, reverse=True),
                sorted(protected_requests, key=_given_order),
            )
            for key in (_given_order, _due_order)
        ]
        order, results = requests, self._renew_in_order(requests)
        best, fewest_late, tried = order, self._count_late(requests, results, protected), [order]
        for candidate in orders:
            if fewest_late and candidate not in tried:
                order, results = candidate, self._renew_in_order(candidate)
                tried.append(order)
                if (late_count := self._count_late(requests, results, protected)) < fewest_late:
                    best, fewest_late = candidate, late_count
        return results if order is best else self._renew_in_order(best)

    def _renew_in_order(
        self, requests: Sequence[tuple[Gang, DurationEstimate, Promise]]
    ) -> dict[GangId, Promise | None]:
        for gang, _, _ in requests:
            self.withdraw_promise(gang.id)
        return {
            gang.id: self.promise(gang, expected, previous=previous) for gang, expected, previous in requests
        }

    def _count_late(
        self,
        requests: Sequence[tuple[Gang, DurationEstimate, Promise]],
        results: Mapping[GangId, Promise | None],
        protected: Container[GangId],
    ) -> int:
        """Returns how many promises are not kept, or are delayed although runs were preempted for them."""
        return sum(
            (result := results[gang.id]) is None
            or result.start_at > previous.start_at
            or (gang.id in protected and self._is_delayed_by_promises(gang, previous))
            for gang, _, previous in requests
        )

    def _is_delayed_by_promises(self, gang: Gang, previous: Promise) -> bool:
        """Returns whether only other promises keep the gang from resources on its promised nodes that are
        free now or soon."""
        snapshots, minimum_gang = (
            self._outlook.capacity_snapshots(previous.nodes),
            gang.with_replica_counts([role.required_replicas for role in gang.roles]),
        )
        expected_start_s = self._outlook.slots[gang.id].expected_start_s - TIME_TOLERANCE_S
        return any(
            at_s < expected_start_s
            and snapshots.state_at(at_s).place(minimum_gang, score=PROMISE_SCORE) is not None
            for at_s in (0.0, EXPECTED_STOP_S)
        )

    def earliest_start(self, gang: Gang, estimate: DurationEstimate) -> datetime | None:
        """Returns the expected start if the gang were promised a start now. Gives no promise."""
        minimum_gang = gang.with_replica_counts([role.required_replicas for role in gang.roles])
        slot = earliest_start(self._outlook, minimum_gang, estimate.high_s)
        return None if slot is None else self._to_datetime(slot.at_s)

    def explain_breach(
        self, gang: Gang, previous: Promise, replacement: Promise | None, rule: PrecedenceRule
    ) -> Breach | None:
        """Returns why an earlier promise cannot be kept, or None if it is kept. Call it after `promise`.
        rule: returns why another gang comes first."""
        return explain_breach(self._outlook, gang, previous, replacement, rule)

    def is_placed(self, gang: GangId) -> bool:
        """Returns whether the gang has been placed, in this cycle or before."""
        return gang in self._outlook.started or self._outlook.run_ends.running(gang) is not None

    def expected_start_at(self, gang: GangId) -> datetime | None:
        """Returns the expected start of a gang that was promised a start in this cycle."""
        slot = self._outlook.slots.get(gang)
        return None if slot is None else self._to_datetime(slot.expected_start_s)

    def guaranteed_start_at(
        self, gang: GangId, estimate: DurationEstimate, deadline: datetime
    ) -> datetime | None:
        """Returns the start of a promised gang if all runs in its place end at the upper end of their
        estimates. Returns None if that is later than `deadline`."""
        slot = self._outlook.slots.get(gang)
        if slot is None or self._to_datetime(slot.expected_start_s) > deadline:
            return None
        self._outlook.remove_slot(gang)  # its own slot must not delay it
        start_at = self._to_datetime(
            self._latest_start_s(
                slot.placement.gang,
                estimate,
                slot.promise.nodes,
                StartSlot(slot.placement, slot.expected_start_s),
            )
        )
        self._outlook.add_slot(slot)
        return start_at if start_at <= deadline else None

    def blocking_runs(self, gang: GangId) -> tuple[str, ...]:
        """Returns the runs that a promised gang waits for, as names of a Hold: the first few runs on its
        nodes that hold the missing resources, the last to end first."""
        slot = self._outlook.slots.get(gang)
        if slot is None:
            return ()
        missing = {
            (node, name)
            for node, need in amounts_by_node(slot.placement).items()
            for free_amounts in [self._outlook.capacity.free_on(node)]
            for name, amount in need.items()
            if amount > free_amounts.get(name, 0)
        }
        holders = {
            end.gang
            for end in self._outlook.ends_on({node for node, _ in missing})
            for node, amounts_held in amounts_by_node(end.placement).items()
            if any(amount and (node, name) in missing for name, amount in amounts_held.items())
        }
        named_runs = [run for run in slot.awaited_runs if run in holders] or slot.awaited_runs
        return tuple(f"run:{run}" for run in named_runs[:MAX_NAMED_BLOCKERS])

    def awaited_runs(self, gang: GangId) -> frozenset[GangId]:
        """Returns the runs that are expected to end on the nodes of a promised gang before it starts."""
        slot = self._outlook.slots.get(gang)
        return frozenset(slot.awaited_runs) if slot else frozenset()

    def promises_after(self, runs: Set[GangId]) -> frozenset[GangId]:
        """Returns the promised gangs that cannot start before one of these runs has ended: it holds resources
        that they need, or they come after such a gang on its nodes."""
        found: set[GangId] = set()
        waiting_from_s: dict[NodeId, float] = {}
        slots = self._outlook.slots.values()
        for slot in sorted(slots, key=lambda each: (each.expected_start_s, each.promise.gang)):
            nodes = {assignment.node for assignment in slot.placement.assignments}
            is_later = any(
                node in waiting_from_s and slot.expected_start_s > waiting_from_s[node] for node in nodes
            )
            if is_later or self._needs_end_of(slot, runs):
                found.add(slot.promise.gang)
                for node in nodes:
                    waiting_from_s.setdefault(node, slot.expected_start_s)
        return frozenset(found)

    def _needs_end_of(self, slot: PromisedSlot, runs: Set[GangId]) -> bool:
        """Returns whether the place of the slot stays too small if of all awaited runs only these remain."""
        if runs.isdisjoint(slot.awaited_runs):
            return False
        needed = amounts_by_node(slot.placement)
        free = {node: Counter(self._outlook.capacity.free_on(node)) for node in needed}
        for end in self._outlook.ends_on(needed.keys()):
            if end.gang in slot.awaited_runs and end.gang not in runs:
                for node, amounts in amounts_by_node(end.placement).items():
                    if node in free:
                        free[node].update(amounts)
        return any(
            amount > free[node][name] for node, amounts in needed.items() for name, amount in amounts.items()
        )

    def withdraw_promise(self, gang: GangId) -> None:
        """Withdraws the promise of the gang in this cycle."""
        self._outlook.remove_slot(gang)

    def update_runs(self, runs: Iterable[Running]) -> None:
        """Updates these runs, for example to stopping. If this was only assumed, the caller updates
        `RunEndEstimates` again later."""
        self._outlook.update_runs(runs)

    def promised_placement(self, gang: GangId) -> Placement | None:
        """Returns the expected placement of a gang that was promised a start in this cycle."""
        slot = self._outlook.slots.get(gang)
        return None if slot is None else slot.placement

    def committed_nodes(self) -> frozenset[NodeId]:
        """Returns nodes with promises or reservations."""
        return self._outlook.committed_nodes()

    def _keep_on_nodes(
        self, gang: Gang, estimate: DurationEstimate, previous: Promise | None
    ) -> StartSlot | None:
        """Returns a start on the promised nodes, unless that breaks the promise and other nodes keep it.
        Gangs that will use their own reservation do not break the promise before they do."""
        slot = self._find_start(gang, estimate, previous)
        if previous is None or (slot is not None and self._to_datetime(slot.at_s) <= previous.start_at):
            return slot
        with self._without_promises(
            [other.promise.gang for other in self._outlook.slots.values() if other.in_own_reservation]
        ) as has_withdrawn:
            on_promised_nodes = (
                earliest_start_on(self._outlook, gang, estimate.high_s, previous.nodes)
                if has_withdrawn and previous.nodes
                else None
            )
        return (
            on_promised_nodes
            if on_promised_nodes is not None
            and self._to_datetime(on_promised_nodes.at_s) <= previous.start_at
            else slot
        )

    def _start_in_own_reservation(self, gang: Gang, estimate: DurationEstimate) -> StartSlot | None:
        """Returns a start on nodes that are reserved for the gang now, before the reservation ends. Promises
        of these nodes to other gangs for afterwards do not bind it: these gangs are informed when it starts.
        Their quota stays promised to them."""
        availability = self._outlook
        with self._without_non_binding(gang) as until_s:
            slot = earliest_start_on(availability, gang, estimate.high_s, until_s) if until_s else None
        if slot is None or slot.at_s >= _reservation_end_s(slot, until_s):
            return None
        points = availability.overlapping_later(gang, slot.at_s, slot.at_s + estimate.high_s)
        return (
            None
            if any(usage.refusal(gang) for usage in availability.restricting_usages(gang, points))
            else slot
        )

    @contextmanager
    def _without_non_binding(self, gang: Gang) -> Iterator[Mapping[NodeId, float]]:
        """Withdraws the non-binding promises inside the block, if any. Yields the nodes that are reserved for
        the gang, each with the remaining seconds."""
        with self._without_promises(self._outlook.non_binding_promises(gang)) as has_withdrawn:
            yield self._outlook.reserved_whole_nodes(gang) if has_withdrawn else {}

    @contextmanager
    def _without_promises(self, gangs: Iterable[GangId]) -> Iterator[bool]:
        """Withdraws the promises of these gangs in this cycle inside the block. Yields whether there were
        any."""
        slots = self._remove_slots(gangs)
        try:
            yield bool(slots)
        finally:
            self._add_slots(slots)

    def _find_start(
        self, gang: Gang, estimate: DurationEstimate, previous: Promise | None
    ) -> StartSlot | None:
        on_promised_nodes = (
            earliest_start_on(self._outlook, gang, estimate.high_s, previous.nodes)
            if previous is not None and previous.nodes
            else None
        )
        if (
            previous is not None
            and on_promised_nodes is not None
            and self._to_datetime(on_promised_nodes.at_s) <= previous.start_at
        ):
            return on_promised_nodes
        anywhere = earliest_start(self._outlook, gang, estimate.high_s)
        if on_promised_nodes is None or anywhere is None or previous is None:
            return on_promised_nodes or anywhere
        return anywhere if self._to_datetime(anywhere.at_s) <= previous.start_at else on_promised_nodes

    def _latest_start_s(
        self, gang: Gang, estimate: DurationEstimate, nodes: Sequence[NodeId], slot: StartSlot
    ) -> float:
        """Returns when the gang has its place if all runs take as long as can be expected."""
        with self._without_non_binding(gang) as until_s:
            if until_s.keys() >= {*nodes}:
                at_s = self._latest_end_s(gang, estimate, nodes, slot)
                if at_s < _reservation_end_s(slot, until_s):
                    return at_s
        return self._latest_end_s(gang, estimate, nodes, slot)

    def _latest_end_s(
        self, gang: Gang, estimate: DurationEstimate, nodes: Sequence[NodeId], slot: StartSlot
    ) -> float:
        availability, node_set = self._outlook, frozenset(nodes)
        slots = [
            other for other in availability.slots.values() if not node_set.isdisjoint(other.promise.nodes)
        ]
        if all(end.mid_s == end.high_s for end in availability.ends_on(nodes)) and all(
            other.expected_end_s == other.latest_end_s for other in slots
        ):
            return slot.at_s
        latest = earliest_start_on(
            self._outlook, gang, estimate.high_s, nodes, pessimistic=True, after_s=slot.at_s
        )
        return slot.at_s if latest is None else min(latest.at_s, MAX_DURATION_S)

    def _to_datetime(self, in_s: float) -> datetime:
        return self._now + timedelta(seconds=in_s)


def _reservation_end_s(slot: StartSlot, until_s: Mapping[NodeId, float]) -> float:
    """Returns when the first of the nodes is no longer reserved."""
    return min(until_s[assignment.node] for assignment in slot.placement.assignments)


def _given_order(request: tuple[Gang, DurationEstimate, Promise]) -> tuple[datetime, GangId]:
    return request[2].given_at, request[0].id


def _due_order(request: tuple[Gang, DurationEstimate, Promise]) -> tuple[datetime, GangId]:
    return request[2].start_at, request[0].id
