"""States at points in the future, computed without replaying all events each time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from hopyard.domain.gang import Placement
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.quota.quota_usage import QuotaUsage

StateT = TypeVar("StateT", Capacity, QuotaUsage)
MIN_SNAPSHOT_STEP, MAX_SNAPSHOTS = 32, 48


class LazySnapshots(Generic[StateT]):
    """Copies of a state after regular numbers of ends, made on first use.

    ends: sorted, in seconds from now, each with its released placement. apply, undo: charge a placement to a
    state, and undo that.
    """

    def __init__(
        self,
        now: StateT,
        ends: Sequence[tuple[float, Placement]],
        apply: Callable[[StateT, Placement], None],
        undo: Callable[[StateT, Placement], None],
    ) -> None:
        self.times = [at_s for at_s, _ in ends]
        self.added: list[tuple[float, Placement]] = []  # placements started since, each with its end
        self._ends = ends
        self._apply: Callable[[StateT, Placement], None] = apply
        self._undo: Callable[[StateT, Placement], None] = undo
        self._step = max(MIN_SNAPSHOT_STEP, len(ends) // MAX_SNAPSHOTS)
        self._snapshots: list[StateT] = [now.copy()]

    def state_at(self, at_s: float) -> StateT:
        """Returns the state after all ends until then. The caller owns the result."""
        count = bisect_right(self.times, at_s)
        while len(self._snapshots) <= count // self._step:
            last_index = len(self._snapshots) - 1
            self._snapshots.append(
                self._replay(
                    self._snapshots[last_index].copy(), last_index * self._step, (last_index + 1) * self._step
                )
            )
        snapshot_index = count // self._step
        state = self._replay(self._snapshots[snapshot_index].copy(), snapshot_index * self._step, count)
        for until_s, placement in self.added:
            if until_s > at_s:
                self._apply(state, placement)
        return state

    def _replay(self, state: StateT, begin: int, end: int) -> StateT:
        for _, placement in self._ends[begin:end]:
            self._undo(state, placement)
        return state
