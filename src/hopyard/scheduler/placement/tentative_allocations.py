"""Tentative allocations of a search, which are released at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hopyard.domain.gang import Assignment
from hopyard.domain.resources import Resources
from hopyard.scheduler.placement.free_resources import FreeResources


class TentativeAllocations:
    """Tentative allocations on one FreeResources. The score cache does not record them, because all are
    released before other code uses the scores."""

    def __init__(self, free: FreeResources) -> None:
        self._free = free
        self._allocations: list[tuple[Resources, Assignment]] = []

    def __len__(self) -> int:
        return len(self._allocations)

    def add(self, request: Resources, assignment: Assignment) -> None:
        """Allocates one replica with this request."""
        self._allocations.append((request, assignment))
        self._apply(request, assignment, 1)

    def release_since(self, length: int) -> int:
        """Releases all allocations after the first `length`, and returns their number."""
        released = self._allocations[length:]
        del self._allocations[length:]
        for request, assignment in released:
            self._apply(request, assignment, -1)
        return len(released)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Releases all tentative allocations inside the block."""
        for request, assignment in self._allocations:
            self._apply(request, assignment, -1)
        yield
        for request, assignment in self._allocations:
            self._apply(request, assignment, 1)

    def _apply(self, request: Resources, assignment: Assignment, sign: int) -> None:
        node_table = self._free.node_table
        row = node_table.row_of[assignment.node]
        columns = tuple([node_table.gpu_column_of[row][index] for index in assignment.gpus])
        self._free.allocate(row, request, columns, assignment.gpu_milli, sign)
