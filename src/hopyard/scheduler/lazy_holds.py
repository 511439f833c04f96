"""Why gangs wait, as a sequence that is built when it is read: most plans are compared and not read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence, Set
from typing import overload

from hopyard.domain.cluster import Hold
from hopyard.domain.gang import Gang
from hopyard.domain.ids import GangId


class LazyHolds(Sequence[Hold]):
    """One hold for each gang that waits and was not placed."""

    def __init__(self, pending: Sequence[Gang], placed: Set[GangId]) -> None:
        self._pending, self._placed = pending, placed
        self._holds: tuple[Hold, ...] | None = None

    @abstractmethod
    def _build_holds(self) -> Iterator[Hold]: ...

    def __len__(self) -> int:
        return len(self._pending) - len(self._placed)

    @overload
    def __getitem__(self, index: int) -> Hold: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Hold]: ...
    def __getitem__(self, index: int | slice) -> Hold | Sequence[Hold]:
        return self._materialize()[index]

    def __iter__(self) -> Iterator[Hold]:
        return iter(self._materialize())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return self is other or self._materialize() == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} holds>"

    def _materialize(self) -> tuple[Hold, ...]:
        if self._holds is None:
            self._holds = tuple(self._build_holds())
        return self._holds
