"""When what runs is expected to end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from hopyard.domain.cluster import PREEMPT_GRACE_S, Running
from hopyard.domain.durations import gpus_of, history_keys
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId, NodeId
from hopyard.scheduler.placement.ground import Ints
from hopyard.scheduler.predict import (
    NEVER_S,
    TELLS_PACE,
    Expected,
    History,
    exactly,
    history_of,
    paced,
    telling,
    whole_of,
)
from hopyard.scheduler.timeline.releases import Floats, Releases
from hopyard.scheduler.timeline.uses import CPU, NOBODY, NODE, SLOT, Uses

# one that was asked to end is expected to be gone by then; at the latest when its grace is over
STOPS_IN_S = 5.0
ALONE = -1
MID, HIGH, UNTIL = range(3)
FEW = 8  # to work these out one by one takes less time than to lay out arrays
STARTS_IN_S = 10.0  # who takes longer to be prepared
LONGEST_START = 3.0  # probably takes as long again, and may take so many times as long
OVERDUE_S = 1.0  # what is still there past its time limit is gone by then
Pick = Callable[[Expected], float]
Alike = tuple[str, str, str, int]
MOST_MOVED = 8  # one node in so many may have changed before what is released is laid out anew


@dataclass(frozen=True, slots=True)
class End:
    """A gang that holds resources, and when, in seconds from now, it is expected to be gone, and at the
    latest expected to be.

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
    """The running gangs, by node, with their ends. Ends are worked out when they are asked for, and
    remembered while they hold.

    A Planner keeps one and tells it what changes; one made anew from the same gangs gives the same ends.
    """

    def __init__(
        self,
        durations: Mapping[str, Sequence[float]],
        now: datetime,
        *,
        grace_s: float = PREEMPT_GRACE_S,
        pick: Pick | None = None,
        progress: Mapping[GangId, float] | None = None,
    ) -> None:
        """grace_s: whoever was asked to make room is gone by then. pick: supposes that every run takes
        exactly so long of its band, instead of what is expected. progress: which part of all they have to do
        gangs say they have done, 0 to 1: these are expected to go on at their pace."""
        self._durations, self._now, self._pick, self._grace_s = (
            durations,
            now.timestamp(),
            pick,
            max(grace_s, OVERDUE_S),
        )
        self._progress = {gang: part for gang, part in (progress or {}).items() if TELLS_PACE <= part <= 1}
        self._running: dict[GangId, Running] = {}
        self._on: dict[NodeId, dict[GangId, Running]] = {}
        # mid and high as points in time, until when they hold
        self._known: dict[GangId, tuple[float, float, bool, float]] = {}
        self._ends: dict[GangId, End] = {}  # as of now
        # with the keys by which it was looked for
        self._histories: dict[Alike, tuple[Sequence[str], History]] = {}
        self._told_by: dict[str, set[Alike]] = {}  # whose history was looked for by each key
        self._alike: dict[Alike, dict[GangId, None]] = {}  # gangs that are predicted from one history
        self._kind: dict[GangId, Alike] = {}
        self._numbers: dict[Alike, int] = {}
        self._next = 0
        # by slot: that of its kind; ALONE where no history says when it ends
        self._number: Ints = np.zeros(64, np.int64)
        self._sorted: list[End] | None = None
        self._slots: dict[GangId, int] = {}
        self._gangs: list[GangId | None] = []  # by slot
        self._free_slots: list[int] = []
        # MID, HIGH, UNTIL by slot, as points in time: until when these are known
        self._times: Floats = np.zeros((3, 64))
        # by slot: when it began, as a point in time, and its time limit or infinity
        self._about: Floats = np.zeros((2, 64))
        self._uses = Uses()
        # see `_rows_of`
        self._rows: tuple[Sequence[NodeId], dict[NodeId, int], dict[NodeId, int], Ints] | None = None
        self._releases: tuple[Sequence[NodeId], Releases] | None = None
        self._moved: set[NodeId] = set()  # where something else is released since

    @classmethod
    def of(
        cls,
        running: Iterable[Running],
        durations: Mapping[str, Sequence[float]],
        now: datetime,
        *,
        grace_s: float = PREEMPT_GRACE_S,
        pick: Pick | None = None,
        progress: Mapping[GangId, float] | None = None,
    ) -> Future:
        found = cls(durations, now, grace_s=grace_s, pick=pick, progress=progress)
        found.add_all({one.gang.id: one for one in running}.values())
        return found

    @property
    def grace_s(self) -> float:
        """What those that are asked to leave may take."""
        return self._grace_s

    @property
    def now(self) -> float:
        """As a point in time."""
        return self._now

    def add(self, running: Running) -> None:
        """One that holds resources, or that changed."""
        self.add_all((running,))

    def add_all(self, runs: Collection[Running]) -> None:
        """`add` each; no two are of one gang."""
        slots, numbers, begun, limits = [], [], [], []
        for running in runs:
            gang = running.gang.id
            self.drop(gang)
            self._running[gang] = running
            kind = self._kind[gang] = alike(running.gang)
            self._alike.setdefault(kind, {})[gang] = None
            for assignment in running.placement.assignments:
                self._on.setdefault(assignment.node, {})[gang] = running
            if self._free_slots:
                slot = self._free_slots.pop()
                self._gangs[slot] = gang
            else:
                slot = len(self._gangs)
                self._gangs.append(gang)
            self._slots[gang] = slot
            self._move(running)
            if kind not in self._numbers:
                self._numbers[kind], self._next = self._next, self._next + 1
            alone = (
                running.stopping
                or self._pick is not None
                or gang in self._progress
                or running.gang.served_s > 0
            )
            slots.append(slot)
            numbers.append(ALONE if alone else self._numbers[kind])
            begun.append(_begun(running))
            limits.append(running.gang.time_limit_s)
        while len(self._gangs) > self._times.shape[1]:
            self._times = np.concatenate([self._times, np.zeros_like(self._times)], axis=1)
            self._about = np.concatenate([self._about, np.zeros_like(self._about)], axis=1)
            self._number = np.concatenate([self._number, np.zeros_like(self._number)])
        self._number[slots] = numbers
        self._times[:, slots] = -np.inf
        self._about[:, slots] = begun, [np.inf if limit_s is None else limit_s for limit_s in limits]
        self._uses.add_all(zip(slots, (running.placement for running in runs), strict=True))

    def drop(self, gang: GangId) -> None:
        """It is gone; nothing happens where it was not there."""
        running = self._running.pop(gang, None)
        self._sorted = None
        if running is None:
            return
        self._known.pop(gang, None)
        self._ends.pop(gang, None)
        kind = self._kind.pop(gang)
        del self._alike[kind][gang]
        if not self._alike[kind]:
            del self._alike[kind], self._numbers[kind]
            self._forget_history(kind)
        for node in {assignment.node for assignment in running.placement.assignments}:
            del self._on[node][gang]
            if not self._on[node]:
                del self._on[node]
        slot = self._slots.pop(gang)
        self._move(running)
        self._times[:, slot], self._gangs[slot] = np.inf, None
        self._free_slots.append(slot)
        self._uses.drop(slot)

    def at(self, now: datetime, durations: Mapping[str, Sequence[float]], *, grace_s: float) -> None:
        """Time went on, and more was learned. Where the clock was set back, what was worked out for later
        holds no more."""
        self._grace_s = max(grace_s, OVERDUE_S)
        before, self._durations = self._durations, durations
        was, self._now, self._sorted = self._now, now.timestamp(), None
        self._ends.clear()
        if self._now < was:
            self._known.clear()
            self._times[UNTIL, [*self._slots.values()]] = -np.inf
        if durations is not before:
            self._learn(before)

    def _learn(self, before: Mapping[str, Sequence[float]]) -> None:
        """Forget what was worked out for gangs of whose like more is known now than before."""
        now = self._durations
        changed = [key for key, samples in now.items() if before.get(key) is not samples]
        changed += [key for key in before if key not in now]
        for kind in {kind for key in changed for kind in self._told_by.get(key, ())}:
            self._forget_history(kind)
            for gang in self._alike[kind]:
                self._known.pop(gang, None)
            self._times[UNTIL, [self._slots[gang] for gang in self._alike[kind]]] = -np.inf

    def _forget_history(self, kind: Alike) -> None:
        known = self._histories.pop(kind, None)
        for key in known[0] if known is not None else ():
            self._told_by[key].discard(kind)
            if not self._told_by[key]:
                del self._told_by[key]

    def releases(self, nodes: Sequence[NodeId]) -> Releases:
        """What comes back to each of these nodes, and when; true until something changes, or time goes on."""
        self._refresh()
        known = self._releases
        if known is not None and known[0] is nodes and len(self._moved) * MOST_MOVED <= len(nodes):
            index, _ = self._rows_of(nodes)
            moved = np.array(sorted(index[node] for node in self._moved if node in index), np.int64)
            if not len(moved) or known[1].put(moved, *self.comes_back(nodes, moved)):
                self._moved.clear()
                return known[1]
        found = Releases(len(nodes), *self.comes_back(nodes))
        self._releases = nodes, found
        self._moved.clear()
        return found

    def comes_back(self, nodes: Sequence[NodeId], only: Ints | None = None) -> tuple[Ints, Floats, Ints]:
        """For each replica on one of these nodes: the index of its node, the point in time at which it
        probably ends, and what it gives back (rows: thousandths of cores, bytes, thousandths of GPUs). only:
        the nodes of these indices alone."""
        self._refresh()
        (_, rows), uses = self._rows_of(nodes), self._uses.all
        if only is not None:
            chosen = np.zeros(len(nodes) + 1, np.bool_)
            chosen[only] = True
            rows = np.where(chosen[rows], rows, -1)
        row = rows[uses[NODE]]
        there = np.flatnonzero(row >= 0)
        return row[there], self._times[MID, uses[SLOT, there]], uses[CPU:, there]

    def _move(self, running: Running) -> None:
        """Something else is released where it is."""
        if self._releases is not None:
            self._moved.update([assignment.node for assignment in running.placement.assignments])

    def _rows_of(self, nodes: Sequence[NodeId]) -> tuple[dict[NodeId, int], Ints]:
        """The index of each of them; and for each node of the uses, and for NOBODY, its index among them, -1
        where it is not there."""
        known, held = self._rows, self._uses.nodes
        if known is None or known[0] is not nodes or known[1] is not held or len(known[3]) != len(held) + 1:
            index = {node: row for row, node in enumerate(nodes)}
            known = self._rows = (
                nodes,
                held,
                index,
                np.array([*(index.get(node, -1) for node in held), NOBODY], np.int64),
            )
        return known[2:]

    def ends(self) -> Sequence[End]:
        """Of all, by expected end, then id."""
        if self._sorted is None:
            self._sorted = sorted((self._end(one) for one in self._running.values()), key=_order)
        return self._sorted

    def gone_by(self, in_s: float) -> tuple[list[Placement], float]:
        """What those hold that end in so many seconds even if they take as long as can be expected, and in
        how many seconds the last of them does."""
        self._refresh()
        slots = np.flatnonzero(self._times[HIGH, : len(self._gangs)] <= self._now + in_s)
        last_s = max(float(self._times[HIGH, slots].max(initial=0.0)) - self._now, OVERDUE_S)
        return [
            self._running[gang].placement
            for slot in slots.tolist()
            if (gang := self._gangs[slot]) is not None
        ], last_s

    def ends_on(self, nodes: Collection[NodeId]) -> list[End]:
        """Of those that hold something on one of these nodes, in the same order."""
        found = {gang: one for node in nodes for gang, one in self._on.get(node, {}).items()}
        return sorted((self._end(one) for one in found.values()), key=_order)

    def end(self, gang: GangId) -> End | None:
        running = self._running.get(gang)
        return self._end(running) if running else None

    def running(self, gang: GangId) -> Running | None:
        return self._running.get(gang)

    def placed_since(self, gang: GangId, at: datetime) -> bool:
        """Whether a gang that holds resources got them after that time."""
        return self._running[gang].placed_at > at

    def latest_s(self, gang: GangId, seen_at: datetime) -> float:
        """In how many seconds a gang that holds resources was expected to be gone at the latest, as seen at
        that time (when it was placed, where that was later), by what is known now of its like. One that was
        asked to end since is expected to be gone, but not one of which that is only supposed; one that was
        still being started then, to run from its placement on."""
        running = self._running[gang]
        if running.stopping and running.asked_at is not None:
            return 0.0
        ran = running.started_at is not None and running.started_at <= seen_at
        begun = _begun(running) if ran else running.placed_at.timestamp()
        expected, _ = whole_of(
            running.gang, self._history(running.gang), max(seen_at.timestamp() - begun, 0.0)
        )
        return begun + expected.high_s - self._now

    def _refresh(self) -> None:
        """Work out anew what is not known any more, for gangs with one history together where they are
        many."""
        stale = np.flatnonzero(self._times[UNTIL, : len(self._gangs)] <= self._now)
        for slots, number in self._by_number(stale) if len(stale) > FEW else ((stale, ALONE),):
            known = (
                None
                if number == ALONE or len(slots) <= FEW
                else self._history(self._at_slot(int(slots[0])).gang)
            )
            left = slots if known is None or not known.seconds else self._refresh_alike(slots, known)
            for slot in left.tolist():
                self._end(self._at_slot(slot))

    def _by_number(self, slots: Ints) -> Iterator[tuple[Ints, int]]:
        numbers = self._number[slots]
        for number in np.unique(numbers).tolist():
            yield slots[numbers == number], number

    def _refresh_alike(self, slots: Ints, known: History) -> Ints:
        """Of gangs with this history; those of which it does not tell are left."""
        begun, limit_s = self._about[:, slots]
        mid_s, high_s, until_s = known.ends_s(np.maximum(self._now - begun, 0.0))
        told = ~np.isnan(mid_s)
        high_s = np.where(np.isfinite(limit_s), limit_s, np.minimum(high_s, NEVER_S))
        took_s = np.array([np.minimum(np.minimum(mid_s, NEVER_S), limit_s), high_s, until_s])
        left: Ints = slots[~told]
        slots = slots[told]
        before = self._times[MID, slots]
        self._times[:, slots] = (begun + took_s)[:, told]
        for slot in slots[self._times[MID, slots] != before].tolist() if self._releases is not None else ():
            self._move(self._at_slot(slot))
        return left

    def _at_slot(self, slot: int) -> Running:
        gang = self._gangs[slot]
        assert gang is not None
        return self._running[gang]

    def _history(self, gang: Gang) -> History:
        kind = self._kind[gang.id]
        found = self._histories.get(kind)
        if found is None:
            levels, keys = telling(history_keys(gang), self._durations)
            found = self._histories[kind] = keys, history_of(levels)
            for key in keys:
                self._told_by.setdefault(key, set()).add(kind)
        return found[1]

    def _end(self, running: Running) -> End:
        gang = running.gang.id
        found = self._ends.get(gang)
        if found is None:
            found = self._ends[gang] = self._worked_out(running)
        return found

    def _worked_out(self, running: Running) -> End:
        gang = running.gang
        if running.stopping:
            leaves = self._leaves(running)
            # A plan is not to change its mind because somebody takes longer to leave than is usual: it counts
            # on that.
            mid_s, high_s = min(STOPS_IN_S, leaves.high_s), leaves.high_s
            if self._pick is not None:
                mid_s = high_s = self._pick(leaves)
            self._set_times(running, self._now + mid_s, self._now + high_s, self._now)
            return End(running.placement, mid_s, high_s)
        known = self._known.get(gang.id)
        if known is None or known[3] <= self._now:
            begun, ran_s = _begun(running), self._now - _begun(running)
            # A plan does not change its mind as long as a run is being started, either: it counts from its
            # placement.
            if self._pick is not None and running.started_at is None and ran_s > STARTS_IN_S:
                begun, ran_s = self._now + self._pick(_begins(ran_s)), 0.0
            expected, until_s = whole_of(gang, self._history(gang), ran_s)
            part = self._progress.get(gang.id)
            if part is not None:
                expected, until_s = paced(gang, part, ran_s), NEVER_S
            if self._pick is not None:
                expected = exactly(self._pick(expected))
            known = (begun + expected.mid_s, begun + expected.high_s, expected.certain, begun + until_s)
            self._known[gang.id] = known
            self._set_times(running, known[0], known[1], known[3])
        mid_s, high_s = max(known[0] - self._now, OVERDUE_S), max(known[1] - self._now, OVERDUE_S)
        return End(running.placement, mid_s, max(mid_s, high_s), known[2])

    def _set_times(self, running: Running, mid: float, high: float, until: float) -> None:
        slot = self._slots[running.gang.id]
        if self._times[MID, slot] != mid:
            self._move(running)
        self._times[:, slot] = mid, high, until

    def _leaves(self, running: Running) -> Expected:
        """When one that was asked to end does. Who took longer than is usual is expected to take as long
        again, up to its grace."""
        asked_s = 0.0 if running.asked_at is None else max(self._now - running.asked_at.timestamp(), 0.0)
        grace_s = PREEMPT_GRACE_S if running.preempted_for is None else self._grace_s
        high_s = max(grace_s - asked_s, OVERDUE_S)
        return Expected(OVERDUE_S, min(max(STOPS_IN_S, asked_s), high_s), high_s)


def alike(gang: Gang) -> Alike:
    """Gangs that are equal in this are predicted from the same history (see `domain.durations.history_keys`):
    whose they are matters only where a script is known."""
    return gang.user if gang.script else "", gang.script, gang.queue, gpus_of(gang)


def _begun(running: Running) -> float:
    return (running.started_at or running.placed_at).timestamp()


def _begins(placed_s: float) -> Expected:
    """In how many seconds the processes of one begin that was placed so long ago."""
    return Expected(0.0, placed_s, LONGEST_START * placed_s)


def _order(end: End) -> tuple[float, GangId]:
    return end.mid_s, end.placement.gang.id
