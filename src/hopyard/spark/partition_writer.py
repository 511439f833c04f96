"""Writes any DataFrame as partitioned Parquet to a store: once, with one partition per worker.

The partition of a row depends only on the row's content (a hash of all its columns) and the seed. It does not
depend on Spark's layout of the frame, so a recomputed frame gives equal partitions.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hopyard.errors import SpecError
from hopyard.spark.columns import (
    MissingValueCounter,
    check_columns,
    expand_vectors,
    is_vector,
    label_kind,
    quote_column,
)
from hopyard.spark.stores.store import PART, SPLIT, Chunk, Store

TRAIN, VALIDATION = "train", "validation"
_LOT_COLUMN = "hop_lot"
_LOT_COUNT = 1 << 20  # the number of lots; rows with the lowest lots are validation data


@dataclass(frozen=True, slots=True)
class StoredFrame:
    """features, label: columns. chunks: the files on the store. key: identifies frame, columns and seed in
    caches of derived data. label_kind: `whole` for one integer per row, which may be a class."""

    store: Store
    features: tuple[str, ...]
    label: str
    chunks: tuple[Chunk, ...]
    partition_count: int
    key: str
    label_kind: str

    @property
    def train_rows(self) -> tuple[int, ...]:
        return tuple(
            sum(chunk.rows for chunk in self.chunks_of(TRAIN, part)) for part in range(self.partition_count)
        )

    @property
    def validation_rows(self) -> tuple[int, ...]:
        """() if no rows were held out."""
        rows = tuple(
            sum(chunk.rows for chunk in self.chunks_of(VALIDATION, part))
            for part in range(self.partition_count)
        )
        return rows if any(rows) else ()

    def chunks_of(self, split: str, part: int) -> tuple[Chunk, ...]:
        return tuple(chunk for chunk in self.chunks if (chunk.split, chunk.part) == (split, part))


def write_partitions(
    frame: Any,
    store: Store,
    *,
    features: Sequence[str],
    label: str,
    partition_count: int,
    validation: float,
    seed: int,
    stratify: bool = False,
) -> StoredFrame:
    """Writes `frame` to `store`. validation: share of rows (0 to 1) that is held out. stratify: distributes
    the values of the label equally.

    Vectors of Spark ML become arrays. Raises SpecError for invalid columns, missing values, or fewer rows
    than partitions; then no files remain on the store.
    """
    if partition_count < 1:
        raise SpecError(f"workers: {partition_count} is out of range (at least 1)")
    if not 0 <= validation < 1:
        raise SpecError(
            f"validation: {validation} is not a share of the rows",
            hints=("from 0 to below 1, for example 0.2",),
        )
    check_columns(frame, features, label)
    store.check(frame.sparkSession)
    selected = frame.select(*map(quote_column, (*features, label)))
    missing_counter = MissingValueCounter(
        expand_vectors(selected),
        [field.name for field in selected.schema.fields if is_vector(field.dataType)],
    )
    # some of Spark's functions reject names with a dot
    numbered = missing_counter.frame.toDF(*column_names(len(features) + 1))
    assigned = _assign_rows(
        numbered,
        partition_count=partition_count,
        validation=validation,
        seed=seed,
        label=numbered.columns[-1] if stratify else None,
    )
    # one file per partition, in a fixed order
    grouped = (
        assigned.repartition(partition_count, SPLIT, PART)
        .sortWithinPartitions(SPLIT, PART, _LOT_COLUMN)
        .drop(_LOT_COLUMN)
    )
    try:
        chunks = sorted(store.write(grouped), key=lambda chunk: (chunk.split, chunk.part))
        if not chunks:
            raise SpecError("the frame has no rows")
        missing_counter.check()
        kinds = sorted(map(str, selected.dtypes))
        kind = label_kind(selected.schema[label].dataType)
        stored = StoredFrame(store, tuple(features), label, tuple(chunks), partition_count, "", kind)
        _check_rows(stored, validation)
    except BaseException:
        remove_partitions(store, frame.sparkSession)
        raise
    key_parts = [
        kinds,
        partition_count,
        validation,
        seed,
        stratify,
        store.url,
        stored.train_rows,
        stored.validation_rows,
    ]
    return StoredFrame(
        store,
        tuple(features),
        label,
        tuple(chunks),
        partition_count,
        hashlib.blake2b(json.dumps(key_parts).encode(), digest_size=16).hexdigest(),
        kind,
    )


def column_names(count: int) -> list[str]:
    """Returns the names on the store: of the features in order, then of the label."""
    return [f"c{number}" for number in range(count)]


def remove_partitions(store: Store, spark: Any) -> None:
    """Removes the partitions. Errors of the store are only printed."""
    try:
        store.remove(spark)
    except Exception as error:
        print(
            f"hopyard: {store.url} is no longer needed, and cannot be removed: {error}",
            file=sys.stderr,
            flush=True,
        )


def _check_rows(stored: StoredFrame, validation: float) -> None:
    held_out = stored.validation_rows or (0,) * stored.partition_count
    for split, rows in ((TRAIN, stored.train_rows), *(((VALIDATION, held_out),) if validation else ())):
        if not all(rows):
            raise SpecError(
                f"the {split} data has {sum(rows):,} rows, too few for {stored.partition_count} partitions: "
                f"partition {rows.index(0)} is empty",
                hints=(
                    "use fewer workers, or more data",
                    "a larger `validation`" if split == VALIDATION else "a smaller `validation`",
                ),
            )


def _assign_rows(frame: Any, *, partition_count: int, validation: float, seed: int, label: str | None) -> Any:
    """Returns the frame with columns for the assigned split and partition. Rows that are equal in all columns
    are numbered, so that they spread."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    columns = frame.columns
    content = f.xxhash64(*columns)
    numbered = frame.withColumn(_LOT_COLUMN, content)
    duplicate_number = f.row_number().over(Window.partitionBy(_LOT_COLUMN).orderBy(*columns))
    lot = f.xxhash64(f.col(_LOT_COLUMN), f.lit(seed), duplicate_number)
    with_lots = numbered.withColumn(_LOT_COLUMN, lot)
    if label is not None:  # in each class, by rank: shares differ by at most one row
        rank = f.row_number().over(Window.partitionBy(label).orderBy(_LOT_COLUMN)) - 1
        class_count = f.count(f.lit(1)).over(Window.partitionBy(label))
        validation_count = f.round(class_count * f.lit(validation))
        split = f.when(rank < validation_count, VALIDATION).otherwise(TRAIN)
        part = (
            f.when(rank < validation_count, rank).otherwise(rank - validation_count.cast("int"))
            % partition_count
        )
    else:
        split = f.when(
            f.pmod(f.col(_LOT_COLUMN), f.lit(_LOT_COUNT)) < f.lit(int(validation * _LOT_COUNT)), VALIDATION
        ).otherwise(TRAIN)
        part = f.pmod(f.shiftrightunsigned(f.col(_LOT_COLUMN), 20), f.lit(partition_count))
    return with_lots.withColumn(SPLIT, split).withColumn(PART, part.cast("int"))
