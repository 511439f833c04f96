"""Why a promise cannot be kept: what would have to be gone for it to be kept, of what is there now and was not to be then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta

from hopyard.domain.cluster import Breach, BreachCause, Promise
from hopyard.domain.gang import Gang, Placement
from hopyard.scheduler.predict import NEVER_S
from hopyard.scheduler.timeline.future import End
from hopyard.scheduler.timeline.moments import SLACK_S, Stay
from hopyard.scheduler.timeline.outlook import Outlook
from hopyard.scheduler.timeline.search import ANY

Found = tuple[BreachCause, str]
Rule = Callable[[Placement, Gang], Found]  # why the first, which is there or will be, comes before the second
TURN = timedelta(milliseconds=1)  # promises of one turn are dated a little apart, and after what started in it


def breach(outlook: Outlook, gang: Gang, before: Promise, after: Promise | None, rule: Rule) -> Breach | None:
    """`after`: what the gang is promised now instead, None where nothing can be. rule: asked of whoever came before it. None where the
    promise is kept."""
    if after is not None and after.start_at <= before.start_at:
        return None
    cause, detail = _cause(outlook, gang, before, rule)
    stay = outlook.stays.get(before.gang)
    expected_at = outlook.now + timedelta(seconds=stay.at_s) if stay is not None else None
    return Breach(before.gang, cause, detail, before.start_at, expected_at)


def _cause(outlook: Outlook, gang: Gang, before: Promise, rule: Rule) -> Found:
    for name in before.nodes:
        node = outlook.capacity.node(name)
        if node is None or not node.open:
            return BreachCause.NODE_LOST, f"node {name} {'was lost' if node is None or not node.ready else f'is {node.state}'}"
    probably, at_the_latest = (_InWay(outlook, gang, before, rule, latest=latest) for latest in (False, True))
    for in_way in (probably, at_the_latest):
        if not in_way.fits():
            return in_way.cause()
    granted = _granted_after(outlook, gang, before)
    if granted is not None:
        return BreachCause.RESERVATION, f"reservation {granted} was granted after it"
    if at_the_latest.stays:  # there is room, but somebody comes soon after it
        return at_the_latest.before_it()
    return BreachCause.QUOTA, "its queue may not use as much then as was expected"


def _granted_after(outlook: Outlook, gang: Gang, before: Promise) -> str | None:
    """A reservation of others, newer than the promise, that it would meet on its nodes."""
    stay, due_s = outlook.stays.get(before.gang), max((before.start_at - outlook.now).total_seconds(), 0.0)
    until_s = NEVER_S if stay is None else due_s + stay.until_s - stay.at_s
    for booking in outlook.in_way(gang, until_s):
        reserved = booking.reservation
        newer = reserved.created_at is not None and reserved.created_at > before.given_at
        if newer and booking.until_s > due_s and not {*before.nodes}.isdisjoint(reserved.nodes):
            return reserved.name
    return None


class _InWay:
    """What is on its nodes at the time that was promised, or may be.

    latest: if everything takes as long as can be expected, which is what promises count on.

    overran: runs that were expected to be gone by then when it was promised, or when they were let through later. newer: runs that
    began since and were not: they were put before it. older: runs that were there all the time, and of which more was learned since.
    beside: those that began in the turn that promised it. stays: who was promised room too.
    """

    def __init__(self, outlook: Outlook, gang: Gang, before: Promise, rule: Rule, *, latest: bool) -> None:
        self._outlook, self._before, self._rule, self._latest = outlook, before, rule, latest
        self._gang = gang.sized([role.fewest for role in gang.roles])
        self._due_s = (before.start_at - outlook.now).total_seconds()
        self._promised_s = max(self._due_s, 0.0)
        ends = sorted((end.high_s if latest else end.mid_s, end.gang, end) for end in outlook.ends_on(before.nodes))
        late = [end for at_s, _, end in ends if at_s > self._promised_s]
        self._overran = [end for end in late if self._was_to_be_gone(end)]
        rest = [end for end in late if end not in self._overran]
        self._newer = [end for end in rest if end.gang in outlook.started or outlook.future.placed_since(end.gang, before.given_at)]
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
            return self.before_it()
        if self.fits([*self._overran, *self._newer], self.stays):
            return self._overrun(self._overran)
        if self._older and self.fits([*self._overran, *self._newer, *self._older], self.stays):
            return self._overrun(self._older)
        if self._beside and self.fits([*self._overran, *self._newer, *self._beside], self.stays):
            return self._rule(self._beside[-1].placement, self._gang)
        names = ", ".join(self._before.nodes)
        return BreachCause.NODE_LOST, f"{names} {'has' if len(self._before.nodes) == 1 else 'have'} less than before"

    def _overrun(self, runs: Sequence[End]) -> Found:
        return BreachCause.OVERRUN, f"run {runs[-1].gang} takes longer than was expected"

    def before_it(self) -> Found:
        """Of those that were put before it, the last one without which it would fit."""
        others = [*self._newer, *self._overran]
        needed = [end for end in self._newer if not self.fits([one for one in others if one is not end], self.stays)]
        if needed or self._newer:
            return self._rule((needed or self._newer)[-1].placement, self._gang)
        gone = [end for end in others if end not in self._newer]
        bound = [stay for stay in self.stays if not self.fits(gone, [one for one in self.stays if one is not stay])]
        return self._rule((bound or self.stays)[-1].placement, self._gang)

    def _was_to_be_gone(self, end: End) -> bool:
        outlook = self._outlook
        if end.gang in outlook.started:
            return False
        return outlook.future.latest_s(end.gang, self._before.given_at) <= self._due_s + SLACK_S

    def fits(self, gone: Iterable[End] = (), withdrawn: Sequence[Stay] = ()) -> bool:
        """Whether there is room on its nodes at that time if these were not there."""
        state = self._outlook.ladder_on(self._before.nodes, latest=self._latest).at(self._promised_s)
        for stay in self._outlook.stays.values():
            if stay.promise.gang != self._before.gang and stay not in withdrawn and stay.there(self._promised_s, latest=self._latest):
                state.take(stay.placement)
        for end in gone:
            state.give_back(end.placement)
        return state.place(self._gang, score=ANY) is not None
