"""Why a promise cannot be kept: what would have to be gone for it to be kept, of what is there now and was
not to be then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import NamedTuple

from hopyard.domain.cluster import Breach, BreachCause, Promise
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId
from hopyard.scheduler.predict import NEVER_S
from hopyard.scheduler.timeline.future import End
from hopyard.scheduler.timeline.moments import SLACK_S, Stay
from hopyard.scheduler.timeline.outlook import Outlook
from hopyard.scheduler.timeline.search import ANY

# why the first, which is there or will be, comes before the second
Rule = Callable[[Placement, Gang], tuple[BreachCause, str]]
# promises of one turn are dated a little apart, and after what started in it
TURN = timedelta(milliseconds=1)


class Found(NamedTuple):
    """other: the gang that goes before it."""

    cause: BreachCause
    detail: str
    other: GangId | None = None


def breach(outlook: Outlook, gang: Gang, before: Promise, after: Promise | None, rule: Rule) -> Breach | None:
    """`after`: what the gang is promised now instead, None where nothing can be.
    rule: asked of whoever came before it. None where the promise is kept."""
    if after is not None and after.start_at <= before.start_at:
        return None
    found = _cause(outlook, gang, before, rule)
    stay = outlook.stays.get(before.gang)
    expected_at = outlook.now + timedelta(seconds=stay.at_s) if stay is not None else None
    return Breach(before.gang, found.cause, found.detail, before.start_at, expected_at, found.other)


def _cause(outlook: Outlook, gang: Gang, before: Promise, rule: Rule) -> Found:
    for name in before.nodes:
        node = outlook.capacity.node(name)
        if node is None or not node.open:
            lost = "was lost" if node is None or not node.ready else f"is {node.state}"
            return Found(BreachCause.NODE_LOST, f"node {name} {lost}")
    probably, at_the_latest = (_InWay(outlook, gang, before, rule, latest=latest) for latest in (False, True))
    for in_way in (probably, at_the_latest):
        if not in_way.fits():
            return in_way.cause()
    return _although_it_fits(outlook, probably, before)


def _although_it_fits(outlook: Outlook, in_way: _InWay, before: Promise) -> Found:
    """There is room at that time: it is kept for others, or the gang's queue may not use it, or it is not
    free for long enough."""
    gang, due_s = in_way.gang, in_way.promised_s
    until_s = due_s + in_way.takes_s
    met = [
        one
        for one in outlook.in_way(gang, until_s)
        if one.until_s > due_s and not {*before.nodes}.isdisjoint(one.reservation.nodes)
    ]
    for booking in met:
        if booking.reservation.created_at is not None and booking.reservation.created_at > before.given_at:
            return Found(
                BreachCause.RESERVATION, f"reservation {booking.reservation.name} was granted after it"
            )
    if _refused(outlook, in_way, until_s):
        return Found(BreachCause.QUOTA, "its queue may not use as much then as was expected")
    if met:
        name = met[0].reservation.name
        if met[0].from_s <= due_s:
            return Found(BreachCause.RESERVATION, f"reservation {name} is not over by then")
        return Found(BreachCause.RESERVATION, f"reservation {name} begins before it is now expected to end")
    return in_way.soon_after(until_s)


def _refused(outlook: Outlook, in_way: _InWay, until_s: float) -> bool:
    """Whether its queue or user may not use so much, or not these models of GPUs, at that time or while it
    would be there."""
    gang, due_s = in_way.gang, in_way.promised_s
    accounts = outlook.accounts_ladder().at(due_s)
    for stay in outlook.stays.values():
        if stay.promise.gang != gang.id and stay.there(due_s):
            accounts.charge(stay.placement)
    accounts_met = [accounts, *outlook.refusing(gang, outlook.overlapped(gang, due_s, until_s))]
    closed = frozenset(model for one in accounts_met for model in one.closed_models(gang))
    return any(one.refusal(gang) for one in accounts_met) or not in_way.fits(closed=closed)


class _InWay:
    """What is on its nodes at the time that was promised, or may be.

    latest: if everything takes as long as can be expected, which is what promises count on.

    overran: runs that were expected to be gone by then when it was promised, or when they were let through
    later. newer: runs that began since and were not: they were put before it. older: runs that were there all
    the time, and of which more was learned since. beside: those that began in the turn that promised it.
    stays: who was promised room too.
    """

    def __init__(self, outlook: Outlook, gang: Gang, before: Promise, rule: Rule, *, latest: bool) -> None:
        self._outlook, self._before, self._rule, self._latest = outlook, before, rule, latest
        self.gang = gang.sized([role.fewest for role in gang.roles])
        stay = outlook.stays.get(before.gang)
        self.takes_s = NEVER_S if stay is None else stay.until_s - stay.at_s
        self._due_s = (before.start_at - outlook.now).total_seconds()
        self.promised_s = max(self._due_s, 0.0)
        ends = sorted(
            (end.high_s if latest else end.mid_s, end.gang, end) for end in outlook.ends_on(before.nodes)
        )
        late = [end for at_s, _, end in ends if at_s > self.promised_s]
        self._overran = [end for end in late if self._was_to_be_gone(end)]
        rest = [end for end in late if end not in self._overran]
        self._newer = [
            end
            for end in rest
            if end.gang in outlook.started or outlook.future.placed_since(end.gang, before.given_at)
        ]
        older = [end for end in rest if end not in self._newer]
        self._older = [end for end in older if not end.certain]
        self._beside = [end for end in older if outlook.future.placed_since(end.gang, before.given_at - TURN)]
        self.stays = [
            stay
            for stay in outlook.stays.values()
            if stay.promise.gang != before.gang and not {*before.nodes}.isdisjoint(stay.promise.nodes)
        ]

    def cause(self) -> Found:
        """Why it does not fit."""
        if self._overran and self.fits(self._overran):
            return self._overrun(self._overran)
        if (self._newer or self.stays) and self.fits(self._newer, self.stays):
            return self._before_it()
        if self.fits([*self._overran, *self._newer], self.stays):
            return self._overrun(self._overran)
        if self._older and self.fits([*self._overran, *self._newer, *self._older], self.stays):
            # Either more was learned of such runs, or the node has less than before: what was known then is
            # not kept.
            return Found(
                BreachCause.OVERRUN,
                f"run {self._last_needed(self._older).gang} is now expected to be there longer",
            )
        if self._beside and self.fits([*self._overran, *self._newer, *self._beside], self.stays):
            return self._goes_before(self._beside[-1].placement)
        names = ", ".join(self._before.nodes)
        return Found(
            BreachCause.NODE_LOST,
            f"{names} {'has' if len(self._before.nodes) == 1 else 'have'} less than before",
        )

    def _overrun(self, runs: Sequence[End]) -> Found:
        return Found(
            BreachCause.OVERRUN, f"run {self._last_needed(runs).gang} takes longer than was expected"
        )

    def _last_needed(self, runs: Sequence[End]) -> End:
        """Of these, the last one without which it would fit where the others are gone; the last where that is
        none."""
        others = [*self._overran, *self._newer, *self._older]
        needed = [one for one in runs if not self.fits([end for end in others if end is not one], self.stays)]
        return (needed or runs)[-1]

    def _goes_before(self, other: Placement) -> Found:
        return Found(*self._rule(other, self.gang), other.gang.id)

    def soon_after(self, until_s: float) -> Found:
        """There is room for it, but not for as long as it is expected to take: which gang was promised a
        start there meanwhile."""
        later = [stay for stay in self.stays if stay.at_s < until_s]
        if later:
            return self._goes_before(min(later, key=lambda stay: (stay.at_s, stay.promise.gang)).placement)
        return Found(BreachCause.OVERRUN, "it is expected to take longer than it was")

    def _before_it(self) -> Found:
        """Of those that were put before it, the last one without which it would fit."""
        others = [*self._newer, *self._overran]
        needed = [
            end for end in self._newer if not self.fits([one for one in others if one is not end], self.stays)
        ]
        if needed or self._newer:
            return self._goes_before((needed or self._newer)[-1].placement)
        gone = [end for end in others if end not in self._newer]
        bound = [
            stay for stay in self.stays if not self.fits(gone, [one for one in self.stays if one is not stay])
        ]
        return self._goes_before((bound or self.stays)[-1].placement)

    def _was_to_be_gone(self, end: End) -> bool:
        outlook = self._outlook
        if end.gang in outlook.started:
            return False
        return outlook.future.latest_s(end.gang, self._before.given_at) <= self._due_s + SLACK_S

    def fits(
        self,
        gone: Iterable[End] = (),
        withdrawn: Sequence[Stay] = (),
        *,
        closed: frozenset[str] = frozenset(),
    ) -> bool:
        """Whether there is room on its nodes at that time if these were not there.
        closed: models of GPUs that it may not use."""
        state = self._outlook.ladder_on(self._before.nodes, latest=self._latest).at(self.promised_s)
        for stay in self._outlook.stays.values():
            if (
                stay.promise.gang != self._before.gang
                and stay not in withdrawn
                and stay.there(self.promised_s, latest=self._latest)
            ):
                state.take(stay.placement)
        for end in gone:
            state.give_back(end.placement)
        return state.place(self.gang, score=ANY, closed_models=closed) is not None
