"""Estimates when running gangs end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from hopyard.domain.cluster import PREEMPT_GRACE_S, Running
from hopyard.domain.duration_keys import history_keys, total_gpus
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId, NodeId
from hopyard.scheduler.duration_estimates import (
    MAX_DURATION_S,
    MIN_PACE_PROGRESS,
    DurationEstimate,
    DurationHistory,
    estimate_from_progress,
    estimate_total_from,
    exact_estimate,
    history_from_levels,
    most_specific_history,
)
from hopyard.scheduler.placement.node_table import Ints
from hopyard.scheduler.timeline.allocation_table import CPU, NO_NODE, NODE, SLOT, AllocationTable
from hopyard.scheduler.timeline.release_schedule import Floats, ReleaseSchedule

# one that was asked to end is expected to be gone by then; at the latest when its grace is over
EXPECTED_STOP_S = 5.0
NO_HISTORY = -1
MID, HIGH, VALID_UNTIL = range(3)
MAX_SCALAR_REFRESH = 8  # to work these out one by one takes less time than to lay out arrays
EXPECTED_START_S = 10.0  # who takes longer to be prepared
MAX_START_FACTOR = 3.0  # probably takes as long again, and may take so many times as long
OVERDUE_WINDOW_S = 1.0  # what is still there past its time limit is gone by then
DurationPick = Callable[[DurationEstimate], float]
HistoryKey = tuple[str, str, str, int]
MAX_CHANGED_FRACTION = 8  # one node in so many may have changed before what is released is laid out anew


@dataclass(frozen=True, slots=True)
class RunEnd:
    """A gang that holds resources, with its expected end and the upper end of the estimate, in seconds from
    now.

    is_limit: the run is stopped at that time.
    """

    placement: Placement
    mid_s: float
    high_s: float
    is_limit: bool = False

    @property
    def gang(self) -> GangId:
        return self.placement.gang.id


class RunEndEstimates:
    """The running gangs by node, with their estimated ends. Ends are computed on demand, and cached while
    they are valid.

    A Planner keeps one instance and updates it. A new instance of the same gangs gives the same ends.
    """

    def __init__(
        self,
        durations: Mapping[str, Sequence[float]],
        now: datetime,
        *,
        grace_s: float = PREEMPT_GRACE_S,
        pick_s: DurationPick | None = None,
        progress: Mapping[GangId, float] | None = None,
    ) -> None:
        """grace_s: whoever was asked to make room is gone by then. pick_s: supposes that every run takes
        exactly so long of its band, instead of what is expected. progress: which part of all they have to do
        gangs say they have done, 0 to 1: these are expected to go on at their pace."""
        self._durations, self._now, self._pick_s, self._grace_s = (
            durations,
            now.timestamp(),
            pick_s,
            max(grace_s, OVERDUE_WINDOW_S),
        )
        self._progress = {
            gang: part for gang, part in (progress or {}).items() if MIN_PACE_PROGRESS <= part <= 1
        }
        self._running: dict[GangId, Running] = {}
        self._running_by_node: dict[NodeId, dict[GangId, Running]] = {}
        # mid and high as points in time, until when they hold
        self._times_by_gang: dict[GangId, tuple[float, float, bool, float]] = {}
        self._ends: dict[GangId, RunEnd] = {}  # as of now
        # with the keys by which it was looked for
        self._histories: dict[HistoryKey, tuple[Sequence[str], DurationHistory]] = {}
        self._keys_by_history: dict[str, set[HistoryKey]] = {}  # whose history was looked for by each key
        self._gangs_by_key: dict[
            HistoryKey, dict[GangId, None]
        ] = {}  # gangs that are predicted from one history
        self._key_of: dict[GangId, HistoryKey] = {}
        self._number_by_key: dict[HistoryKey, int] = {}
        self._next_number = 0
        # by slot: that of its kind; NO_HISTORY where no history says when it ends
        self._number_by_slot: Ints = np.zeros(64, np.int64)
        self._sorted_ends: list[RunEnd] | None = None
        self._slots: dict[GangId, int] = {}
        self._gangs: list[GangId | None] = []  # by slot
        self._free_slots: list[int] = []
        # MID, HIGH, VALID_UNTIL by slot, as points in time: until when these are known
        self._times: Floats = np.zeros((3, 64))
        # by slot: when it began, as a point in time, and its time limit or infinity
        self._start_and_limit: Floats = np.zeros((2, 64))
        self._allocations = AllocationTable()
        # see `_rows_of`
        self._row_cache: tuple[Sequence[NodeId], dict[NodeId, int], dict[NodeId, int], Ints] | None = None
        self._releases: tuple[Sequence[NodeId], ReleaseSchedule] | None = None
        self._changed_nodes: set[NodeId] = set()  # where something else is released since

    @classmethod
    def of(
        cls,
        running: Iterable[Running],
        durations: Mapping[str, Sequence[float]],
        now: datetime,
        *,
        grace_s: float = PREEMPT_GRACE_S,
        pick_s: DurationPick | None = None,
        progress: Mapping[GangId, float] | None = None,
    ) -> RunEndEstimates:
        found = cls(durations, now, grace_s=grace_s, pick_s=pick_s, progress=progress)
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
        """Adds a gang that holds resources, or updates it."""
        self.add_all((running,))

    def add_all(self, runs: Collection[Running]) -> None:
        """Calls `add` for each; no gang may occur twice."""
        slots, numbers, begun, limits = [], [], [], []
        for running in runs:
            gang = running.gang.id
            self.drop(gang)
            self._running[gang] = running
            kind = self._key_of[gang] = history_key(running.gang)
            self._gangs_by_key.setdefault(kind, {})[gang] = None
            for assignment in running.placement.assignments:
                self._running_by_node.setdefault(assignment.node, {})[gang] = running
            if self._free_slots:
                slot = self._free_slots.pop()
                self._gangs[slot] = gang
            else:
                slot = len(self._gangs)
                self._gangs.append(gang)
            self._slots[gang] = slot
            self._mark_changed(running)
            if kind not in self._number_by_key:
                self._number_by_key[kind], self._next_number = self._next_number, self._next_number + 1
            alone = (
                running.stopping
                or self._pick_s is not None
                or gang in self._progress
                or running.gang.served_s > 0
            )
            slots.append(slot)
            numbers.append(NO_HISTORY if alone else self._number_by_key[kind])
            begun.append(_began_at(running))
            limits.append(running.gang.time_limit_s)
        while len(self._gangs) > self._times.shape[1]:
            self._times = np.concatenate([self._times, np.zeros_like(self._times)], axis=1)
            self._start_and_limit = np.concatenate(
                [self._start_and_limit, np.zeros_like(self._start_and_limit)], axis=1
            )
            self._number_by_slot = np.concatenate([self._number_by_slot, np.zeros_like(self._number_by_slot)])
        self._number_by_slot[slots] = numbers
        self._times[:, slots] = -np.inf
        self._start_and_limit[:, slots] = (
            begun,
            [np.inf if limit_s is None else limit_s for limit_s in limits],
        )
        self._allocations.add_all(zip(slots, (running.placement for running in runs), strict=True))

    def drop(self, gang: GangId) -> None:
        """Removes a gang; unknown gangs are ignored."""
        running = self._running.pop(gang, None)
        self._sorted_ends = None
        if running is None:
            return
        self._times_by_gang.pop(gang, None)
        self._ends.pop(gang, None)
        kind = self._key_of.pop(gang)
        del self._gangs_by_key[kind][gang]
        if not self._gangs_by_key[kind]:
            del self._gangs_by_key[kind], self._number_by_key[kind]
            self._drop_history(kind)
        for node in {assignment.node for assignment in running.placement.assignments}:
            del self._running_by_node[node][gang]
            if not self._running_by_node[node]:
                del self._running_by_node[node]
        slot = self._slots.pop(gang)
        self._mark_changed(running)
        self._times[:, slot], self._gangs[slot] = np.inf, None
        self._free_slots.append(slot)
        self._allocations.drop(slot)

    def advance(self, now: datetime, durations: Mapping[str, Sequence[float]], *, grace_s: float) -> None:
        """Time went on, and more was learned. Where the clock was set back, what was worked out for later
        holds no more."""
        self._grace_s = max(grace_s, OVERDUE_WINDOW_S)
        before, self._durations = self._durations, durations
        was, self._now, self._sorted_ends = self._now, now.timestamp(), None
        self._ends.clear()
        if self._now < was:
            self._times_by_gang.clear()
            self._times[VALID_UNTIL, [*self._slots.values()]] = -np.inf
        if durations is not before:
            self._drop_outdated(before)

    def _drop_outdated(self, previous: Mapping[str, Sequence[float]]) -> None:
        """Forget what was worked out for gangs of whose like more is known now than before."""
        now = self._durations
        changed = [key for key, samples in now.items() if previous.get(key) is not samples]
        changed += [key for key in previous if key not in now]
        for kind in {kind for key in changed for kind in self._keys_by_history.get(key, ())}:
            self._drop_history(kind)
            for gang in self._gangs_by_key[kind]:
                self._times_by_gang.pop(gang, None)
            self._times[VALID_UNTIL, [self._slots[gang] for gang in self._gangs_by_key[kind]]] = -np.inf

    def _drop_history(self, history_key: HistoryKey) -> None:
        known = self._histories.pop(history_key, None)
        for key in known[0] if known is not None else ():
            self._keys_by_history[key].discard(history_key)
            if not self._keys_by_history[key]:
                del self._keys_by_history[key]

    def releases(self, nodes: Sequence[NodeId]) -> ReleaseSchedule:
        """What comes back to each of these nodes, and when; true until something changes, or time goes on."""
        self._refresh_times()
        known = self._releases
        if (
            known is not None
            and known[0] is nodes
            and len(self._changed_nodes) * MAX_CHANGED_FRACTION <= len(nodes)
        ):
            index, _ = self._rows_of(nodes)
            moved = np.array(sorted(index[node] for node in self._changed_nodes if node in index), np.int64)
            if not len(moved) or known[1].replace_nodes(moved, *self.replica_releases(nodes, moved)):
                self._changed_nodes.clear()
                return known[1]
        found = ReleaseSchedule(len(nodes), *self.replica_releases(nodes))
        self._releases = nodes, found
        self._changed_nodes.clear()
        return found

    def replica_releases(
        self, nodes: Sequence[NodeId], indices: Ints | None = None
    ) -> tuple[Ints, Floats, Ints]:
        """For each replica on one of these nodes: the index of its node, the point in time at which it
        probably ends, and what it gives back (rows: thousandths of cores, bytes, thousandths of GPUs).
        indices: the nodes of these indices alone."""
        self._refresh_times()
        (_, rows), uses = self._rows_of(nodes), self._allocations.columns
        if indices is not None:
            chosen = np.zeros(len(nodes) + 1, np.bool_)
            chosen[indices] = True
            rows = np.where(chosen[rows], rows, -1)
        row = rows[uses[NODE]]
        there = np.flatnonzero(row >= 0)
        return row[there], self._times[MID, uses[SLOT, there]], uses[CPU:, there]

    def _mark_changed(self, running: Running) -> None:
        """Something else is released where it is."""
        if self._releases is not None:
            self._changed_nodes.update([assignment.node for assignment in running.placement.assignments])

    def _rows_of(self, nodes: Sequence[NodeId]) -> tuple[dict[NodeId, int], Ints]:
        """The index of each of them; and for each node of the uses, and for NO_NODE, its index among them, -1
        where it is not there."""
        known, held = self._row_cache, self._allocations.nodes
        if known is None or known[0] is not nodes or known[1] is not held or len(known[3]) != len(held) + 1:
            index = {node: row for row, node in enumerate(nodes)}
            known = self._row_cache = (
                nodes,
                held,
                index,
                np.array([*(index.get(node, -1) for node in held), NO_NODE], np.int64),
            )
        return known[2:]

    def ends(self) -> Sequence[RunEnd]:
        """Returns all ends, sorted by expected end, then id."""
        if self._sorted_ends is None:
            self._sorted_ends = sorted((self._end_of(one) for one in self._running.values()), key=_end_order)
        return self._sorted_ends

    def ended_by(self, within_s: float) -> tuple[list[Placement], float]:
        """What those hold that end in so many seconds even if they take as long as can be expected, and in
        how many seconds the last of them does."""
        self._refresh_times()
        slots = np.flatnonzero(self._times[HIGH, : len(self._gangs)] <= self._now + within_s)
        last_s = max(float(self._times[HIGH, slots].max(initial=0.0)) - self._now, OVERDUE_WINDOW_S)
        return [
            self._running[gang].placement
            for slot in slots.tolist()
            if (gang := self._gangs[slot]) is not None
        ], last_s

    def ends_on(self, nodes: Collection[NodeId]) -> list[RunEnd]:
        """Returns the ends of gangs on these nodes, in the same order."""
        found = {gang: one for node in nodes for gang, one in self._running_by_node.get(node, {}).items()}
        return sorted((self._end_of(one) for one in found.values()), key=_end_order)

    def end(self, gang: GangId) -> RunEnd | None:
        running = self._running.get(gang)
        return self._end_of(running) if running else None

    def running(self, gang: GangId) -> Running | None:
        return self._running.get(gang)

    def placed_since(self, gang: GangId, since: datetime) -> bool:
        """Returns whether a gang that holds resources was placed after that time."""
        return self._running[gang].placed_at > since

    def latest_end_s(self, gang: GangId, as_of: datetime) -> float:
        """In how many seconds a gang that holds resources was expected to be gone at the latest, as seen at
        that time (when it was placed, where that was later), by what is known now of its like. One that was
        asked to end since is expected to be gone, but not one of which that is only supposed; one that was
        still being started then, to run from its placement on."""
        running = self._running[gang]
        if running.stopping and running.preempt_requested_at is not None:
            return 0.0
        ran = running.started_at is not None and running.started_at <= as_of
        begun = _began_at(running) if ran else running.placed_at.timestamp()
        expected, _ = estimate_total_from(
            running.gang, self._history_of(running.gang), max(as_of.timestamp() - begun, 0.0)
        )
        return begun + expected.high_s - self._now

    def _refresh_times(self) -> None:
        """Work out anew what is not known any more, for gangs with one history together where they are
        many."""
        stale = np.flatnonzero(self._times[VALID_UNTIL, : len(self._gangs)] <= self._now)
        for slots, number in (
            self._slots_by_number(stale) if len(stale) > MAX_SCALAR_REFRESH else ((stale, NO_HISTORY),)
        ):
            known = (
                None
                if number == NO_HISTORY or len(slots) <= MAX_SCALAR_REFRESH
                else self._history_of(self._running_at_slot(int(slots[0])).gang)
            )
            left = slots if known is None or not known.seconds else self._refresh_group(slots, known)
            for slot in left.tolist():
                self._end_of(self._running_at_slot(slot))

    def _slots_by_number(self, slots: Ints) -> Iterator[tuple[Ints, int]]:
        numbers = self._number_by_slot[slots]
        for number in np.unique(numbers).tolist():
            yield slots[numbers == number], number

    def _refresh_group(self, slots: Ints, history: DurationHistory) -> Ints:
        """Of gangs with this history; those of which it does not tell are left."""
        begun, limit_s = self._start_and_limit[:, slots]
        mid_s, high_s, until_s = history.bands_after(np.maximum(self._now - begun, 0.0))
        told = ~np.isnan(mid_s)
        high_s = np.where(np.isfinite(limit_s), limit_s, np.minimum(high_s, MAX_DURATION_S))
        took_s = np.array([np.minimum(np.minimum(mid_s, MAX_DURATION_S), limit_s), high_s, until_s])
        left: Ints = slots[~told]
        slots = slots[told]
        before = self._times[MID, slots]
        self._times[:, slots] = (begun + took_s)[:, told]
        for slot in slots[self._times[MID, slots] != before].tolist() if self._releases is not None else ():
            self._mark_changed(self._running_at_slot(slot))
        return left

    def _running_at_slot(self, slot: int) -> Running:
        gang = self._gangs[slot]
        assert gang is not None
        return self._running[gang]

    def _history_of(self, gang: Gang) -> DurationHistory:
        kind = self._key_of[gang.id]
        found = self._histories.get(kind)
        if found is None:
            levels, keys = most_specific_history(history_keys(gang), self._durations)
            found = self._histories[kind] = keys, history_from_levels(levels)
            for key in keys:
                self._keys_by_history.setdefault(key, set()).add(kind)
        return found[1]

    def _end_of(self, running: Running) -> RunEnd:
        gang = running.gang.id
        found = self._ends.get(gang)
        if found is None:
            found = self._ends[gang] = self._compute_end(running)
        return found

    def _compute_end(self, running: Running) -> RunEnd:
        gang = running.gang
        if running.stopping:
            leaves = self._stop_estimate(running)
            # A plan is not to change its mind because somebody takes longer to leave than is usual: it counts
            # on that.
            mid_s, high_s = min(EXPECTED_STOP_S, leaves.high_s), leaves.high_s
            if self._pick_s is not None:
                mid_s = high_s = self._pick_s(leaves)
            self._set_times(running, self._now + mid_s, self._now + high_s, self._now)
            return RunEnd(running.placement, mid_s, high_s)
        known = self._times_by_gang.get(gang.id)
        if known is None or known[3] <= self._now:
            begun, ran_s = _began_at(running), self._now - _began_at(running)
            # A plan does not change its mind as long as a run is being started, either: it counts from its
            # placement.
            if self._pick_s is not None and running.started_at is None and ran_s > EXPECTED_START_S:
                begun, ran_s = self._now + self._pick_s(_start_estimate(ran_s)), 0.0
            expected, until_s = estimate_total_from(gang, self._history_of(gang), ran_s)
            part = self._progress.get(gang.id)
            if part is not None:
                expected, until_s = estimate_from_progress(gang, part, ran_s), MAX_DURATION_S
            if self._pick_s is not None:
                expected = exact_estimate(self._pick_s(expected))
            known = (begun + expected.mid_s, begun + expected.high_s, expected.is_limit, begun + until_s)
            self._times_by_gang[gang.id] = known
            self._set_times(running, known[0], known[1], known[3])
        mid_s, high_s = (
            max(known[0] - self._now, OVERDUE_WINDOW_S),
            max(known[1] - self._now, OVERDUE_WINDOW_S),
        )
        return RunEnd(running.placement, mid_s, max(mid_s, high_s), known[2])

    def _set_times(self, running: Running, mid: float, high: float, until: float) -> None:
        slot = self._slots[running.gang.id]
        if self._times[MID, slot] != mid:
            self._mark_changed(running)
        self._times[:, slot] = mid, high, until

    def _stop_estimate(self, running: Running) -> DurationEstimate:
        """When one that was asked to end does. Who took longer than is usual is expected to take as long
        again, up to its grace."""
        asked_s = (
            0.0
            if running.preempt_requested_at is None
            else max(self._now - running.preempt_requested_at.timestamp(), 0.0)
        )
        grace_s = PREEMPT_GRACE_S if running.preempted_for is None else self._grace_s
        high_s = max(grace_s - asked_s, OVERDUE_WINDOW_S)
        return DurationEstimate(OVERDUE_WINDOW_S, min(max(EXPECTED_STOP_S, asked_s), high_s), high_s)


def history_key(gang: Gang) -> HistoryKey:
    """Gangs that are equal in this are predicted from the same history (see `domain.durations.history_keys`):
    whose they are matters only where a script is known."""
    return gang.user if gang.script else "", gang.script, gang.queue, total_gpus(gang)


def _began_at(running: Running) -> float:
    return (running.started_at or running.placed_at).timestamp()


def _start_estimate(placed_s: float) -> DurationEstimate:
    """In how many seconds the processes of one begin that was placed so long ago."""
    return DurationEstimate(0.0, placed_s, MAX_START_FACTOR * placed_s)


def _end_order(end: RunEnd) -> tuple[float, GangId]:
    return end.mid_s, end.placement.gang.id
