"""Who may start now without being in anybody's way, and when the others will."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta

from hopyard.domain.amounts import on_each_node
from hopyard.domain.cluster import Breach, HoldReason, Promise, Running, Snapshot
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.scheduler.fairness.accounts import Accounts
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.predict import NEVER_S, Expected
from hopyard.scheduler.timeline.blocked import NAMED, Blocked, blocked
from hopyard.scheduler.timeline.breach import Rule, breach
from hopyard.scheduler.timeline.future import STOPS_IN_S, Future
from hopyard.scheduler.timeline.moments import SLACK_S, Stay
from hopyard.scheduler.timeline.outlook import Outlook
from hopyard.scheduler.timeline.search import ANY, Spot, earliest, earliest_on


class Timeline:
    """The future of one turn: what runs and when it ends, what is promised, what is reserved (Mu'alem and
    Feitelson, TPDS 2001, for backfilling in nobody's way; conservative for those that were promised a start,
    free for all others).

    Mutable. `capacity` and `accounts` are shared with the caller: `start` takes from them and charges them,
    so the caller does not. Gangs that were promised a start are dealt with first, in the order of their
    promises: `try_now`, and where that fails `promise` again.
    """

    def __init__(
        self,
        capacity: Capacity,
        accounts: Accounts,
        future: Future,
        reservations: Sequence[Reservation],
        now: datetime,
        queues: QueueTree,
        promises: Iterable[Promise] = (),
    ) -> None:
        """future: of what runs, at `now`. queues: whose runs are the owner's of a reservation for a queue.
        promises: of earlier turns, which will be given again, probably on the same nodes."""
        promises = tuple(promises)
        likely = [node for promise in promises for node in promise.nodes]
        firm = frozenset(promise.gang for promise in promises if promise.made_room)
        self._outlook = Outlook(capacity, accounts, future, reservations, now, queues, likely, firm)
        self._now = now

    @property
    def booked(self) -> Accounts:
        """What queues and users use, as if all that were promised a start had started, too.
        Not the caller's own: it follows."""
        return self._outlook.booked

    def on_booked(self, told: Callable[[QueueName], None]) -> None:
        """From now on this is told whose queue it is when `booked` changes."""
        self._outlook.on_booked = told

    @classmethod
    def of(cls, snapshot: Snapshot) -> Timeline:
        """From a snapshot alone, for those who keep nothing between turns."""
        nodes = snapshot.nodes.values()
        return cls(
            Capacity.of(nodes, (running.placement for running in snapshot.running)),
            Accounts.of(snapshot.queues, nodes, snapshot.running, snapshot.used, snapshot.now),
            Future.of(snapshot.running, snapshot.durations, snapshot.now, grace_s=snapshot.preempt_grace_s),
            snapshot.reservations,
            snapshot.now,
            snapshot.queues,
        )

    def try_now(
        self,
        gang: Gang,
        expected: Expected,
        *,
        score: str = "fragmentation",
        prefer: frozenset[NodeId] = frozenset(),
        explain: bool = True,
        asked: bool = False,
    ) -> Placement | Blocked:
        """Where it may start now, or why it may not. Nothing is taken.
        Its own promise, if it has one in this turn, is withdrawn: promise again where it does not start.

        It may go wherever it delays nobody: it ends for sure, or by the upper end of its band, before the
        promised start or the reservation, or fits beside it. explain: without, there is no sentence where
        there is too little room: it needs a copy of all that is free. asked: its queue was, and does not
        refuse it.
        """
        outlook = self._outlook
        outlook.remove_stay(gang.id)
        allowed = self._allowed(gang, expected, asked=asked)
        if isinstance(allowed, Blocked):
            return allowed
        placement = outlook.view(gang, expected.high_s).place_largest(allowed, score=score, prefer=prefer)
        return placement or blocked(outlook, gang, expected, allowed[0][1], explain=explain)

    def try_reserved(self, gang: Gang, expected: Expected, others: Sequence[GangId]) -> Placement | None:
        """As `try_now`, where promises to these others do not bind it in what is reserved for it now. Where
        it finds a place, what they were promised on the same nodes is withdrawn, and so is its own promise;
        else all are as they were. For gangs that `try_now` finds no place for: it is not tried whether they
        need what is reserved."""
        outlook = self._outlook
        own = self._take_out([gang.id])
        allowed = self._allowed(gang, expected)
        if isinstance(allowed, Blocked):
            self._put_in(own)
            return None
        view = outlook.view(gang, expected.high_s).copy()
        theirs = self._take_out(others)
        view.widen(outlook.reserved_view(gang, expected.high_s))
        found = view.place_largest(allowed)
        if found is None:
            self._put_in([*theirs, *own])
            return None
        nodes = {assignment.node for assignment in found.assignments}
        self._put_in(stay for stay in theirs if nodes.isdisjoint(stay.promise.nodes))
        return found

    def unbinding(self, gang: Gang) -> list[GangId]:
        """Whose promises of this turn do not bind the gang in what is reserved for it now."""
        return self._outlook.unbinding(gang)

    def reserved_on(self, placement: Placement) -> str | None:
        """The name of a reservation for the gang that is placed there, on these nodes."""
        nodes = {assignment.node for assignment in placement.assignments}
        holding = [booking.reservation for booking in self._outlook.holding(placement.gang)]
        return next((one.name for one in holding if not nodes.isdisjoint(one.nodes)), None)

    def stays(self, gangs: Iterable[GangId]) -> dict[GangId, Stay | None]:
        """What these were promised in this turn, to `put_back`."""
        return {gang: self._outlook.stays.get(gang) for gang in gangs}

    def put_back(self, stays: Mapping[GangId, Stay | None]) -> None:
        """These were promised that, and nothing else."""
        self._take_out(stays)
        self._put_in([stay for stay in stays.values() if stay is not None])

    def _take_out(self, gangs: Iterable[GangId]) -> list[Stay]:
        found = [stay for gang in gangs if (stay := self._outlook.stays.get(gang)) is not None]
        for stay in found:
            self._outlook.remove_stay(stay.promise.gang)
        return found

    def _put_in(self, stays: Iterable[Stay]) -> None:
        for stay in stays:
            self._outlook.add_stay(stay)

    def _allowed(
        self, gang: Gang, expected: Expected, *, asked: bool = False
    ) -> list[tuple[Gang, frozenset[str]]] | Blocked:
        """As large as its queue and user may have it now and beside what is promised, and the models that it
        may not use then (see `Accounts.sizes`)."""
        outlook = self._outlook
        refused = None if asked else outlook.accounts.refusal(gang)
        if refused is not None:
            return Blocked(refused.reason, refused.detail, refused.blocked_by)
        sizes = outlook.accounts.sizes(gang)
        moments = outlook.met(gang, expected.high_s)
        for accounts in outlook.refusing(gang, moments):
            if (refused := accounts.refusal(gang)) is not None:
                return Blocked(
                    HoldReason.BEHIND,
                    f"what its queue may use is promised: {refused.detail}",
                    refused.blocked_by,
                )
            narrower = [
                (smaller, closed | there)
                for sized, closed in sizes
                for smaller, there in accounts.sizes(sized)
            ]
            sizes = [*{(one.size, closed): (one, closed) for one, closed in narrower}.values()]
        return sizes

    def start(self, placement: Placement, expected: Expected) -> None:
        """It is placed now: what it holds is taken and charged."""
        self._outlook.remove_stay(placement.gang.id)
        self._outlook.start(placement, expected)

    def promise(self, gang: Gang, expected: Expected, *, before: Promise | None = None) -> Promise | None:
        """The earliest start of a gang that cannot start now; nobody may be placed in its way from now on.
        None where it finds no place even when everything has ended.

        before: what it was promised in an earlier turn. It keeps to those nodes, so that what is drained for
        it does not wander, and to that time as long as it can be kept; where it cannot, the promise that is
        returned is later (see `breach`). `start_at` is when it starts at the latest as far as can be
        expected; `expected_at` says when it probably does.
        """
        outlook = self._outlook
        outlook.remove_stay(gang.id)
        gang = gang.sized([role.fewest for role in gang.roles])
        spot, own = self._kept(gang, expected, before), self._in_its_own(gang, expected)
        if own is not None and spot is not None and spot.at_s <= own.at_s:
            own = None
        spot = own or spot
        if spot is None:
            return None
        nodes = tuple(sorted({a.node for a in spot.placement.assignments}))
        from_s = spot.at_s
        if before is not None and self._time(spot.at_s) <= before.start_at:
            start_at = before.start_at
        else:
            start_at = self._time(self._at_the_latest(gang, expected, nodes, spot))
            if before is not None:
                from_s = max((before.start_at - self._now).total_seconds(), 0.0)
        given_at = before.given_at if before and start_at == before.start_at else self._now
        promise = Promise(gang.id, start_at, given_at, nodes, before is not None and before.made_room)
        needed = [end.gang for end in outlook.ends_on(nodes) if end.mid_s <= spot.at_s]
        last_s = max(spot.at_s, (start_at - self._now).total_seconds()) + expected.high_s
        stay = Stay(
            promise,
            spot.placement,
            spot.at_s,
            spot.at_s + expected.high_s,
            last_s,
            from_s,
            tuple(reversed(needed)),
            own is not None,
        )
        outlook.add_stay(stay)
        return promise

    def promise_again(
        self, wanted: Sequence[tuple[Gang, Expected, Promise]], firm: Container[GangId] = ()
    ) -> dict[GangId, Promise | None]:
        """`promise` for each, with what it was promised in an earlier turn: in this order, or as they were
        given, or as they were promised to start, where fewer are late then. Only their nodes are remembered,
        so the first may take what the others counted on, and where it may start sooner than was promised, it
        would. firm: these come first in any order: what others left for them is theirs. Of them the newest
        are tried first, too, since they were promised what the others' places had left, and the oldest."""
        first = [one for one in wanted if one[0].id in firm]
        rest = [one for one in wanted if one[0].id not in firm]
        orders = [
            [*firsts, *sorted(rest, key=key)]
            for firsts in (first, sorted(first, key=_given, reverse=True), sorted(first, key=_given))
            for key in (_given, _due)
        ]
        order, found = wanted, self._in_order(wanted)
        best, late, tried = order, self._late(wanted, found, firm), [order]
        for other in orders:
            if late and other not in tried:
                order, found = other, self._in_order(other)
                tried.append(order)
                if (fewer := self._late(wanted, found, firm)) < late:
                    best, late = other, fewer
        return found if order is best else self._in_order(best)

    def _in_order(self, wanted: Sequence[tuple[Gang, Expected, Promise]]) -> dict[GangId, Promise | None]:
        for gang, _, _ in wanted:
            self.withdraw(gang.id)
        return {gang.id: self.promise(gang, expected, before=before) for gang, expected, before in wanted}

    def _late(
        self,
        wanted: Sequence[tuple[Gang, Expected, Promise]],
        found: Mapping[GangId, Promise | None],
        firm: Container[GangId],
    ) -> int:
        """How many of them are not kept, or wait although others left for them what they need."""
        return sum(
            (after := found[gang.id]) is None
            or after.start_at > before.start_at
            or (gang.id in firm and self._held_up(gang, before))
            for gang, _, before in wanted
        )

    def _held_up(self, gang: Gang, before: Promise) -> bool:
        """Whether only others who were promised a start keep it from what is free, or soon left, where it was
        promised its own."""
        ladder, smallest = (
            self._outlook.ladder_on(before.nodes),
            gang.sized([role.fewest for role in gang.roles]),
        )
        starts_s = self._outlook.stays[gang.id].at_s - SLACK_S
        return any(
            at_s < starts_s and ladder.at(at_s).place(smallest, score=ANY) is not None
            for at_s in (0.0, STOPS_IN_S)
        )

    def earliest_start(self, gang: Gang, expected: Expected) -> datetime | None:
        """When it would probably start if it were promised a start now. Nothing is promised."""
        fewest = gang.sized([role.fewest for role in gang.roles])
        spot = earliest(self._outlook, fewest, expected.high_s)
        return None if spot is None else self._time(spot.at_s)

    def breach(self, gang: Gang, before: Promise, after: Promise | None, rule: Rule) -> Breach | None:
        """Why a promise of an earlier turn cannot be kept, after `promise` was called with it; None where it
        is kept. rule: says why another comes before it."""
        return breach(self._outlook, gang, before, after, rule)

    def holds_now(self, gang: GangId) -> bool:
        """Whether it has been placed, in this turn or before."""
        return gang in self._outlook.started or self._outlook.future.running(gang) is not None

    def expected_at(self, gang: GangId) -> datetime | None:
        """When a gang that was promised a start in this turn probably starts."""
        stay = self._outlook.stays.get(gang)
        return None if stay is None else self._time(stay.at_s)

    def surely_at(self, gang: GangId, expected: Expected, by: datetime) -> datetime | None:
        """When a gang that was promised a start in this turn starts even if all that is in its place takes as
        long as can be expected; None where that is later than `by`."""
        stay = self._outlook.stays.get(gang)
        if stay is None or self._time(stay.at_s) > by:
            return None
        self._outlook.remove_stay(gang)  # or it would be in its own way
        at = self._time(
            self._at_the_latest(
                stay.placement.gang, expected, stay.promise.nodes, Spot(stay.placement, stay.at_s)
            )
        )
        self._outlook.add_stay(stay)
        return at if at <= by else None

    def waits_for(self, gang: GangId) -> tuple[str, ...]:
        """What a gang that was promised a start in this turn waits for, as a Hold names it: the runs on its
        nodes that hold what it lacks there, the last to end first, the first few."""
        stay = self._outlook.stays.get(gang)
        if stay is None:
            return ()
        lacked = {
            (node, name)
            for node, need in on_each_node(stay.placement).items()
            for left in [self._outlook.capacity.left_on(node)]
            for name, amount in need.items()
            if amount > left.get(name, 0)
        }
        holding = {
            end.gang
            for end in self._outlook.ends_on({node for node, _ in lacked})
            for node, held in on_each_node(end.placement).items()
            if any(amount and (node, name) in lacked for name, amount in held.items())
        }
        named = [needed for needed in stay.needed if needed in holding] or stay.needed
        return tuple(f"run:{needed}" for needed in named[:NAMED])

    def counts_on(self, gang: GangId) -> frozenset[GangId]:
        """Those who are expected to leave the nodes of a gang that was promised a start in this turn before
        it starts."""
        stay = self._outlook.stays.get(gang)
        return frozenset(stay.needed) if stay else frozenset()

    def withdraw(self, gang: GangId) -> None:
        """What it was promised in this turn binds nobody any more."""
        self._outlook.remove_stay(gang)

    def tell(self, runs: Iterable[Running]) -> None:
        """These are as said here from now on: asked to end, say.
        The caller tells the `Future` otherwise again if that was only supposed."""
        self._outlook.tell(runs)

    def place_of(self, gang: GangId) -> Placement | None:
        """Where a gang that was promised a start in this turn is expected to be."""
        stay = self._outlook.stays.get(gang)
        return None if stay is None else stay.placement

    def spoken_for(self) -> frozenset[NodeId]:
        """Nodes of which anything is promised or reserved."""
        return self._outlook.spoken_for()

    def _kept(self, gang: Gang, expected: Expected, before: Promise | None) -> Spot | None:
        """On the nodes of before, unless that breaks the promise and it can be kept elsewhere.
        Those who will use what is reserved for them break no promise before they do."""
        spot = self._bound(gang, expected, before)
        if before is None or (spot is not None and self._time(spot.at_s) <= before.start_at):
            return spot
        with self._set_aside(
            [stay.promise.gang for stay in self._outlook.stays.values() if stay.own]
        ) as aside:
            here = (
                earliest_on(self._outlook, gang, expected.high_s, before.nodes)
                if aside and before.nodes
                else None
            )
        return here if here is not None and self._time(here.at_s) <= before.start_at else spot

    def _in_its_own(self, gang: Gang, expected: Expected) -> Spot | None:
        """On nodes that are reserved for it now, before that is over, whoever was promised them for
        afterwards: it will start all the same, and they are told then. What its queue may use is promised to
        them all the same."""
        outlook = self._outlook
        with self._unbound(gang) as until_s:
            spot = earliest_on(outlook, gang, expected.high_s, until_s) if until_s else None
        if spot is None or spot.at_s >= _over_s(spot, until_s):
            return None
        met = outlook.overlapped(gang, spot.at_s, spot.at_s + expected.high_s)
        return None if any(later.refusal(gang) for later in outlook.refusing(gang, met)) else spot

    @contextmanager
    def _unbound(self, gang: Gang) -> Iterator[Mapping[NodeId, float]]:
        """Without the promises that are `unbinding`, where there are any: the nodes that are reserved for it,
        and until when."""
        with self._set_aside(self._outlook.unbinding(gang)) as aside:
            yield self._outlook.reserved_whole(gang) if aside else {}

    @contextmanager
    def _set_aside(self, gangs: Iterable[GangId]) -> Iterator[bool]:
        """Without what these were promised in this turn; whether that is anything."""
        stays = self._take_out(gangs)
        try:
            yield bool(stays)
        finally:
            self._put_in(stays)

    def _bound(self, gang: Gang, expected: Expected, before: Promise | None) -> Spot | None:
        here = (
            earliest_on(self._outlook, gang, expected.high_s, before.nodes)
            if before is not None and before.nodes
            else None
        )
        if before is not None and here is not None and self._time(here.at_s) <= before.start_at:
            return here
        anywhere = earliest(self._outlook, gang, expected.high_s)
        if here is None or anywhere is None or before is None:
            return here or anywhere
        return anywhere if self._time(anywhere.at_s) <= before.start_at else here

    def _at_the_latest(self, gang: Gang, expected: Expected, nodes: Sequence[NodeId], spot: Spot) -> float:
        """When it has its place if everything takes as long as can be expected."""
        with self._unbound(gang) as until_s:
            if until_s.keys() >= {*nodes}:
                at_s = self._last(gang, expected, nodes, spot)
                if at_s < _over_s(spot, until_s):
                    return at_s
        return self._last(gang, expected, nodes, spot)

    def _last(self, gang: Gang, expected: Expected, nodes: Sequence[NodeId], spot: Spot) -> float:
        outlook, here = self._outlook, frozenset(nodes)
        stays = [stay for stay in outlook.stays.values() if not here.isdisjoint(stay.promise.nodes)]
        if all(end.mid_s == end.high_s for end in outlook.ends_on(nodes)) and all(
            one.until_s == one.last_s for one in stays
        ):
            return spot.at_s
        last = earliest_on(self._outlook, gang, expected.high_s, nodes, latest=True, after_s=spot.at_s)
        return spot.at_s if last is None else min(last.at_s, NEVER_S)

    def _time(self, in_s: float) -> datetime:
        return self._now + timedelta(seconds=in_s)


def _over_s(spot: Spot, until_s: Mapping[NodeId, float]) -> float:
    """When the first of the nodes is reserved no more."""
    return min(until_s[assignment.node] for assignment in spot.placement.assignments)


def _given(one: tuple[Gang, Expected, Promise]) -> tuple[datetime, GangId]:
    return one[2].given_at, one[0].id


def _due(one: tuple[Gang, Expected, Promise]) -> tuple[datetime, GangId]:
    return one[2].start_at, one[0].id
