"""When what runs is expected to end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from hopyard.domain.cluster import Running
from hopyard.domain.durations import gpus_of
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId, NodeId
from hopyard.scheduler.predict import Expected, History, exactly, history, whole_of

STOPS_IN_S = (5.0, 60.0)  # one that was asked to end is gone by then: expected, and at the latest
OVERDUE_S = 1.0  # what is still there past its time limit is gone by then
Pick = Callable[[Expected], float]


@dataclass(frozen=True, slots=True)
class End:
    """A gang that holds resources, and when, in seconds from now, it is expected to be gone, and at the latest expected to be.

    certain: it is ended then.
    """

    placement: Placement
    mid_s: float
    high_s: float
    certain: bool = False

    @property
    def gang(self) -> GangId:
        return self.placement.gang.id


class Future:
    """The running gangs, by node, with their ends. Ends are worked out when they are asked for, and remembered while they hold.

    A Planner keeps one and tells it what changes; one made anew from the same gangs gives the same ends.
    """

    def __init__(self, durations: Mapping[str, Sequence[float]], now: datetime, *, pick: Pick | None = None) -> None:
        """pick: supposes that every run takes exactly so long of its band, instead of what is expected."""
        self._durations, self._now, self._pick = durations, now.timestamp(), pick
        self._running: dict[GangId, Running] = {}
        self._on: dict[NodeId, dict[GangId, Running]] = {}
        self._known: dict[GangId, tuple[float, float, bool, float]] = {}  # mid and high as points in time, until when they hold
        self._histories: dict[tuple[str, str, str, int], History] = {}
        self._sorted: list[End] | None = None

    @classmethod
    def of(
        cls, running: Iterable[Running], durations: Mapping[str, Sequence[float]], now: datetime, *, pick: Pick | None = None
    ) -> Future:
        found = cls(durations, now, pick=pick)
        for one in running:
            found.add(one)
        return found

    def add(self, running: Running) -> None:
        """One that holds resources, or that changed."""
        gang = running.gang.id
        self.drop(gang)
        self._running[gang] = running
        for assignment in running.placement.assignments:
            self._on.setdefault(assignment.node, {})[gang] = running
        self._sorted = None

    def drop(self, gang: GangId) -> None:
        """It is gone; nothing happens where it was not there."""
        running = self._running.pop(gang, None)
        self._known.pop(gang, None)
        self._sorted = None
        for assignment in running.placement.assignments if running else ():
            self._on[assignment.node].pop(gang, None)

    def at(self, now: datetime, durations: Mapping[str, Sequence[float]]) -> None:
        """Time went on, and more was learned."""
        if durations is not self._durations and durations != self._durations:
            self._known.clear()
            self._histories.clear()
        self._durations, self._now, self._sorted = durations, now.timestamp(), None

    def ends(self) -> Sequence[End]:
        """Of all, by expected end, then id."""
        if self._sorted is None:
            self._sorted = sorted((self._end(one) for one in self._running.values()), key=_order)
        return self._sorted

    def ends_on(self, nodes: Collection[NodeId]) -> list[End]:
        """Of those that hold something on one of these nodes, in the same order."""
        found = {gang: one for node in nodes for gang, one in self._on.get(node, {}).items()}
        return sorted((self._end(one) for one in found.values()), key=_order)

    def end(self, gang: GangId) -> End | None:
        running = self._running.get(gang)
        return self._end(running) if running else None

    def running(self, gang: GangId) -> Running | None:
        return self._running.get(gang)

    def _history(self, gang: Gang) -> History:
        key = gang.user, gang.script, gang.queue, gpus_of(gang)
        found = self._histories.get(key)
        if found is None:
            found = self._histories[key] = history(gang, self._durations)
        return found

    def _end(self, running: Running) -> End:
        gang = running.gang
        if running.stopping:
            return End(running.placement, *STOPS_IN_S)
        known = self._known.get(gang.id)
        if known is None or known[3] <= self._now:
            begun = (running.started_at or running.placed_at).timestamp()
            expected, until_s = whole_of(gang, self._history(gang), self._now - begun)
            if self._pick is not None:
                expected = exactly(self._pick(expected))
            known = (begun + expected.mid_s, begun + expected.high_s, expected.certain, begun + until_s)
            self._known[gang.id] = known
        mid_s, high_s = max(known[0] - self._now, OVERDUE_S), max(known[1] - self._now, OVERDUE_S)
        return End(running.placement, mid_s, max(mid_s, high_s), known[2])


def _order(end: End) -> tuple[float, GangId]:
    return end.mid_s, end.placement.gang.id
