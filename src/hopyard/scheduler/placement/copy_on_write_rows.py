"""A table with one row of numbers per node. Copies share all rows that neither of them has changed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopyard.scheduler.placement.node_table import Ints

Floats32 = NDArray[np.float32]  # of whole numbers below 2^24: exact
SPARE_ROW_FRACTION = 4  # one row in so many, and a few, can change before a table is laid out anew
MIN_SPARE_ROWS = 64


class CopyOnWriteRows:
    """A copy costs an index of one number for each node, a change of one row that a copy has, too, one more
    row.

    Copies may be used in different threads, each of them in one.
    """

    def __init__(self, rows: Floats32) -> None:
        self._rebuild(rows)

    def _rebuild(self, rows: Floats32) -> None:
        count = len(rows)
        self._pool = _RowPool(rows)
        self._row_index: Ints = np.arange(count)
        self._first_own_row = 0  # rows of the pool from here on that `_at` names are in no other table

    def copy(self) -> CopyOnWriteRows:
        found = object.__new__(CopyOnWriteRows)
        found._pool, found._row_index = self._pool, self._row_index.copy()
        found._first_own_row = self._first_own_row = self._pool.used_count
        return found

    def read(self, rows: Ints) -> Floats32:
        """Of these nodes; the caller's own."""
        return self._pool.rows.take(self._row_index[rows], 0)

    def write(self, rows: Ints, values: Floats32) -> None:
        """Of these nodes, each of which is named once."""
        at = self._row_index[rows]
        shared = at < self._first_own_row
        new = self._pool.claim(int(np.count_nonzero(shared)))
        if new is None:
            self._rebuild(self._pool.rows.take(self._row_index, 0))
            at = rows
        elif new:
            at[shared] = new
            self._row_index[rows] = at
        self._pool.rows[at] = values

    def write_one(self, row: int, values: Floats32) -> None:
        at = self._own_row(row)  # which may lay out the table anew
        self._pool.rows[at] = values

    def add_to(self, row: int, delta: Floats32) -> None:
        """Add so much to the numbers of one node."""
        after = self._pool.rows[self._row_index.item(row)] + delta
        self.write_one(row, after)

    def _own_row(self, row: int) -> int:
        """Where the numbers of a node stand from now on that no other table has."""
        at: int = self._row_index.item(row)
        if at >= self._first_own_row:
            return at
        new = self._pool.claim(1)
        if new is None:
            self._rebuild(self._pool.rows.take(self._row_index, 0))
            return row
        self._row_index[row] = new[0]
        return new[0]


class _RowPool:
    """Rows of several tables, those that are used first."""

    def __init__(self, rows: Floats32) -> None:
        count = len(rows)
        self.rows: Floats32 = np.empty(
            (count + count // SPARE_ROW_FRACTION + MIN_SPARE_ROWS, rows.shape[1]), rows.dtype
        )
        self.rows[:count] = rows
        # the next one last: to pop it is one step for all threads
        self._unused_rows = list(range(len(self.rows) - 1, count - 1, -1))

    @property
    def used_count(self) -> int:
        """Rows from here on are in no table yet."""
        return len(self.rows) - len(self._unused_rows)

    def claim(self, count: int) -> list[int] | None:
        """So many rows more, each larger than all before; None where there are not."""
        try:
            return [self._unused_rows.pop() for _ in range(count)]
        except IndexError:
            return None
