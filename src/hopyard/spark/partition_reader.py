"""Reads a worker's own partition of the data that `partition_writer` wrote, from any store."""

from __future__ import annotations

from typing import Any

from hopyard.datasets.partitions.arrays import concatenate
from hopyard.datasets.partitions.arrow import to_array
from hopyard.datasets.partitions.partition import Kind, Partition
from hopyard.datasets.partitions.reader import ArrayReader
from hopyard.domain.study import PartitionPlan
from hopyard.errors import SpecError
from hopyard.spark.partition_writer import StoredFrame, column_names


class StoredPartitions:
    """Opens partitions of `stored`. The label is available as `y` too, and several numeric features as the
    matrix `x`."""

    def __init__(self, stored: StoredFrame, plan: PartitionPlan) -> None:
        self._stored, self._plan = stored, plan

    def open(self, index: int, kind: Kind = "train", /) -> Partition:
        """Reads the whole partition into memory. Raises SpecError if it is missing, or the store cannot be
        reached."""
        stored = self._stored
        rows = stored.train_rows if kind == "train" else stored.validation_rows
        arrays: dict[str, list[Any]] = {}
        for path, table in stored.store.tables(stored.chunks_of(kind, index)):
            for name, column in zip(
                (*stored.features, stored.label), column_names(len(stored.features) + 1), strict=True
            ):
                arrays.setdefault(name, []).append(to_array(table[column].combine_chunks(), path, name))
        reader = ArrayReader({name: concatenate(parts) for name, parts in arrays.items()})
        if reader.rows != rows[index]:
            raise SpecError(
                f"{stored.store.url}: {kind} partition {index} has {reader.rows:,} rows, and "
                f"{rows[index]:,} were written"
            )
        partition = Partition(reader, index=index, peers=rows, kind=kind, key=f"{stored.key}:{kind}:{index}")
        return as_model_columns(partition, stored.features, stored.label)


def as_model_columns(partition: Partition, features: tuple[str, ...], label: str) -> Partition:
    """Adds `x` and `y`, which trainables use."""
    return partition.view(x=features if len(features) > 1 else features[0], y=label)
