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

# a run that is being stopped is expected to end by then, and no later than the end of its grace period
EXPECTED_STOP_S = 5.0
NO_HISTORY = -1
MID, HIGH, VALID_UNTIL = range(3)
MAX_SCALAR_REFRESH = 8  # for so few runs, one by one is faster than arrays
EXPECTED_START_S = 10.0  # a run whose preparation takes longer
MAX_START_FACTOR = 3.0  # probably takes as long again, and at most this many times as long
OVERDUE_WINDOW_S = 1.0  # a run past its time limit is expected to end by then
DurationPick = Callable[[DurationEstimate], float]
HistoryKey = tuple[str, str, str, int]
MAX_CHANGED_FRACTION = 8  # one node in this many may change before the schedule is rebuilt


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
        """grace_s: the time within which a preempted run ends. pick_s: selects the duration of every run from
        its band, instead of the expected one. progress: the completed part of each gang's work as reported, 0
        to 1; these gangs are expected to continue at their pace."""
        self._durations, self._now, self._pick_s, self._grace_s = (
            durations,
            now.timestamp(),
            pick_s,
            max(grace_s, OVERDUE_WINDOW_S),
        )
        self._progress = {
            gang: fraction
            for gang, fraction in (progress or {}).items()
            if MIN_PACE_PROGRESS <= fraction <= 1
        }
        self._running: dict[GangId, Running] = {}
        self._running_by_node: dict[NodeId, dict[GangId, Running]] = {}
        # mid and high as points in time, is_limit, and until when they are valid
        self._times_by_gang: dict[GangId, tuple[float, float, bool, float]] = {}
        self._ends: dict[GangId, RunEnd] = {}  # as of now
        # each history with the keys by which it was looked up
        self._histories: dict[HistoryKey, tuple[Sequence[str], DurationHistory]] = {}
        self._keys_by_history: dict[str, set[HistoryKey]] = {}  # history keys that were looked up by each key
        # gangs that are estimated from one history
        self._gangs_by_key: dict[HistoryKey, dict[GangId, None]] = {}
        self._key_of: dict[GangId, HistoryKey] = {}
        self._number_by_key: dict[HistoryKey, int] = {}
        self._next_number = 0
        # by slot: the number of its history key; NO_HISTORY if the end is not estimated from a history
        self._number_by_slot: Ints = np.zeros(64, np.int64)
        self._sorted_ends: list[RunEnd] | None = None
        self._slots: dict[GangId, int] = {}
        self._gangs: list[GangId | None] = []  # by slot
        self._free_slots: list[int] = []
        # MID, HIGH, VALID_UNTIL by slot, as points in time
        self._times: Floats = np.zeros((3, 64))
        # by slot: the start as a point in time, and the time limit or infinity
        self._start_and_limit: Floats = np.zeros((2, 64))
        self._allocations = AllocationTable()
        # see `_rows_of`
        self._row_cache: tuple[Sequence[NodeId], dict[NodeId, int], dict[NodeId, int], Ints] | None = None
        self._releases: tuple[Sequence[NodeId], ReleaseSchedule] | None = None
        self._changed_nodes: set[NodeId] = set()  # nodes whose releases changed since

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
        estimates = cls(durations, now, grace_s=grace_s, pick_s=pick_s, progress=progress)
        estimates.add_all({run.gang.id: run for run in running}.values())
        return estimates

    @property
    def grace_s(self) -> float:
        """Returns the time within which a preempted run ends."""
        return self._grace_s

    @property
    def now(self) -> float:
        """Returns the current time as a POSIX timestamp."""
        return self._now

    def add(self, running: Running) -> None:
        """Adds a gang that holds resources, or updates it."""
        self.add_all((running,))

    def add_all(self, runs: Collection[Running]) -> None:
        """Calls `add` for each; no gang may occur twice."""
        slots, numbers, start_times, limits = [], [], [], []
        for running in runs:
            gang = running.gang.id
            self.drop(gang)
            self._running[gang] = running
            key = self._key_of[gang] = history_key(running.gang)
            self._gangs_by_key.setdefault(key, {})[gang] = None
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
            if key not in self._number_by_key:
                self._number_by_key[key], self._next_number = self._next_number, self._next_number + 1
            without_history = (
                running.stopping
                or self._pick_s is not None
                or gang in self._progress
                or running.gang.served_s > 0
            )
            slots.append(slot)
            numbers.append(NO_HISTORY if without_history else self._number_by_key[key])
            start_times.append(_began_at(running))
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
            start_times,
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
        history_key = self._key_of.pop(gang)
        del self._gangs_by_key[history_key][gang]
        if not self._gangs_by_key[history_key]:
            del self._gangs_by_key[history_key], self._number_by_key[history_key]
            self._drop_history(history_key)
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
        """Moves the time forward and updates the histories. If the clock was set back, cached estimates are
        dropped."""
        self._grace_s = max(grace_s, OVERDUE_WINDOW_S)
        previous_durations, self._durations = self._durations, durations
        previous_now, self._now, self._sorted_ends = self._now, now.timestamp(), None
        self._ends.clear()
        if self._now < previous_now:
            self._times_by_gang.clear()
            self._times[VALID_UNTIL, [*self._slots.values()]] = -np.inf
        if durations is not previous_durations:
            self._drop_outdated(previous_durations)

    def _drop_outdated(self, previous: Mapping[str, Sequence[float]]) -> None:
        """Drops cached estimates of gangs whose history changed."""
        current = self._durations
        changed = [key for key, samples in current.items() if previous.get(key) is not samples]
        changed += [key for key in previous if key not in current]
        for history_key in {
            history_key for key in changed for history_key in self._keys_by_history.get(key, ())
        }:
            self._drop_history(history_key)
            for gang in self._gangs_by_key[history_key]:
                self._times_by_gang.pop(gang, None)
            self._times[
                VALID_UNTIL, [self._slots[gang] for gang in self._gangs_by_key[history_key]]
            ] = -np.inf

    def _drop_history(self, history_key: HistoryKey) -> None:
        cached = self._histories.pop(history_key, None)
        for key in cached[0] if cached is not None else ():
            self._keys_by_history[key].discard(history_key)
            if not self._keys_by_history[key]:
                del self._keys_by_history[key]

    def releases(self, nodes: Sequence[NodeId]) -> ReleaseSchedule:
        """Returns what is released on each of these nodes, and when. Valid until a run changes or the time
        advances."""
        self._refresh_times()
        cached = self._releases
        if (
            cached is not None
            and cached[0] is nodes
            and len(self._changed_nodes) * MAX_CHANGED_FRACTION <= len(nodes)
        ):
            index, _ = self._rows_of(nodes)
            changed_rows = np.array(
                sorted(index[node] for node in self._changed_nodes if node in index), np.int64
            )
            if not len(changed_rows) or cached[1].replace_nodes(
                changed_rows, *self.replica_releases(nodes, changed_rows)
            ):
                self._changed_nodes.clear()
                return cached[1]
        schedule = ReleaseSchedule(len(nodes), *self.replica_releases(nodes))
        self._releases = nodes, schedule
        self._changed_nodes.clear()
        return schedule

    def replica_releases(
        self, nodes: Sequence[NodeId], indices: Ints | None = None
    ) -> tuple[Ints, Floats, Ints]:
        """Returns three values for each replica on these nodes: the index of its node, the expected end as a
        point in time, and the released resources (rows: thousandths of cores, bytes, thousandths of GPUs).
        indices: limits the result to the nodes at these indices."""
        self._refresh_times()
        (_, rows), allocations = self._rows_of(nodes), self._allocations.columns
        if indices is not None:
            selected = np.zeros(len(nodes) + 1, np.bool_)
            selected[indices] = True
            rows = np.where(selected[rows], rows, -1)
        row = rows[allocations[NODE]]
        replicas = np.flatnonzero(row >= 0)
        return row[replicas], self._times[MID, allocations[SLOT, replicas]], allocations[CPU:, replicas]

    def _mark_changed(self, running: Running) -> None:
        """Records that the releases of this run's nodes changed."""
        if self._releases is not None:
            self._changed_nodes.update([assignment.node for assignment in running.placement.assignments])

    def _rows_of(self, nodes: Sequence[NodeId]) -> tuple[dict[NodeId, int], Ints]:
        """Returns the index of each node, and for each node of the allocation table and for NO_NODE, its
        index among `nodes`, -1 if it is not in it."""
        cached, allocated_nodes = self._row_cache, self._allocations.nodes
        if (
            cached is None
            or cached[0] is not nodes
            or cached[1] is not allocated_nodes
            or len(cached[3]) != len(allocated_nodes) + 1
        ):
            index = {node: row for row, node in enumerate(nodes)}
            cached = self._row_cache = (
                nodes,
                allocated_nodes,
                index,
                np.array([*(index.get(node, -1) for node in allocated_nodes), NO_NODE], np.int64),
            )
        return cached[2:]

    def ends(self) -> Sequence[RunEnd]:
        """Returns all ends, sorted by expected end, then id."""
        if self._sorted_ends is None:
            self._sorted_ends = sorted((self._end_of(run) for run in self._running.values()), key=_end_order)
        return self._sorted_ends

    def ended_by(self, within_s: float) -> tuple[list[Placement], float]:
        """Returns the placements of the runs that end within this time even at the upper end of their
        estimates, and the seconds until the last of these ends."""
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
        runs = {gang: run for node in nodes for gang, run in self._running_by_node.get(node, {}).items()}
        return sorted((self._end_of(run) for run in runs.values()), key=_end_order)

    def end(self, gang: GangId) -> RunEnd | None:
        running = self._running.get(gang)
        return self._end_of(running) if running else None

    def running(self, gang: GangId) -> Running | None:
        return self._running.get(gang)

    def placed_since(self, gang: GangId, since: datetime) -> bool:
        """Returns whether a gang that holds resources was placed after that time."""
        return self._running[gang].placed_at > since

    def latest_end_s(self, gang: GangId, as_of: datetime) -> float:
        """Returns the seconds until the latest expected end of a gang that holds resources. The estimate is
        made as of that time (or of its placement, if later), with the current history. A run that was asked
        to stop since is expected to have ended. A run that was still starting at that time counts from its
        placement."""
        running = self._running[gang]
        if running.stopping and running.preempt_requested_at is not None:
            return 0.0
        had_started = running.started_at is not None and running.started_at <= as_of
        began_at = _began_at(running) if had_started else running.placed_at.timestamp()
        expected, _ = estimate_total_from(
            running.gang, self._history_of(running.gang), max(as_of.timestamp() - began_at, 0.0)
        )
        return began_at + expected.high_s - self._now

    def _refresh_times(self) -> None:
        """Recomputes estimates that are no longer valid. Many gangs with the same history are computed
        together."""
        stale = np.flatnonzero(self._times[VALID_UNTIL, : len(self._gangs)] <= self._now)
        for slots, number in (
            self._slots_by_number(stale) if len(stale) > MAX_SCALAR_REFRESH else ((stale, NO_HISTORY),)
        ):
            history = (
                None
                if number == NO_HISTORY or len(slots) <= MAX_SCALAR_REFRESH
                else self._history_of(self._running_at_slot(int(slots[0])).gang)
            )
            remaining = (
                slots if history is None or not history.seconds else self._refresh_group(slots, history)
            )
            for slot in remaining.tolist():
                self._end_of(self._running_at_slot(slot))

    def _slots_by_number(self, slots: Ints) -> Iterator[tuple[Ints, int]]:
        numbers = self._number_by_slot[slots]
        for number in np.unique(numbers).tolist():
            yield slots[numbers == number], number

    def _refresh_group(self, slots: Ints, history: DurationHistory) -> Ints:
        """Updates gangs with this history, and returns the slots for which the history gives no estimate."""
        start_times, limit_s = self._start_and_limit[:, slots]
        mid_s, high_s, until_s = history.bands_after(np.maximum(self._now - start_times, 0.0))
        is_known = ~np.isnan(mid_s)
        high_s = np.where(np.isfinite(limit_s), limit_s, np.minimum(high_s, MAX_DURATION_S))
        totals_s = np.array([np.minimum(np.minimum(mid_s, MAX_DURATION_S), limit_s), high_s, until_s])
        remaining: Ints = slots[~is_known]
        slots = slots[is_known]
        previous_mid = self._times[MID, slots]
        self._times[:, slots] = (start_times + totals_s)[:, is_known]
        for slot in (
            slots[self._times[MID, slots] != previous_mid].tolist() if self._releases is not None else ()
        ):
            self._mark_changed(self._running_at_slot(slot))
        return remaining

    def _running_at_slot(self, slot: int) -> Running:
        gang = self._gangs[slot]
        assert gang is not None
        return self._running[gang]

    def _history_of(self, gang: Gang) -> DurationHistory:
        history_key = self._key_of[gang.id]
        cached = self._histories.get(history_key)
        if cached is None:
            levels, keys = most_specific_history(history_keys(gang), self._durations)
            cached = self._histories[history_key] = keys, history_from_levels(levels)
            for key in keys:
                self._keys_by_history.setdefault(key, set()).add(history_key)
        return cached[1]

    def _end_of(self, running: Running) -> RunEnd:
        gang = running.gang.id
        end = self._ends.get(gang)
        if end is None:
            end = self._ends[gang] = self._compute_end(running)
        return end

    def _compute_end(self, running: Running) -> RunEnd:
        gang = running.gang
        if running.stopping:
            stop = self._stop_estimate(running)
            # The estimate stays stable while a run takes longer to stop than is usual.
            mid_s, high_s = min(EXPECTED_STOP_S, stop.high_s), stop.high_s
            if self._pick_s is not None:
                mid_s = high_s = self._pick_s(stop)
            self._set_times(running, self._now + mid_s, self._now + high_s, self._now)
            return RunEnd(running.placement, mid_s, high_s)
        cached = self._times_by_gang.get(gang.id)
        if cached is None or cached[3] <= self._now:
            began_at, ran_s = _began_at(running), self._now - _began_at(running)
            # The estimate also stays stable while a run is being started: it counts from its placement.
            if self._pick_s is not None and running.started_at is None and ran_s > EXPECTED_START_S:
                began_at, ran_s = self._now + self._pick_s(_start_estimate(ran_s)), 0.0
            expected, until_s = estimate_total_from(gang, self._history_of(gang), ran_s)
            progress = self._progress.get(gang.id)
            if progress is not None:
                expected, until_s = estimate_from_progress(gang, progress, ran_s), MAX_DURATION_S
            if self._pick_s is not None:
                expected = exact_estimate(self._pick_s(expected))
            cached = (
                began_at + expected.mid_s,
                began_at + expected.high_s,
                expected.is_limit,
                began_at + until_s,
            )
            self._times_by_gang[gang.id] = cached
            self._set_times(running, cached[0], cached[1], cached[3])
        mid_s, high_s = (
            max(cached[0] - self._now, OVERDUE_WINDOW_S),
            max(cached[1] - self._now, OVERDUE_WINDOW_S),
        )
        return RunEnd(running.placement, mid_s, max(mid_s, high_s), cached[2])

    def _set_times(self, running: Running, mid: float, high: float, until: float) -> None:
        slot = self._slots[running.gang.id]
        if self._times[MID, slot] != mid:
            self._mark_changed(running)
        self._times[:, slot] = mid, high, until

    def _stop_estimate(self, running: Running) -> DurationEstimate:
        """Estimates when a run that was asked to stop ends. A run that takes longer than is usual is expected
        to take as long again, up to the end of its grace period."""
        elapsed_s = (
            0.0
            if running.preempt_requested_at is None
            else max(self._now - running.preempt_requested_at.timestamp(), 0.0)
        )
        grace_s = PREEMPT_GRACE_S if running.preempted_for is None else self._grace_s
        high_s = max(grace_s - elapsed_s, OVERDUE_WINDOW_S)
        return DurationEstimate(OVERDUE_WINDOW_S, min(max(EXPECTED_STOP_S, elapsed_s), high_s), high_s)


def history_key(gang: Gang) -> HistoryKey:
    """Returns the key of a gang's history: gangs with the same key have the same history (see
    `domain.duration_keys.history_keys`). The user matters only if the script is known."""
    return gang.user if gang.script else "", gang.script, gang.queue, total_gpus(gang)


def _began_at(running: Running) -> float:
    return (running.started_at or running.placed_at).timestamp()


def _start_estimate(placed_s: float) -> DurationEstimate:
    """Estimates the seconds until the processes of a run start that was placed `placed_s` ago."""
    return DurationEstimate(0.0, placed_s, MAX_START_FACTOR * placed_s)


def _end_order(end: RunEnd) -> tuple[float, GangId]:
    return end.mid_s, end.placement.gang.id
