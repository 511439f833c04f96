"""The turns to come: the policy itself, turn after turn, on a cluster in which everything takes exactly as
long as is supposed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType

from hopyard.domain.cluster import Breach, Plan, Promise, Running, Snapshot
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId, NodeId, Version
from hopyard.scheduler.aftermath import asked
from hopyard.scheduler.cycle.planner import Planner
from hopyard.scheduler.predict import TELLS_PACE, Expected, expect, is_known
from hopyard.scheduler.timeline.future import OVERDUE_S, Future

MOST_TURNS = 100
LEAST_TURNS = 8  # fewer tell too little for what they cost
LARGEST = 20_000  # nodes and gangs: in a larger cluster even these take too long
WORK = 12_000  # nodes and gangs that all turns together look at, so that an answer takes a second or two
LOOKS = 20  # nothing that time alone changes is looked for within a part of this of the time that has passed
Pick = Callable[[Expected], float]
NOTHING: Mapping[GangId, float] = MappingProxyType({})


def mid(expected: Expected) -> float:
    return expected.mid_s


def expected_starts(
    snapshot: Snapshot, plan: Plan, progress: Mapping[GangId, float] = NOTHING
) -> dict[GangId, datetime]:
    """When the gangs that are promised a start probably start, as `forecast.why` says of each of them. A
    start that lies too many turns ahead is left out, and so is a start that follows from the end of a run of
    which too little is known.

    plan: of this snapshot. progress: of `forecast.why`.
    """
    coming = Foreseen(asked(snapshot, plan), plan, mid, progress)
    found = {promise.gang: coming.starts_at(promise.gang) for promise in plan.promises}
    return {gang: at for gang, at in found.items() if at is not None and gang not in coming.guessed}


class Foreseen:
    """One way that it may go. The policy is not told how long anything takes: it expects, promises and
    decides as it would.

    Nobody is submitted, no node comes or goes, and nothing more is learned of how long runs take.
    """

    def __init__(self, snapshot: Snapshot, plan: Plan, pick: Pick, progress: Mapping[GangId, float]) -> None:
        """plan: of this snapshot, and carried out. pick: how long of their bands everything takes.
        progress: of `forecast.why`."""
        self._snapshot, self._pick = snapshot, pick
        self.now = self._began = snapshot.now
        size = len(snapshot.nodes) + len(snapshot.pending) + len(snapshot.running)
        # that are left
        self._turns = min(MOST_TURNS, max(LEAST_TURNS, WORK // (size + 1))) if size <= LARGEST else 0
        self._waiting = {gang.id: gang for gang in snapshot.pending}
        self._running = {running.gang.id: running for running in snapshot.running if self._turns}
        future = Future.of(
            self._running.values(),
            snapshot.durations,
            snapshot.now,
            grace_s=snapshot.preempt_grace_s,
            pick=pick,
            progress=progress,
        )
        # of those that started since: from when until when, the last time
        self.spans: dict[GangId, tuple[datetime, datetime]] = {}
        # gangs with a first start that depends on the end of a run of unknown duration
        self.guessed: set[GangId] = set()
        self._progress = progress
        self._guessed_nodes: set[NodeId] = set()  # on which such a run ended
        self._started: dict[GangId, datetime] = {}  # when each started for the first time
        self.breaches: dict[GangId, Breach] = {}  # the first of each promise
        self._ends = {end.gang: snapshot.now + timedelta(seconds=end.mid_s) for end in future.ends()}
        # what those that have to leave, and will be back, have still to do
        self._left: dict[GangId, timedelta] = {}
        for leaving in self._running.values():
            if leaving.preempted_for is not None:
                staying = replace(leaving, stopping=False, preempted_for=None, asked_at=None)
                end = Future.of(
                    [staying], snapshot.durations, snapshot.now, pick=pick, progress=progress
                ).end(leaving.gang.id)
                assert end is not None
                self._left[leaving.gang.id] = timedelta(seconds=end.mid_s)
        self._whole: dict[GangId, Gang] = {}  # of those that were placed, as they asked
        self._promises: dict[GangId, Promise] = {}
        self._planner = Planner()
        self._look_again_at: datetime | None = None
        self._carry_out(plan)

    def starts_at(self, gang: GangId) -> datetime | None:
        """When it starts; None where that is not seen: `now` is how far it was looked, then.
        The answer for one gang does not depend on the gangs for which it was called before."""
        while gang not in self._started and self._turns and (at := self._next()) is not None:
            self._turns -= 1
            self.now = at
            for ended in [name for name, end in self._ends.items() if end <= at]:
                self._end(ended)
            self._carry_out(self._planner(self._seen()))
        return self._started.get(gang)

    def start_of(self, gang: GangId, otherwise: Callable[[], datetime]) -> datetime:
        """When it starts; where that is not seen, as `otherwise` says, but not before it was looked for no
        more."""
        return self.starts_at(gang) or max(otherwise(), self.now)

    def out_of_way_at(self, name: str, of: datetime | None) -> datetime | None:
        """When a run that waits, too ("run:ID"), is in the way no more of what starts at `of`: it has
        started, or ended."""
        span = self.spans.get(GangId(name.removeprefix("run:")))
        if span is None or of is None:
            return None
        return span[0] if of < span[1] else span[1]

    def _seen(self) -> Snapshot:
        return replace(
            self._snapshot,
            version=Version(self._snapshot.version + 1),
            now=self.now,
            pending=tuple(self._waiting.values()),
            running=tuple(self._running.values()),
            promises=self._promises,
            place_most=0,
        )

    def _next(self) -> datetime | None:
        """When something ends, or time alone changes something."""
        times = [*self._ends.values()]
        if self._look_again_at is not None:
            times.append(
                max(
                    self._look_again_at,
                    self.now + max((self.now - self._began) / LOOKS, timedelta(seconds=OVERDUE_S)),
                )
            )
        return min(times, default=None)

    def _carry_out(self, plan: Plan) -> None:
        for placement in plan.place:
            self._start(placement)
        for one in plan.preempt:
            leaving = self._running.get(one.gang)
            if leaving is not None and not leaving.stopping:
                self._leave(
                    replace(leaving, stopping=True, preempted_for=one.for_gang or None, asked_at=self.now)
                )
        for breach in plan.breaches:
            self.breaches.setdefault(breach.gang, breach)
        self._promises = {promise.gang: promise for promise in plan.promises if promise.gang in self._waiting}
        self._look_again_at = plan.look_again_at

    def _start(self, placement: Placement) -> None:
        name = placement.gang.id
        self._whole[name] = self._waiting.pop(name)
        self._running[name] = Running(placement, self.now, started_at=self.now)
        takes = self._left.pop(name, None) or timedelta(
            seconds=self._pick(expect(placement.gang, self._snapshot.durations))
        )
        self._ends[name] = self.now + max(takes, timedelta(seconds=OVERDUE_S))
        self.spans[name] = self.now, self._ends[name]
        if name not in self._started and not self._guessed_nodes.isdisjoint(
            one.node for one in placement.assignments
        ):
            self.guessed.add(name)
        self._started.setdefault(name, self.now)

    def _leave(self, leaving: Running) -> None:
        """It was asked to make room, and will go on from where it was."""
        name, end = leaving.gang.id, self._ends[leaving.gang.id]
        about = Future.of(
            [leaving], {}, self.now, grace_s=self._snapshot.preempt_grace_s, pick=self._pick
        ).end(name)
        assert about is not None
        gone = self.now + timedelta(seconds=about.mid_s)
        self._running[name] = leaving
        if gone < end:
            self._ends[name], self._left[name] = gone, end - self.now

    def _end(self, name: GangId) -> None:
        ended = self._running.pop(name)
        del self._ends[name]
        if name in self.guessed or not (ended.stopping or self._is_known(ended.gang)):
            self._guessed_nodes.update(one.node for one in ended.placement.assignments)
        if name in self._left:
            whole = self._whole.get(name, ended.gang)
            served_s = whole.served_s + (self.now - (ended.started_at or self.now)).total_seconds()
            self._waiting[name] = replace(whole, served_s=served_s, preemptions=whole.preemptions + 1)

    def _is_known(self, gang: Gang) -> bool:
        """Whether it is known when it ends."""
        return self._progress.get(gang.id, 0.0) >= TELLS_PACE or is_known(gang, self._snapshot.durations)
