"""One row of numbers for each node, in a table of which copies share all rows that neither of them has
changed since."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopyard.scheduler.placement.ground import Ints

Halves = NDArray[np.float32]  # of whole numbers below 2^24: exact
SPARE = 4  # one row in so many, and a few, can change before a table is laid out anew
A_FEW = 64


class Table:
    """A copy costs an index of one number for each node, a change of one row that a copy has, too, one more
    row.

    Copies may be used in different threads, each of them in one.
    """

    def __init__(self, rows: Halves) -> None:
        self._lay_out(rows)

    def _lay_out(self, rows: Halves) -> None:
        count = len(rows)
        self._pool = _Pool(rows)
        self._at: Ints = np.arange(count)
        self._mine = 0  # rows of the pool from here on that `_at` names are in no other table

    def copy(self) -> Table:
        found = object.__new__(Table)
        found._pool, found._at = self._pool, self._at.copy()
        found._mine = self._mine = self._pool.used
        return found

    def take(self, rows: Ints) -> Halves:
        """Of these nodes; the caller's own."""
        return self._pool.rows.take(self._at[rows], 0)

    def put(self, rows: Ints, values: Halves) -> None:
        """Of these nodes, each of which is named once."""
        at = self._at[rows]
        shared = at < self._mine
        new = self._pool.take(int(np.count_nonzero(shared)))
        if new is None:
            self._lay_out(self._pool.rows.take(self._at, 0))
            at = rows
        elif new:
            at[shared] = new
            self._at[rows] = at
        self._pool.rows[at] = values

    def put_one(self, row: int, values: Halves) -> None:
        at = self._own(row)  # which may lay out the table anew
        self._pool.rows[at] = values

    def change(self, row: int, by: Halves) -> None:
        """Add so much to the numbers of one node."""
        after = self._pool.rows[self._at.item(row)] + by
        self.put_one(row, after)

    def _own(self, row: int) -> int:
        """Where the numbers of a node stand from now on that no other table has."""
        at: int = self._at.item(row)
        if at >= self._mine:
            return at
        new = self._pool.take(1)
        if new is None:
            self._lay_out(self._pool.rows.take(self._at, 0))
            return row
        self._at[row] = new[0]
        return new[0]


class _Pool:
    """Rows of several tables, those that are used first."""

    def __init__(self, rows: Halves) -> None:
        count = len(rows)
        self.rows: Halves = np.empty((count + count // SPARE + A_FEW, rows.shape[1]), rows.dtype)
        self.rows[:count] = rows
        # the next one last: to pop it is one step for all threads
        self._spare = list(range(len(self.rows) - 1, count - 1, -1))

    @property
    def used(self) -> int:
        """Rows from here on are in no table yet."""
        return len(self.rows) - len(self._spare)

    def take(self, count: int) -> list[int] | None:
        """So many rows more, each larger than all before; None where there are not."""
        try:
            return [self._spare.pop() for _ in range(count)]
        except IndexError:
            return None
