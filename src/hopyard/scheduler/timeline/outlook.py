"""The cluster now and at the moments that matter later: what a gang may use without being in anybody's
way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from math import inf

from hopyard.domain.cluster import Running
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.domain.queue import QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.scheduler.fairness.accounts import Accounts
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.predict import Expected
from hopyard.scheduler.timeline.booked import SPARE_S, Booking, bookings, owns
from hopyard.scheduler.timeline.future import End, Future
from hopyard.scheduler.timeline.held import hold
from hopyard.scheduler.timeline.ladder import Ladder
from hopyard.scheduler.timeline.moments import SLACK_S, Moment, Stay
from hopyard.scheduler.timeline.returns import Returns

MOST_SINCE = 64  # gangs started since a ladder was made, before it is made anew
Owned = frozenset[int]  # indices of reservations


class Outlook:
    """Mutable, of one turn. `capacity` and `accounts` are what there is now, and are changed by `start`.
    booked: the accounts as if all that were promised a start had started, too; on_booked is told whose queue
    that changes."""

    def __init__(
        self,
        capacity: Capacity,
        accounts: Accounts,
        future: Future,
        reservations: Sequence[Reservation],
        now: datetime,
        queues: QueueTree,
        likely: Iterable[NodeId] = (),
        firm: frozenset[GangId] = frozenset(),
    ) -> None:
        """likely: nodes that somebody will probably be promised.
        firm: gangs for which runs were asked to leave in earlier turns."""
        self._firm = firm
        self.capacity, self.accounts, self.future, self.now = capacity, accounts, future, now
        self.reservations, self.queues = tuple(reservations), queues
        self.bookings = bookings(reservations, now)
        self.moments = [
            Moment(booking.from_s, booking.from_s) for booking in self.bookings if booking.from_s > 0
        ]
        self.stays: dict[GangId, Stay] = {}
        self.started: dict[GangId, End] = {}
        self._started_on: dict[NodeId, dict[GangId, End]] = {}
        self._reserved = {node for booking in self.bookings for node in booking.reservation.nodes}
        # nodes that anybody has reserved or was promised
        self._special = dict.fromkeys(sorted(self._reserved))
        # Nodes of which moments know what is free: all special ones, and some more. A copy of all nodes for
        # each moment would cost by the size of the cluster.
        self._near = {*self._special, *likely}
        self._near_now: Capacity | None = None  # what is free there now
        self._views: dict[tuple[frozenset[int], Owned], tuple[Capacity, list[Moment]]] = {}
        self._owned: dict[tuple[str, str], Owned] = {}
        self.booked = accounts.copy()
        self.on_booked: Callable[[QueueName], None] | None = None
        self._ladder: Ladder[Accounts] | None = None
        self._returns: Returns | None = None
        self._returned = 0  # gangs that had started when it was made

    # What a gang may use

    def overlapped(self, gang: Gang, begin_s: float, until_s: float) -> list[Moment]:
        """What has to fit beside a gang that is there from then until then."""
        return [
            moment
            for moment in self.moments
            if moment.at_s > begin_s + SLACK_S and self._reaches(gang, moment, begin_s, until_s)
        ]

    def met(self, gang: Gang, until_s: float) -> list[Moment]:
        """What has to fit beside a gang that starts now and is there until then: who is due now as well as
        who comes later."""
        return [
            moment
            for moment in self.moments
            if moment.at_s <= SLACK_S or self._reaches(gang, moment, 0.0, until_s)
        ]

    def _reaches(self, gang: Gang, moment: Moment, begin_s: float, until_s: float) -> bool:
        """Whether a gang that begins then and is there until then may still be there when it matters. Where
        runs left for somebody, that is so however short it is: else those that left would come back. Those
        for whom others left do so among themselves."""
        if moment.closed and gang.id not in self._firm:
            return True
        return (
            moment.from_s
            < (self._until_s(gang, begin_s, until_s) if moment.gang is None else until_s) - SLACK_S
        )

    def _until_s(self, gang: Gang, begin_s: float, until_s: float) -> float:
        """Until when it may be there, where that is to be sure, in the way of a reservation. What nothing
        ends may be there for ever, and a run that was preempted before has shown that it cannot be predicted:
        it does not start where it would be asked to leave."""
        if gang.endless:
            return inf
        sure = gang.time_limit_s is not None or not gang.preemptions
        return until_s if sure else max(until_s, begin_s + self.future.grace_s + SPARE_S)

    def owned(self, gang: Gang) -> Owned:
        """The reservations that it may use."""
        if not self.reservations:
            return frozenset()
        key = (gang.user, gang.queue)
        found = self._owned.get(key)
        if found is None:
            found = frozenset(
                i for i, reservation in enumerate(self.reservations) if owns(gang, reservation, self.queues)
            )
            self._owned[key] = found
        return found

    def foreign(self, owned: Owned, at_s: float) -> list[Booking]:
        """What others have reserved at that time."""
        mine = [self.reservations[i] for i in owned]
        return [
            booking
            for booking in self.bookings
            if booking.from_s <= at_s + SLACK_S
            and at_s < booking.until_s - SLACK_S
            and booking.reservation not in mine
        ]

    def in_way(self, gang: Gang, until_s: float) -> list[Booking]:
        """What others have reserved that it would meet, if it started now and were there until then."""
        mine, until_s = [self.reservations[i] for i in self.owned(gang)], self._until_s(gang, 0.0, until_s)
        return [
            booking
            for booking in self.bookings
            if booking.from_s < until_s - SLACK_S and booking.reservation not in mine
        ]

    def view(self, gang: Gang, until_s: float) -> Capacity:
        """What is free for it now, if it is there until then. Not the caller's own."""
        overlapped, owned = self.met(gang, until_s), self.owned(gang)
        if not overlapped and not self.foreign(owned, 0.0):
            return self.capacity
        key = (frozenset(id(moment) for moment in overlapped), owned)
        found = self._views.get(key)
        if found is None:
            found = self._views[key] = (self.capacity.copy(), overlapped)
            self.restrict(found[0], owned, 0.0, overlapped)
        return found[0]

    def holding(self, gang: Gang) -> list[Booking]:
        """What is reserved for it now."""
        owned = self.owned(gang)
        mine = [self.reservations[i] for i in owned]
        return (
            [
                booking
                for booking in self.bookings
                if booking.from_s <= SLACK_S and booking.reservation in mine
            ]
            if owned
            else []
        )

    def reserved_whole(self, gang: Gang) -> dict[NodeId, float]:
        """Nodes that are reserved for it now as a whole, and for how many seconds more."""
        whole = [booking for booking in self.holding(gang) if booking.reservation.resources is None]
        return {node: booking.until_s for booking in whole for node in booking.reservation.nodes}

    def unbinding(self, gang: Gang) -> list[GangId]:
        """Those that were promised a start, for when it is over, on nodes of which something is reserved for
        it now, and not for them. Not among them is who was promised what runs were asked to leave, which
        would leave in vain, and who has waited since before the reservation came up the last time, or would
        for ever."""
        until_s: dict[NodeId, float] = {}
        since: dict[NodeId, datetime] = {}
        for booking in self.holding(gang):
            for node in booking.reservation.nodes:
                until_s[node] = max(until_s.get(node, 0.0), booking.until_s)
                if booking.reservation.every_s:
                    last = self.now + timedelta(seconds=booking.until_s - booking.reservation.every_s)
                    since[node] = max(since.get(node, last), last)

        def binds(stay: Stay) -> bool:
            promise = stay.promise
            there = until_s.keys() & {*promise.nodes}
            if (
                promise.gang == gang.id
                or promise.made_room
                or not there
                or any(promise.given_at < since[node] for node in there & since.keys())
            ):
                return True
            theirs = {
                node for booking in self.holding(stay.placement.gang) for node in booking.reservation.nodes
            }
            return not theirs.isdisjoint(there) or stay.at_s < min(until_s[node] for node in there) - SLACK_S

        return [name for name, stay in self.stays.items() if not binds(stay)] if until_s else []

    def reserved_view(self, gang: Gang, until_s: float) -> Capacity:
        """As `view`, of what is reserved for it now alone. Costs by the nodes on which that is."""
        owned = self.owned(gang)
        found = self.capacity.part(
            node for booking in self.holding(gang) for node in booking.reservation.nodes
        )
        rest = found.copy()
        self._hold(found, owned, 0.0)
        self._hold(rest, frozenset(), 0.0)
        found.less(rest)
        self._meet(found, owned, self.met(gang, until_s))
        return found

    def restrict(self, view: Capacity, owned: Owned, at_s: float, overlapped: Sequence[Moment]) -> None:
        """Leave in `view`, the state at `at_s`, what is neither reserved for others nor in the way at these
        moments."""
        self._hold(view, owned, at_s)
        self._meet(view, owned, overlapped)

    def _meet(self, view: Capacity, owned: Owned, overlapped: Sequence[Moment]) -> None:
        special = tuple(self._special)
        for moment in overlapped:
            capacity = self._capacity_at(moment)
            if self.foreign(owned, moment.at_s):
                capacity = capacity.copy()
                self._hold(capacity, owned, moment.at_s)
            view.meet(capacity, special)

    def refusing(self, gang: Gang, moments: Sequence[Moment]) -> list[Accounts]:
        """Accounts at those of these moments where its queue or user may be refused more than it is now;
        those that have enough left even if nothing ended until then are left out."""
        if not moments or self.admits_all(gang):
            return []
        return [self._accounts_at(moment) for moment in moments]

    def admits_all(self, gang: Gang) -> bool:
        """Whether its queue and user could have it now even beside all that is promised, and what cards it
        may use is the same."""
        booked = self.booked
        return booked.refusal(gang) is None and booked.closed_models(gang) <= self.accounts.closed_models(
            gang
        )

    def _hold(self, view: Capacity, owned: Owned, at_s: float) -> None:
        foreign = [booking.reservation for booking in self.foreign(owned, at_s)]
        if foreign:
            hold(
                view, foreign, self._there({node for one in foreign for node in one.nodes}, at_s), self.queues
            )

    def _there(self, nodes: Collection[NodeId], at_s: float) -> list[Placement]:
        """Gangs that are on these nodes at that time, or somewhere where they were promised to be."""
        there = [end.placement for end in self.ends_on(nodes) if end.mid_s > at_s]
        return there + [stay.placement for stay in self.stays.values() if stay.there(at_s)]

    # Who is there

    def ends_on(self, nodes: Collection[NodeId]) -> list[End]:
        """Of those on these nodes, those that started in this turn included, by expected end, then id."""
        new = {gang: end for node in nodes for gang, end in self._started_on.get(node, {}).items()}
        found = self.future.ends_on(nodes)
        return sorted([*found, *new.values()], key=lambda end: (end.mid_s, end.gang)) if new else found

    def start(self, placement: Placement, expected: Expected) -> None:
        """It starts now, and uses up what it holds."""
        end = End(placement, expected.mid_s, expected.high_s, expected.certain)
        self.started[placement.gang.id] = end
        for assignment in placement.assignments:
            self._started_on.setdefault(assignment.node, {})[placement.gang.id] = end
        self.capacity.take(placement)
        self.accounts.charge(placement)
        if self._ladder is not None:
            self._ladder.started.append((end.mid_s, placement))
        near = self._is_near(placement)
        if near and self._near_now is not None:
            self._near_now.take(placement)
        for moment in self.moments:
            if self._reaches(placement.gang, moment, 0.0, end.high_s):
                if near and moment.capacity is not None:
                    moment.capacity.take(placement)
                if moment.accounts is not None:
                    moment.accounts.charge(placement)
        self.booked.charge(placement)
        self._tell(placement)
        self._narrow_views(end)

    def add_stay(self, stay: Stay) -> None:
        """From now on nobody is in its way."""
        gang = stay.placement.gang.id
        new = [a.node for a in stay.placement.assignments if a.node not in self._special]
        self._special.update(dict.fromkeys(new))
        if not self._near.issuperset(new):
            self._near.update(new)
            self._forget_capacities()
        self.stays[gang] = stay
        for moment in self.moments:
            if moment.capacity is not None:
                self._let_end(moment, moment.capacity, new)
            if stay.there(moment.at_s):
                if moment.capacity is not None:
                    moment.capacity.take(stay.placement)
                if moment.accounts is not None:
                    moment.accounts.charge(stay.placement)
        self.moments.append(
            Moment(min(stay.from_s, stay.at_s), stay.at_s, gang, closed=stay.promise.made_room)
        )
        self.moments.sort(key=lambda moment: (moment.from_s, moment.at_s, moment.gang or ""))
        self.booked.charge(stay.placement)
        self._tell(stay.placement)
        self._views.clear()

    def remove_stay(self, gang: GangId) -> None:
        """Exactly undo `add_stay`."""
        stay = self.stays.pop(gang, None)
        if stay is None:
            return
        self.moments = [moment for moment in self.moments if moment.gang != gang]
        for moment in self.moments:
            if stay.there(moment.at_s):
                if moment.capacity is not None:
                    moment.capacity.give_back(stay.placement)
                if moment.accounts is not None:
                    moment.accounts.credit(stay.placement)
        self.booked.credit(stay.placement)
        self._tell(stay.placement)
        self._views.clear()

    def _tell(self, placement: Placement) -> None:
        if self.on_booked is not None:
            self.on_booked(placement.gang.queue)

    def _forget(self) -> None:
        """Look at the moments anew."""
        for moment in self.moments:
            moment.accounts = None
        self._forget_capacities()
        self._views.clear()

    def _forget_capacities(self) -> None:
        self._near_now = None
        for moment in self.moments:
            moment.capacity = None
            moment.ended.clear()

    def _is_near(self, placement: Placement) -> bool:
        return any(assignment.node in self._near for assignment in placement.assignments)

    def tell(self, runs: Iterable[Running]) -> None:
        """What is known of these changed: all that follows from when they end is worked out anew."""
        for running in runs:
            self.future.add(running)
        self._ladder, self._returns = None, None
        self._forget()

    def spoken_for(self) -> frozenset[NodeId]:
        return frozenset(self.promised | self._reserved)

    # States in the future

    def ladder_on(self, nodes: Collection[NodeId], *, latest: bool = False) -> Ladder[Capacity]:
        """What is free on these nodes as everything there ends when it is expected to, or at the latest
        expected to; promised gangs and reservations left out."""
        ends = [(end.high_s if latest else end.mid_s, end.placement) for end in self.ends_on(nodes)]
        if latest:
            ends.sort(key=_by_time)
        return Ladder(self.capacity.part(nodes), ends, Capacity.take, Capacity.give_back)

    @property
    def promised(self) -> set[NodeId]:
        return {node for stay in self.stays.values() for node in stay.promise.nodes}

    def returns(self) -> Returns:
        if self._returns is None or len(self.started) > self._returned + MOST_SINCE:
            self._returns = Returns.of(self.capacity, self.future, self.started.values())
            self._returned = len(self.started)
        return self._returns

    def accounts_ladder(self) -> Ladder[Accounts]:
        """What queues and users use as everything ends when it is expected to, promised gangs left out."""
        if self._ladder is None or len(self._ladder.started) > MOST_SINCE:
            self._ladder = Ladder(self.accounts, self._times(), Accounts.charge, Accounts.credit)
        return self._ladder

    def _times(self) -> list[tuple[float, Placement]]:
        ends = [(end.mid_s, end.placement) for end in self.future.ends()]
        if self.started:
            ends += [(end.mid_s, end.placement) for end in self.started.values()]
            ends.sort(key=_by_time)
        return ends

    def _capacity_at(self, moment: Moment) -> Capacity:
        if moment.capacity is None:
            if self._near_now is None:
                self._near_now = self.capacity.part(self._near)
            moment.capacity = self._near_now.copy()
            self._let_end(moment, moment.capacity, list(self._special))
            for end in self.started.values():
                gone = not self._reaches(end.placement.gang, moment, 0.0, end.high_s)
                if gone and end.gang not in moment.ended and self._is_near(end.placement):
                    moment.capacity.give_back(end.placement)
            for stay in self.stays.values():
                if stay.there(moment.at_s):
                    moment.capacity.take(stay.placement)
        return moment.capacity

    def _let_end(self, moment: Moment, capacity: Capacity, nodes: Collection[NodeId]) -> None:
        """Give back what is expected to have ended on these nodes by then."""
        for end in self.future.ends_on(nodes):
            if end.mid_s <= moment.at_s + SLACK_S and end.gang not in moment.ended:
                moment.ended.add(end.gang)
                capacity.give_back(end.placement)

    def _accounts_at(self, moment: Moment) -> Accounts:
        if moment.accounts is None:
            moment.accounts = self.accounts_ladder().at(moment.at_s)
            for stay in self.stays.values():
                if stay.there(moment.at_s):
                    moment.accounts.charge(stay.placement)
        return moment.accounts

    def _narrow_views(self, end: End) -> None:
        """A view stays right where the placement is in the way of all that it looks at, or of nothing; others
        are made anew."""
        nodes = {a.node for a in end.placement.assignments}
        shared, reserved = nodes & self._special.keys(), nodes & self._reserved
        for key, (view, moments) in list(self._views.items()):
            if reserved or (
                shared
                and not all(self._reaches(end.placement.gang, moment, 0.0, end.high_s) for moment in moments)
            ):
                del self._views[key]
            else:
                view.take(end.placement)


def _by_time(pair: tuple[float, Placement]) -> tuple[float, GangId]:
    return pair[0], pair[1].gang.id
