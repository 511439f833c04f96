"""A partition as a unit sees it: what it reads shows how far it is, and is where it can be stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hopyard.datasets.partitions.partition import Partition, Source
from hopyard.datasets.partitions.reader import Reader

Seen = Callable[[int], None]
"""Told how many rows are about to be used. May raise, to stop the unit."""


class Watched(Partition):
    """The same partition, with the same columns in memory."""

    def __init__(self, partition: Partition, seen: Seen) -> None:
        vars(self).update(vars(partition))
        self._seen, self._of = seen, partition

    def __getitem__(self, column: str) -> Any:
        self._seen(0)
        return self._of[column]

    def batches(
        self,
        size: int,
        seed: int | None = None,
        drop_last: bool = False,
        *,
        columns: Sequence[str] | None = None,
        steps: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        for batch in self._of.batches(size, seed, drop_last, columns=columns, steps=steps):
            self._seen(len(next(iter(batch.values()))) if batch else 0)
            yield batch

    def rows(self, positions: Any, columns: Sequence[str] | None = None) -> dict[str, Any]:
        self._seen(len(positions) if hasattr(positions, "__len__") else 1)
        return self._of.rows(positions, columns)

    def view(self, **sources: Source) -> Partition:
        return Watched(self._of.view(**sources), self._seen)

    def like(self, reader: Reader, *, what: str) -> Partition:
        return Watched(self._of.like(reader, what=what), self._seen)
