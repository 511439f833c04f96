"""Why a gang waits, when it is expected to start, and what it could ask for to start sooner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import itemgetter

from hopyard.domain.amounts import asked_for, dominant_share, totals
from hopyard.domain.cluster import Hold, HoldReason, Plan, Snapshot
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId, QueueName
from hopyard.domain.quota import path
from hopyard.domain.spans import soon
from hopyard.scheduler.aftermath import Aftermath, asked
from hopyard.scheduler.cycle.frost import patience
from hopyard.scheduler.fairness.accounts import Accounts
from hopyard.scheduler.foreseen import NOTHING, Foreseen, Pick, mid
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.predict import TELLS_PACE, Expected, exactly, expect, history, is_known
from hopyard.scheduler.timeline.blocked import NAMED, Blocked
from hopyard.scheduler.timeline.booked import HORIZON_S, occurrences, owns
from hopyard.scheduler.timeline.future import Future
from hopyard.scheduler.timeline.timeline import Timeline
from hopyard.scheduler.whatif import Change, changes

AHEAD = (
    # of those ahead of it in its queue, so many are laid out one by one; the work of the others is spread
    # over the cluster
    48
)
SOONER = 0.9  # what starts not at least so much sooner is not worth telling
FOR_ROOM = (HoldReason.NO_CAPACITY, HoldReason.TOPOLOGY, HoldReason.PREEMPTING)  # it waits for runs to end
A_MOMENT = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Band:
    """When it is expected to start: at the earliest, probably, at the latest, if all that runs and all ahead
    of it take so long."""

    low_at: datetime
    mid_at: datetime
    high_at: datetime


@dataclass(frozen=True, slots=True)
class Blocker:
    """What is in the way, as Hold.blocked_by names it, and until when probably."""

    name: str
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """`text` is a line such as "with 4 GPUs: now"; start_at is `now` of the snapshot where it starts at
    once."""

    text: str
    start_at: datetime


@dataclass(frozen=True, slots=True)
class Why:
    """expected: None where it will not start as things are. promised_at: when it starts at the latest, where
    that was promised. late: a sentence that says why that will probably not be kept, where it will not.
    unknown: a sentence that names a run before it of which too little is known to say when it ends, where
    there is one."""

    gang: GangId
    hold: Hold
    waiting: int
    blocked_by: tuple[Blocker, ...] = ()
    expected: Band | None = None
    promised_at: datetime | None = None
    what_if: tuple[WhatIf, ...] = ()
    late: str = ""
    unknown: str = ""


def why(
    snapshot: Snapshot, plan: Plan, gang_id: GangId, progress: Mapping[GangId, float] = NOTHING
) -> Why | None:
    """`plan`: of this snapshot. progress: which part of all they have to do those that run say they have
    done, 0 to 1. None where the gang does not wait, or starts by this plan. Takes longer the larger the
    cluster is: seconds for ten thousand nodes."""
    snapshot = asked(snapshot, plan)
    gangs = {gang.id: gang for gang in snapshot.pending}
    gang = gangs.get(gang_id)
    hold = next((hold for hold in plan.hold if hold.gang == gang_id), None) if gang is not None else None
    if gang is None or hold is None:
        return None
    queue = [
        (other.position, gangs[other.gang]) for other in plan.hold if gangs[other.gang].queue == gang.queue
    ]
    promised = next((promise for promise in plan.promises if promise.gang == gang_id), None)
    base = _Base(snapshot, plan, gangs, gang, progress)
    own = [other for position, other in sorted(queue, key=lambda pair: pair[0]) if position < hold.position]
    ahead = [*base.rivals(hold), *own]
    likely, coming = base.laid_out(mid, ahead), base.foreseen(mid)
    at, waits_for = likely.start_of(gang)
    never = hold.reason in (HoldReason.NEVER_FITS, HoldReason.NO_QUEUE)
    seen_at = None if never else coming.starts_at(gang.id)
    start_at = max(at, coming.now) if seen_at is None and at is not None and not never else seen_at
    runs = waits_for if hold.reason in FOR_ROOM else ()
    named = _own_runs(snapshot, gang, hold) or (*hold.blocked_by, *runs)
    return Why(
        gang_id,
        hold,
        len(queue),
        (
            *(
                Blocker(name, base.ends_at(name) or coming.out_of_way_at(name, start_at))
                for name in dict.fromkeys(named)
            ),
            *(Blocker(name, start_at) for name in base.over_at(start_at) if name not in named),
        ),
        _band(base, ahead, start_at) if start_at is not None else None,
        promised.start_at if promised else None,
        tuple(_sooner(base, likely, hold.reason, start_at)),
        coming.breaches[gang_id].detail if gang_id in coming.breaches else "",
        _unknown(snapshot, named, ahead, progress),
    )


def _own_runs(snapshot: Snapshot, gang: Gang, hold: Hold) -> tuple[str, ...]:
    """Where the limit of its user is in its way: the user's runs that use it up, as a Hold names them."""
    if hold.reason is not HoldReason.USER_LIMIT:
        return ()
    limited = {name.removeprefix("queue:") for name in hold.blocked_by}
    own = (one.gang for one in snapshot.running if one.gang.user == gang.user)
    return tuple(
        sorted(f"run:{one.id}" for one in own if not limited.isdisjoint(path(snapshot.queues, one.queue)))
    )[:NAMED]


def _unknown(
    snapshot: Snapshot, named: Sequence[str], ahead: Sequence[Gang], progress: Mapping[GangId, float]
) -> str:
    """Of those that it waits for, the one of whose like the fewest runs have ended, if these are too few."""
    runs = [
        one.gang
        for one in snapshot.running
        if f"run:{one.gang.id}" in named and not one.stopping and progress.get(one.gang.id, 0.0) < TELLS_PACE
    ]
    found = [
        (history(one, snapshot.durations).runs, one.id)
        for one in [*runs, *ahead[:AHEAD]]
        if not is_known(one, snapshot.durations)
    ]
    count, name = min(found, default=(0, None))
    if name is None:
        return ""
    ended = (
        "no run has ended that tells"
        if count == 0
        else f"only {count} {'run has' if count == 1 else 'runs have'} ended that tell"
    )
    return f"{ended} how long run {name} takes"


def _band(base: _Base, ahead: Sequence[Gang], middle: datetime) -> Band:
    def start_at(pick: Pick) -> datetime:
        return base.foreseen(pick).start_of(
            base.gang.id, lambda: base.laid_out(pick, ahead).start_of(base.gang)[0] or middle
        )

    return Band(min(start_at(_low), middle), middle, max(start_at(_high), middle))


def _sooner(base: _Base, likely: _Future, reason: HoldReason, start_at: datetime | None) -> list[WhatIf]:
    """Of each group of changes the least that lets it start now, else that which lets it start soonest."""
    found = []
    now, unchanged_at = base.snapshot.now, likely.timeline.earliest_start(base.gang, likely.expected)
    for group in changes(base.gang, reason, base.snapshot, base.promised_in_s()):
        starts = [(at, change) for change in group if (at := _start_of(base, likely, change)) is not None]
        best = next(((at, change) for at, change in starts if at <= now), None)
        later = [(at, change) for at, change in starts if unchanged_at is None or at < unchanged_at]
        if best is None and later:
            best = _seen(base, *min(later, key=itemgetter(0)))
        if best is not None and (start_at is None or best[0] < _worth(now, start_at)):
            at, change = best
            backfill = (
                ", by backfill" if at <= now and change.gang.time_limit_s != base.gang.time_limit_s else ""
            )
            found.append(WhatIf(f"{change.text}: {soon((at - now).total_seconds())}{backfill}", at))
    return found


def _seen(base: _Base, at: datetime, change: Change) -> tuple[datetime, Change]:
    """When the policy will start it, which may be later than there is room for it: others may come first."""
    return base.foreseen(mid, change.gang).start_of(change.gang.id, lambda: at), change


def _start_of(base: _Base, likely: _Future, change: Change) -> datetime | None:
    """Now only where there is room beside what was planned, not beside what is only expected of those ahead,
    and where nobody who kept out of its way would take that first."""
    expected = expect(change.gang, base.snapshot.durations)
    if isinstance(base.now.try_now(change.gang, expected), Placement) and base.aftermath.starts(change.gang):
        return base.snapshot.now
    at = likely.timeline.earliest_start(change.gang, expected)
    return None if at is None or at <= base.snapshot.now else at


def _worth(now: datetime, start_at: datetime) -> datetime:
    return now + (start_at - now) * SOONER


class _Base:
    """The snapshot with the plan carried out: what every forecast begins with."""

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
        self._accounts = Accounts.of(snapshot.queues, nodes, snapshot.running, snapshot.used, snapshot.now)
        self._cluster = totals(node for node in nodes if node.open)
        future = Future.of(
            snapshot.running,
            snapshot.durations,
            snapshot.now,
            grace_s=snapshot.preempt_grace_s,
            progress=progress,
        )
        self.now = self._planned(future, lambda gang: expect(gang, snapshot.durations))
        self.now.withdraw(gang.id)
        self._likely = self._supposing(mid)
        self.aftermath = Aftermath(snapshot, plan, gang.id)

    def foreseen(self, pick: Pick, instead: Gang | None = None) -> Foreseen:
        """What the policy will do if everything takes exactly what `pick` says.
        instead: of the gang, which was promised nothing then."""
        if instead is None:
            return Foreseen(self.snapshot, self._plan, pick, self._progress)
        pending = tuple(instead if one.id == instead.id else one for one in self.snapshot.pending)
        promises = tuple(promise for promise in self._plan.promises if promise.gang != instead.id)
        return Foreseen(
            replace(self.snapshot, pending=pending),
            replace(self._plan, promises=promises),
            pick,
            self._progress,
        )

    def laid_out(self, pick: Pick, ahead: Sequence[Gang]) -> _Future:
        """With those ahead of it, if everything takes exactly what `pick` says."""
        snapshot = self.snapshot

        def supposed(gang: Gang) -> Expected:
            expected = expect(gang, snapshot.durations)
            # it may not start for as long as it probably takes
            return expected if gang.id == self.gang.id else exactly(pick(expected))

        timeline = self._planned(self._supposing(pick), supposed)
        promised = {promise.gang for promise in self._plan.promises}
        waiting, frozen = (
            [gang for gang in ahead if gang.id not in promised],
            list[tuple[datetime, datetime]](),
        )
        for gang in waiting[:AHEAD]:
            found = timeline.try_now(gang, supposed(gang))
            if isinstance(found, Placement):
                timeline.start(found, supposed(gang))
                continue
            timeline.promise(gang, supposed(gang))
            starts_at = timeline.expected_at(gang.id)
            if starts_at is not None and self._stands_back_for(gang, found):
                frozen.append((gang.submitted_at + patience(expect(gang, snapshot.durations)), starts_at))
        rest_s = sum(
            dominant_share(asked_for(gang), self._cluster) * supposed(gang).mid_s for gang in waiting[AHEAD:]
        )
        return _Future(
            timeline,
            expect(self.gang, snapshot.durations),
            snapshot.now,
            timedelta(seconds=rest_s),
            tuple(frozen),
        )

    def _stands_back_for(self, other: Gang, found: Blocked) -> bool:
        """Whether it does once the other has waited long enough for what its queue or its user may use (see
        `Frost`)."""
        return other.queue == self.gang.queue and (
            found.reason is HoldReason.QUOTA
            or (found.reason is HoldReason.USER_LIMIT and other.user == self.gang.user)
        )

    def rivals(self, hold: Hold) -> list[Gang]:
        """Those of other queues that come before it to what a queue above them all may use, where it waits
        for that: those whose queues are sure of what they ask for once their other runs have ended, then in
        today's order."""
        tree, empty = (
            self.snapshot.queues,
            Accounts.of(self.snapshot.queues, self.snapshot.nodes.values(), (), {}, self.snapshot.now),
        )

        def key(gang: Gang) -> tuple[list[int], tuple[tuple[int, float, QueueName], ...]]:
            return [beyond for beyond, _, _ in empty.queue_key(gang.queue, gang)], self._accounts.queue_key(
                gang.queue, gang
            )

        above = {name.removeprefix("queue:") for name in hold.blocked_by if name.startswith("queue:")} - {
            self.gang.queue
        }
        if not above:
            return []
        mine = key(self.gang)
        others = [
            self._gangs[other.gang]
            for other in self._plan.hold
            if self._gangs[other.gang].queue != self.gang.queue
        ]
        found = [(key(other), other) for other in others if not above.isdisjoint(path(tree, other.queue))]
        return [other for theirs, other in sorted(found, key=itemgetter(0)) if theirs < mine]

    def ends_at(self, name: str) -> datetime | None:
        """When a run that is in the way probably ends, or a reservation does."""
        kind, _, what = name.partition(":")
        if kind == "run" and (end := self._likely.end(GangId(what))) is not None:
            return self.snapshot.now + timedelta(seconds=end.mid_s)
        if kind == "reservation":
            now = self.snapshot.now
            named = [one for one in self.snapshot.reservations if one.name == what]
            return next(
                (
                    end
                    for one in named
                    for _, end in occurrences(one, now, now + timedelta(seconds=HORIZON_S))
                ),
                None,
            )
        return None

    def over_at(self, start_at: datetime | None) -> list[str]:
        """Reservations of others that are over just when it is expected to start, as a Hold names them: it
        waits for these."""
        if start_at is None or start_at <= self.snapshot.now:
            return []
        of_others = [
            one for one in self.snapshot.reservations if not owns(self.gang, one, self.snapshot.queues)
        ]
        return [
            f"reservation:{one.name}"
            for one in sorted(of_others, key=lambda one: one.name)
            if any(
                abs(end - start_at) < A_MOMENT for _, end in occurrences(one, start_at - A_MOMENT, start_at)
            )
        ]

    def promised_in_s(self) -> list[float]:
        """In how many seconds those who were promised a start are expected to, the gang itself left out."""
        starts = (
            self.now.expected_at(promise.gang)
            for promise in self._plan.promises
            if promise.gang != self.gang.id
        )
        return sorted((at - self.snapshot.now).total_seconds() for at in starts if at is not None)

    def _supposing(self, pick: Pick) -> Future:
        """When what runs ends, if everything takes exactly what `pick` says."""
        about = (self.snapshot.running, self.snapshot.durations, self.snapshot.now)
        return Future.of(*about, grace_s=self.snapshot.preempt_grace_s, pick=pick, progress=self._progress)

    def _planned(self, future: Future, expected: Callable[[Gang], Expected]) -> Timeline:
        snapshot = self.snapshot
        timeline = Timeline(
            self._capacity.copy(),
            self._accounts.copy(),
            future,
            snapshot.reservations,
            snapshot.now,
            snapshot.queues,
            self._plan.promises,
        )
        for placement in self._plan.place:
            timeline.start(placement, expected(placement.gang))
        # its own, too: those that come after it were promised what it leaves
        for promise in self._plan.promises:
            if promise.gang in self._gangs:
                timeline.promise(
                    self._gangs[promise.gang], expected(self._gangs[promise.gang]), before=promise
                )
        return timeline


@dataclass(frozen=True, slots=True)
class _Future:
    """One way that it may go. later: how long the work of those ahead takes that were not laid out.
    frozen: from when it stands back for others of its queue, and when they start."""

    timeline: Timeline
    expected: Expected
    now: datetime
    later: timedelta
    frozen: tuple[tuple[datetime, datetime], ...] = ()

    def start_of(self, gang: Gang) -> tuple[datetime | None, tuple[str, ...]]:
        """When the gang starts, as it is promised there if it is, and for what it waits.
        It is promised nothing there afterwards."""
        timeline, later = self.timeline, self.later
        found = timeline.expected_at(gang.id)
        if found is not None:
            later = timedelta()  # nobody is placed in its way
        elif isinstance(timeline.try_now(gang, self.expected), Placement):
            return self.now + later, ()
        elif timeline.promise(gang, self.expected) is not None:
            found = timeline.expected_at(gang.id)
        waits_for = timeline.waits_for(gang.id)
        timeline.withdraw(gang.id)
        if found is None:
            return None, waits_for
        for since, starts_at in self.frozen:
            found = max(found, starts_at) if found > since else found
        return found + later, waits_for


def _low(expected: Expected) -> float:
    return expected.low_s


def _high(expected: Expected) -> float:
    return expected.high_s
