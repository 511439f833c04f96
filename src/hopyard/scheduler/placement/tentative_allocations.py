"""Temporary allocations of a search, which are released at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hopyard.domain.gang import Assignment
from hopyard.domain.resources import Resources
from hopyard.scheduler.placement.free_resources import FreeResources


class TentativeAllocations:
    """Of one Free, whose Rankings are not told: all is given back before anybody else asks them."""

    def __init__(self, free: FreeResources) -> None:
        self._free = free
        self._allocations: list[tuple[Resources, Assignment]] = []

    def __len__(self) -> int:
        return len(self._allocations)

    def add(self, request: Resources, assignment: Assignment) -> None:
        """One replica that asks for this."""
        self._allocations.append((request, assignment))
        self._apply(request, assignment, 1)

    def release_since(self, length: int) -> int:
        """All that was booked since so many were; how many that is."""
        since = self._allocations[length:]
        del self._allocations[length:]
        for request, assignment in since:
            self._apply(request, assignment, -1)
        return len(since)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Releases all temporary allocations inside the block."""
        for request, assignment in self._allocations:
            self._apply(request, assignment, -1)
        yield
        for request, assignment in self._allocations:
            self._apply(request, assignment, 1)

    def _apply(self, request: Resources, assignment: Assignment, sign: int) -> None:
        ground = self._free.node_table
        row = ground.row_of[assignment.node]
        columns = tuple([ground.gpu_column_of[row][index] for index in assignment.gpus])
        self._free.allocate(row, request, columns, assignment.gpu_milli, sign)
