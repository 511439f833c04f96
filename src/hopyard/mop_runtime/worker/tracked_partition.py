"""A partition as a unit sees it: its reads report progress and can stop the unit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hopyard.datasets.partitions.partition import ColumnSource, Partition
from hopyard.datasets.partitions.reader import PartitionReader

OnRows = Callable[[int], None]
"""Called with the number of rows that are about to be used. May raise an exception to stop the unit."""


class TrackedPartition(Partition):
    """The same partition, with the same columns in memory."""

    def __init__(self, partition: Partition, on_rows: OnRows) -> None:
        vars(self).update(vars(partition))
        self._on_rows, self._tracked = on_rows, partition

    def __getitem__(self, column: str) -> Any:
        self._on_rows(0)
        return self._tracked[column]

    def batches(
        self,
        size: int,
        seed: int | None = None,
        drop_last: bool = False,
        *,
        columns: Sequence[str] | None = None,
        steps: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        for batch in self._tracked.batches(size, seed, drop_last, columns=columns, steps=steps):
            self._on_rows(len(next(iter(batch.values()))) if batch else 0)
            yield batch

    def rows(self, positions: Any, columns: Sequence[str] | None = None) -> dict[str, Any]:
        self._on_rows(len(positions) if hasattr(positions, "__len__") else 1)
        return self._tracked.rows(positions, columns)

    def view(self, **sources: ColumnSource) -> Partition:
        return TrackedPartition(self._tracked.view(**sources), self._on_rows)

    def like(self, reader: PartitionReader, *, what: str) -> Partition:
        return TrackedPartition(self._tracked.like(reader, what=what), self._on_rows)
