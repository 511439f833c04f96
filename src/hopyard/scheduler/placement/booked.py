"""What a search takes while it looks on, and gives back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hopyard.domain.gang import Assignment
from hopyard.domain.resources import Resources
from hopyard.scheduler.placement.free import Free


class Booked:
    """Of one Free, whose Rankings are not told: all is given back before anybody else asks them."""

    def __init__(self, free: Free) -> None:
        self._free = free
        self._booked: list[tuple[Resources, Assignment]] = []

    def __len__(self) -> int:
        return len(self._booked)

    def add(self, request: Resources, assignment: Assignment) -> None:
        """One replica that asks for this."""
        self._booked.append((request, assignment))
        self._use(request, assignment, 1)

    def give_back(self, before: int) -> int:
        """All that was booked since so many were; how many that is."""
        since = self._booked[before:]
        del self._booked[before:]
        for request, assignment in since:
            self._use(request, assignment, -1)
        return len(since)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The Free as if nothing were booked."""
        for request, assignment in self._booked:
            self._use(request, assignment, -1)
        yield
        for request, assignment in self._booked:
            self._use(request, assignment, 1)

    def _use(self, request: Resources, assignment: Assignment, sign: int) -> None:
        ground = self._free.ground
        row = ground.row[assignment.node]
        columns = tuple([ground.column[row][index] for index in assignment.gpus])
        self._free.use(row, request, columns, assignment.gpu_milli, sign)
