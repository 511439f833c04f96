"""Who was promised a start, in one turn: promises of earlier turns that are kept or broken, and new ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hopyard.domain.cluster import Breach, BreachCause, HoldReason, Promise
from hopyard.domain.gang import Gang, Placement, Where
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.domain.queue import Queue
from hopyard.scheduler.cycle.line import Line, Rank, order
from hopyard.scheduler.cycle.soon import SOON
from hopyard.scheduler.fairness.accounts import Accounts
from hopyard.scheduler.predict import Expected
from hopyard.scheduler.timeline.timeline import Timeline

PROMISES = 8  # blocked gangs that are promised a start; all others may be overtaken by who is in nobody's way
LATE = "late is also who goes before it, run"
BY_QUOTA = (HoldReason.QUOTA, HoldReason.USER_LIMIT)
Ground = frozenset[tuple[bool, tuple[str, ...], Where]]


class Promises:
    """The first PROMISES of those that wait for room, one of each user in a queue: what a user was promised
    ahead would keep others from their share who come later. Nor is anybody promised what another of its queue
    would take, who comes before it by priority and waits for the same without a promise. Those that wait for
    what their queue or user may use compete with their own queue only and are promised nothing (see `Frost`).
    In a queue that slices time only the first is promised a start: the others get theirs from those that were
    served longer.

    before: as they were given in earlier turns.
    """

    def __init__(
        self,
        before: Mapping[GangId, Promise],
        timeline: Timeline,
        accounts: Accounts,
        line: Line,
        queues: Mapping[QueueName, Queue],
        now: datetime,
    ) -> None:
        self.before = before
        self.given: dict[GangId, Promise] = {}
        self._breaches: dict[GangId, Breach] = {}
        self._timeline, self._accounts, self._line, self._now = timeline, accounts, line, now
        self._new = 0
        self._queues = queues
        self._for_room: dict[GangId, QueueName] = {}
        # who waits for room and was promised nothing
        self._passed: dict[QueueName, list[tuple[Rank, Ground]]] = {}
        self._gave_way: dict[GangId, str] = {}  # why they are late if they are

    @property
    def exhausted(self) -> bool:
        """Whether nobody else that waits for room is promised a start."""
        return len(self._for_room) >= PROMISES

    def taken(self, gang: Gang, reason: HoldReason) -> bool:
        """Whether there is no promise left for a gang that is blocked for this reason. Where time is sliced,
        whoever was served is not promised more: it gave way to those that come before it, and they are not to
        be late for it."""
        if reason in BY_QUOTA or self.exhausted:
            return True
        rank, ground, passed = (
            self._line.rank_of(gang),
            _ground(gang),
            self._passed.setdefault(gang.queue, []),
        )
        if any(before < rank and there == ground for before, there in passed):
            return True
        found = bool(rank[1]) or (
            self._queues[gang.queue].time_slices and gang.queue in self._for_room.values()
        )
        others = [
            self._gang(self.given[name])
            for name, queue in self._for_room.items()
            if queue == gang.queue and name != gang.id
        ]
        if found or any(other.user == gang.user and _ground(other) == ground for other in others):
            passed.append((rank, ground))
            return True
        return False

    def in_order(self, preempting: Set[GangId]) -> list[Promise]:
        """Of those that still wait: first those that should have started and those for whom runs make room,
        as they are due, then the others as is fair now; of one queue, those of higher priority take the
        places of those of lower."""
        fair = self._fair([promise for promise in self.before.values() if promise.gang in self._line])
        given = sorted(fair, key=lambda one: self._due(one, preempting))
        by_queue: dict[QueueName, list[Promise]] = {}
        for promise in given:
            by_queue.setdefault(self._gang(promise).queue, []).append(promise)
        for queue, promises in by_queue.items():
            promises.sort(
                key=lambda one: (
                    one.gang not in preempting and not self.firm(one.gang),
                    self._line.rank_of(self._gang(one)),
                )
            )
            by_queue[queue] = promises[::-1]
        return [by_queue[self._gang(promise).queue].pop() for promise in given]

    def _fair(self, promises: Iterable[Promise]) -> list[Promise]:
        """As if they had been promised nothing; of queues that are served alike whoever was promised first,
        so that they take turns."""
        by_queue: dict[QueueName, list[Promise]] = {}
        for promise in sorted(promises, key=lambda one: self._key(self._gang(one)), reverse=True):
            by_queue.setdefault(self._gang(promise).queue, []).append(promise)
        found = []
        while by_queue:
            queue = min(by_queue, key=lambda name: self._served(by_queue[name][-1]))
            found.append(by_queue[queue].pop())
            if not by_queue[queue]:
                del by_queue[queue]
        return found

    def _served(self, promise: Promise) -> tuple[list[tuple[int, float]], datetime, GangId]:
        """Of those first in their queues."""
        gang = self._gang(promise)
        levels = self._accounts.queue_key(gang.queue, gang)
        return [(beyond, share) for beyond, share, _ in levels], promise.given_at, promise.gang

    def _key(self, gang: Gang) -> tuple[Rank, tuple[float, ...], tuple[datetime, GangId]]:
        """Of those in one queue."""
        return self._line.rank_of(gang), self._accounts.user_key(gang.queue, gang.user), order(gang)

    def firm(self, gang: GangId) -> bool:
        """Whether others made room for it: nobody is put before it."""
        return self.before[gang].made_room

    def _due(self, promise: Promise, preempting: Set[GangId]) -> datetime:
        """When it is due; all that are not due yet are alike. So what others left for somebody is not taken
        by who was promised a later start before, and who is late is not overtaken again and again."""
        due = promise.gang in preempting or promise.made_room or promise.start_at <= self._now
        return promise.start_at if due else datetime.max.replace(tzinfo=UTC)

    def settle(self, gang: Gang, reason: HoldReason) -> Promise | None:
        """What `expect` found stands: kept, or reported as broken."""
        promise = self.given.get(gang.id)
        self.broken(self.before[gang.id], promise)
        return self._settled(gang, promise, reason)

    def expect(self, gangs: Mapping[GangId, tuple[Gang, Expected]], firm: Set[GangId] = frozenset()) -> None:
        """From now on nobody is in their way where they were promised a start before; whether that is kept is
        said later. firm: those whom nobody is put before."""
        wanted = [(gang, expected, self.before[name]) for name, (gang, expected) in gangs.items()]
        for name, promise in self._timeline.promise_again(wanted, firm).items():
            if promise is None:
                self.given.pop(name, None)
            else:
                self.given[name] = promise

    def give(self, gang: Gang, expected: Expected, reason: HoldReason) -> Promise | None:
        """Of the earliest start that is in nobody's way; kept where it was given before, or reported as
        broken. Who gave way on nodes that are reserved does not go on waiting for just these."""
        before = self.before.get(gang.id)
        anywhere = before is not None and gang.id in self._gave_way
        promise = self._timeline.promise(
            gang, expected, before=replace(before, nodes=()) if before is not None and anywhere else before
        )
        if before is not None:
            self.broken(before, promise)
        return self._settled(gang, promise, reason)

    def _settled(self, gang: Gang, promise: Promise | None, reason: HoldReason) -> Promise | None:
        if promise is None:
            self.given.pop(gang.id, None)
            return None
        self.given[gang.id] = self._dated(promise, making_room=reason is HoldReason.PREEMPTING)
        if reason is not HoldReason.PREEMPTING:
            self._for_room[gang.id] = gang.queue
        return promise

    def made_room(self, gang: GangId, promise: Promise) -> None:
        """It starts where others make room for it; the timeline knows.
        What it was promised before stands where that is sooner."""
        before, breach = self.before.get(gang), self._breaches.get(gang)
        self._forget(gang)
        at = self._timeline.expected_at(gang)
        if before is not None and at is not None and at <= before.start_at < promise.start_at:
            promise = replace(promise, start_at=before.start_at)
        self.given[gang] = replace(promise, given_at=self._next_date(), made_room=True)
        if before is not None and breach is not None and promise.start_at > before.start_at:
            self._breaches[gang] = replace(breach, expected_at=self._timeline.expected_at(gang))

    def _dated(self, promise: Promise, *, making_room: bool) -> Promise:
        """One that is late keeps its date, so that whoever was promised a start before somebody else stays
        before it. Nobody is promised a start to the second: what is late by less is not worth breaking a
        promise every turn. Those for whom others made room go on counting on all nodes on which they did,
        although fewer would be enough where guesses come true. Once all have left, one that is late all the
        same, or goes elsewhere, waits as others do. making_room: some have not left yet."""
        before = self.before.get(promise.gang)
        if before is None:
            start_at = max(promise.start_at, self._now + SOON)
            return replace(promise, start_at=start_at, given_at=self._next_date(), made_room=making_room)
        if before.made_room and {*promise.nodes} < {*before.nodes}:
            promise = replace(promise, nodes=before.nodes)
        late = promise.start_at > before.start_at
        start_at = max(promise.start_at, max(self._now, before.given_at) + SOON) if late else promise.start_at
        there = not late and {*promise.nodes} <= {*before.nodes}
        return replace(
            promise,
            start_at=start_at,
            given_at=before.given_at,
            made_room=before.made_room and (making_room or there),
        )

    def _next_date(self) -> datetime:
        """A microsecond after the last, so that the order in which they were given stays known."""
        self._new += 1
        return self._now + timedelta(microseconds=self._new)

    def give_way(self, gang: GangId, to: GangId, reservation: str) -> None:
        """Somebody uses what is reserved for it and this one was promised for afterwards: that is why it is
        late, if it was not before."""
        if gang not in self._breaches:
            self._gave_way[gang] = f"run {to} uses what reservation {reservation} keeps for it"

    def broken(self, before: Promise, after: Promise | None) -> None:
        breach = self._timeline.breach(self._gang(before), before, after, self._comes_before)
        self._breaches.pop(before.gang, None)
        if breach is not None and before.gang in self._gave_way and breach.cause is not BreachCause.NODE_LOST:
            breach = replace(
                breach, cause=BreachCause.RESERVATION, detail=self._gave_way[before.gang], other=None
            )
        if breach is not None:
            self._breaches[before.gang] = self._traced(breach)

    def _comes_before(self, other: Placement, gang: Gang) -> tuple[BreachCause, str]:
        """By which rule the other, which holds or will hold what this one was promised, goes first: as things
        stood without it."""
        name, there = f"run {other.gang.id}", other.gang
        accounts = self._accounts.copy()
        if self._timeline.holds_now(there.id):
            accounts.credit(other)
        if there.queue == gang.queue:
            if there.priority > gang.priority:
                return BreachCause.PRIORITY, f"{name} has priority {there.priority}, this one {gang.priority}"
            if there.priority == gang.priority:
                if self._line.rank_of(there) < self._line.rank_of(gang):
                    return (
                        BreachCause.SHARE,
                        f"{name} was served much less, and queue {gang.queue} slices time",
                    )
                if there.user != gang.user and accounts.user_key(there.queue, there.user) < accounts.user_key(
                    gang.queue, gang.user
                ):
                    return (
                        BreachCause.SHARE,
                        (
                            f"{name} goes before it: {there.user} has used less of queue {gang.queue} than "
                            f"{gang.user}"
                        ),
                    )
        elif {there.queue, gang.queue} <= self._queues.keys():
            levels = zip(
                accounts.queue_key(there.queue, there), accounts.queue_key(gang.queue, gang), strict=False
            )
            theirs, mine = next(
                ((one, two) for one, two in levels if one[2] != two[2]),
                ((0, 0.0, there.queue), (0, 0.0, gang.queue)),
            )
            if theirs[0] < mine[0]:
                return (
                    BreachCause.GUARANTEE,
                    (
                        f"{name} is within what queue {theirs[2]} is guaranteed, and queue {mine[2]} would "
                        "borrow"
                    ),
                )
            if theirs[:2] < mine[:2]:
                return (
                    BreachCause.SHARE,
                    f"{name} goes before it: queue {theirs[2]} has less of its share than queue {mine[2]}",
                )
        started = self._timeline.holds_now(there.id)
        return (
            BreachCause.PROMISE,
            f"{name} {'started' if started else 'was promised a start'} there, and will be there longer",
        )

    def _traced(self, breach: Breach) -> Breach:
        """A gang that is late because another goes before it, which is late itself, is late for the same
        cause."""
        if breach.other is None:
            return breach
        if breach.other in self._gave_way:
            return replace(breach, cause=BreachCause.RESERVATION, detail=self._gave_way[breach.other])
        theirs = self._breaches.get(breach.other)
        if theirs is None:
            return breach
        root = (
            theirs.detail.removeprefix(LATE).partition(": ")[2]
            if theirs.detail.startswith(LATE)
            else theirs.detail
        )
        return replace(breach, cause=theirs.cause, detail=f"{LATE} {breach.other}: {root}")

    @property
    def breaches(self) -> tuple[Breach, ...]:
        return tuple(self._breaches[gang] for gang in sorted(self._breaches))

    def drop(self, gang: GangId) -> Promise | None:
        """It starts, or somebody who comes before it needs what it was promised."""
        self._timeline.withdraw(gang)
        return self._forget(gang)

    def _forget(self, gang: GangId) -> Promise | None:
        self._breaches.pop(gang, None)
        self._for_room.pop(gang, None)
        return self.given.pop(gang, None)

    def on(self, nodes: Iterable[NodeId]) -> list[Gang]:
        """Those that were promised anything on these nodes."""
        named = {*nodes}
        return [self._gang(promise) for promise in self.given.values() if not named.isdisjoint(promise.nodes)]

    def outranked(self, gang: Gang) -> list[Gang]:
        """Those with a promise that does not bind this gang, the last given first."""
        found = [self._gang(promise) for promise in self.given.values()]
        return [
            other
            for other in reversed(found)
            if other.id != gang.id and outranks(gang, other, self._accounts, self._line)
        ]

    def _gang(self, promise: Promise) -> Gang:
        found = self._line.find(promise.gang)
        assert found is not None
        return found


def _ground(gang: Gang) -> Ground:
    """What it may use: gangs of other models of GPUs, or other nodes, are in nobody's way there."""
    asks = [(role.resources, role.where) for role in gang.roles]
    return frozenset((bool(one.gpus or one.shares_gpu), one.gpu_models, where) for one, where in asks)


def outranks(gang: Gang, other: Gang, accounts: Accounts, line: Line) -> bool:
    """Whether it comes before the other whatever that was promised: of one queue, by priority and service
    class; of two, when one that is above the gang only is sure of what it asks for, and the other has to
    borrow."""
    if gang.queue == other.queue:
        return line.rank_of(gang) < line.rank_of(other)
    mine, theirs = accounts.queue_key(gang.queue, gang), accounts.queue_key(other.queue, other)
    for (beyond, _, queue), (other_beyond, _, other_queue) in zip(mine, theirs, strict=False):
        if queue != other_queue:
            return beyond < other_beyond
    return False
