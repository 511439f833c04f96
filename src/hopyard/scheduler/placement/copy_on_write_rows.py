"""A table with one row of numbers per node. Copies share all rows that neither of them has changed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopyard.scheduler.placement.node_table import Ints

Floats32 = NDArray[np.float32]  # of whole numbers below 2^24: exact
SPARE_ROW_FRACTION = 4  # one row in this many, plus MIN_SPARE_ROWS, can change before a table is rebuilt
MIN_SPARE_ROWS = 64


class CopyOnWriteRows:
    """A copy costs one index per node. The first change of a shared row costs one more row.

    Different threads may use different copies; each copy belongs to one thread.
    """

    def __init__(self, rows: Floats32) -> None:
        self._rebuild(rows)

    def _rebuild(self, rows: Floats32) -> None:
        count = len(rows)
        self._pool = _RowPool(rows)
        self._row_index: Ints = np.arange(count)
        self._first_own_row = 0  # pool rows of `_row_index` from this one on are in no other table

    def copy(self) -> CopyOnWriteRows:
        result = object.__new__(CopyOnWriteRows)
        result._pool, result._row_index = self._pool, self._row_index.copy()
        result._first_own_row = self._first_own_row = self._pool.used_count
        return result

    def read(self, rows: Ints) -> Floats32:
        """Returns a copy of the rows of these nodes."""
        return self._pool.rows.take(self._row_index[rows], 0)

    def write(self, rows: Ints, values: Floats32) -> None:
        """Writes the rows of these nodes. Each node occurs once."""
        pool_rows = self._row_index[rows]
        shared = pool_rows < self._first_own_row
        claimed = self._pool.claim(int(np.count_nonzero(shared)))
        if claimed is None:
            self._rebuild(self._pool.rows.take(self._row_index, 0))
            pool_rows = rows
        elif claimed:
            pool_rows[shared] = claimed
            self._row_index[rows] = pool_rows
        self._pool.rows[pool_rows] = values

    def write_one(self, row: int, values: Floats32) -> None:
        pool_row = self._own_row(row)  # this may rebuild the table
        self._pool.rows[pool_row] = values

    def add_to(self, row: int, delta: Floats32) -> None:
        """Adds `delta` to the row of one node."""
        values = self._pool.rows[self._row_index.item(row)] + delta
        self.write_one(row, values)

    def _own_row(self, row: int) -> int:
        """Returns a pool row of this node that no other table uses; claims one if needed."""
        pool_row: int = self._row_index.item(row)
        if pool_row >= self._first_own_row:
            return pool_row
        claimed = self._pool.claim(1)
        if claimed is None:
            self._rebuild(self._pool.rows.take(self._row_index, 0))
            return row
        self._row_index[row] = claimed[0]
        return claimed[0]


class _RowPool:
    """The rows of several tables; used rows come first."""

    def __init__(self, rows: Floats32) -> None:
        count = len(rows)
        self.rows: Floats32 = np.empty(
            (count + count // SPARE_ROW_FRACTION + MIN_SPARE_ROWS, rows.shape[1]), rows.dtype
        )
        self.rows[:count] = rows
        # the next row is last: `pop` is atomic for all threads
        self._unused_rows = list(range(len(self.rows) - 1, count - 1, -1))

    @property
    def used_count(self) -> int:
        """Returns the number of used rows: rows from this one on are in no table."""
        return len(self.rows) - len(self._unused_rows)

    def claim(self, count: int) -> list[int] | None:
        """Returns `count` new rows, each larger than all used ones; None if there are not enough."""
        try:
            return [self._unused_rows.pop() for _ in range(count)]
        except IndexError:
            return None
