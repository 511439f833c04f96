"""What will be free, or allowed, at a point in the future, without walking there anew each time it is
asked."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from hopyard.domain.gang import Placement
from hopyard.scheduler.fairness.accounts import Accounts
from hopyard.scheduler.placement.capacity import Capacity

S = TypeVar("S", Capacity, Accounts)
SMALLEST_STEP, RUNGS = 32, 48


class Ladder(Generic[S]):
    """Copies of a state, one every so many ends, made when they are first needed.

    ends: sorted, in seconds from now, with what is given back then. use, free: book a placement in a state
    and undo it.
    """

    def __init__(
        self,
        now: S,
        ends: Sequence[tuple[float, Placement]],
        use: Callable[[S, Placement], None],
        free: Callable[[S, Placement], None],
    ) -> None:
        self.times = [at_s for at_s, _ in ends]
        self.started: list[tuple[float, Placement]] = []  # what was started since, and until when it is there
        self._ends = ends
        self._use: Callable[[S, Placement], None] = use
        self._free: Callable[[S, Placement], None] = free
        self._step = max(SMALLEST_STEP, len(ends) // RUNGS)
        self._rungs: list[S] = [now.copy()]

    def at(self, at_s: float) -> S:
        """The state when all that ends until then has ended. It is the caller's own."""
        count = bisect_right(self.times, at_s)
        while len(self._rungs) <= count // self._step:
            below = len(self._rungs) - 1
            self._rungs.append(
                self._climbed(self._rungs[below].copy(), below * self._step, (below + 1) * self._step)
            )
        rung = count // self._step
        found = self._climbed(self._rungs[rung].copy(), rung * self._step, count)
        for until_s, placement in self.started:
            if until_s > at_s:
                self._use(found, placement)
        return found

    def _climbed(self, state: S, first: int, end: int) -> S:
        for _, placement in self._ends[first:end]:
            self._free(state, placement)
        return state
