"""A DataFrame of any origin as partitioned Parquet on a store: written once, one partition for each worker.

Which row goes where depends on the row's content and the seed alone (a hash of all its columns), not on how
Spark happens to hold the frame, so that a frame that is computed anew gives equal partitions.
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
_LOT_COUNT = 1 << 20  # a row draws one of these; the lowest go to validation


@dataclass(frozen=True, slots=True)
class StoredFrame:
    """features, label: columns. chunks: what lies on the store. key: names frame, columns and seed to whoever
    caches what is computed from it. whole_label: one whole number a row: a class, it may be."""

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
        """() where nothing was kept apart."""
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
    """Write `frame` to `store`. validation: share of rows (0 to 1) kept apart.
    stratify: the label's values in equal shares everywhere.

    Vectors of Spark ML become arrays. Raises SpecError for columns that cannot be, values that are missing,
    fewer rows than partitions; nothing stays on the store then.
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
    chosen = frame.select(*map(quote_column, (*features, label)))
    missing = MissingValueCounter(
        expand_vectors(chosen), [field.name for field in chosen.schema.fields if is_vector(field.dataType)]
    )
    # a name may have a dot, which not all of Spark's calls take
    numbered = missing.frame.toDF(*column_names(len(features) + 1))
    dealt = _assign_rows(
        numbered,
        partition_count=partition_count,
        validation=validation,
        seed=seed,
        label=numbered.columns[-1] if stratify else None,
    )
    # one file, one order
    together = (
        dealt.repartition(partition_count, SPLIT, PART)
        .sortWithinPartitions(SPLIT, PART, _LOT_COLUMN)
        .drop(_LOT_COLUMN)
    )
    try:
        chunks = sorted(store.write(together), key=lambda chunk: (chunk.split, chunk.part))
        if not chunks:
            raise SpecError("the frame has no rows")
        missing.check()
        kinds = sorted(map(str, chosen.dtypes))
        kind = label_kind(chosen.schema[label].dataType)
        written = StoredFrame(store, tuple(features), label, tuple(chunks), partition_count, "", kind)
        _check_rows(written, validation)
    except BaseException:
        remove_partitions(store, frame.sparkSession)
        raise
    about = [
        kinds,
        partition_count,
        validation,
        seed,
        stratify,
        store.url,
        written.train_rows,
        written.validation_rows,
    ]
    return StoredFrame(
        store,
        tuple(features),
        label,
        tuple(chunks),
        partition_count,
        hashlib.blake2b(json.dumps(about).encode(), digest_size=16).hexdigest(),
        kind,
    )


def column_names(count: int) -> list[str]:
    """On the store: the features in their order, then the label."""
    return [f"c{number}" for number in range(count)]


def remove_partitions(store: Store, spark: Any) -> None:
    """Removes the partitions. Errors of the store are only printed."""
    try:
        store.remove(spark)
    except Exception as failed:
        print(
            f"hopyard: {store.url} is no longer needed, and cannot be removed: {failed}",
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
    """The frame with columns that say where a row goes.
    Rows that are equal in all columns are numbered, so that they spread."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    columns = frame.columns
    content = f.xxhash64(*columns)
    numbered = frame.withColumn(_LOT_COLUMN, content)
    twin = f.row_number().over(Window.partitionBy(_LOT_COLUMN).orderBy(*columns))
    lot = f.xxhash64(f.col(_LOT_COLUMN), f.lit(seed), twin)
    dealt = numbered.withColumn(_LOT_COLUMN, lot)
    if label is not None:  # in each class, by rank: shares are equal to within one row
        place = f.row_number().over(Window.partitionBy(label).orderBy(_LOT_COLUMN)) - 1
        many = f.count(f.lit(1)).over(Window.partitionBy(label))
        kept = f.round(many * f.lit(validation))
        split = f.when(place < kept, VALIDATION).otherwise(TRAIN)
        part = f.when(place < kept, place).otherwise(place - kept.cast("int")) % partition_count
    else:
        split = f.when(
            f.pmod(f.col(_LOT_COLUMN), f.lit(_LOT_COUNT)) < f.lit(int(validation * _LOT_COUNT)), VALIDATION
        ).otherwise(TRAIN)
        part = f.pmod(f.shiftrightunsigned(f.col(_LOT_COLUMN), 20), f.lit(partition_count))
    return dealt.withColumn(SPLIT, split).withColumn(PART, part.cast("int"))
