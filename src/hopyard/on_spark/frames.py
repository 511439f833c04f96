"""A DataFrame of any origin as partitioned Parquet on a store: written once by Spark, one partition for each worker.

Which row goes where depends on the row's content and the seed alone (a hash of all its columns), not on how Spark happens to hold the
frame, so that a frame that is computed anew gives equal partitions.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hopyard.errors import SpecError

TRAIN, VALIDATION = "train", "validation"
_LOT, _SPLIT, _PART = "__hop_lot", "split", "part"
_LOTS = 1 << 20  # a row draws one of these; the lowest go to validation


@dataclass(frozen=True, slots=True)
class Written:
    """url: the folder, as Spark takes it; below it `split=train/part=0/*.parquet` and so on. features, label: columns.
    rows: of each partition. key: names frame, columns and seed to whoever caches what is computed from it."""

    url: str
    features: tuple[str, ...]
    label: str
    train_rows: tuple[int, ...]
    validation_rows: tuple[int, ...]
    key: str

    @property
    def parts(self) -> int:
        return len(self.train_rows)


def write_partitions(
    frame: Any, *, features: Sequence[str], label: str, parts: int, validation: float, seed: int, url: str, stratify: bool = False
) -> Written:
    """Write `frame` below `url`. validation: share of rows (0 to 1) kept apart. stratify: the label's values in equal shares everywhere.

    Vectors of Spark ML become arrays. Raises SpecError for columns that there are not, values that are missing, fewer rows
    than partitions.
    """
    _check(frame, features, label, parts, validation)
    chosen = _plain(frame.select(*features, label))
    dealt = _deal(chosen, parts=parts, validation=validation, seed=seed, label=label if stratify else None)
    together = dealt.repartition(parts, _SPLIT, _PART).sortWithinPartitions(_SPLIT, _PART, _LOT).drop(_LOT)  # one file, one order
    together.write.mode("overwrite").partitionBy(_SPLIT, _PART).parquet(url)
    train, held_out = _count(frame.sparkSession, url, parts)
    for split, rows in ((TRAIN, train), *(((VALIDATION, held_out),) if validation else ())):
        if not all(rows):
            raise SpecError(
                f"the {split} data has {sum(rows):,} rows, too few for {parts} partitions: partition {rows.index(0)} is empty",
                hints=("take fewer workers, or more data", "a larger `validation`" if split == VALIDATION else "a smaller `validation`"),
            )
    about = [sorted(map(str, chosen.dtypes)), parts, validation, seed, stratify, url, train, held_out]
    key = hashlib.blake2b(json.dumps(about).encode(), digest_size=16).hexdigest()
    return Written(url, tuple(features), label, train, held_out, key)


def _check(frame: Any, features: Sequence[str], label: str, parts: int, validation: float) -> None:
    if parts < 1:
        raise SpecError(f"workers: {parts} is fewer than one")
    if not 0 <= validation < 1:
        raise SpecError(f"validation: {validation} is no share of the rows", hints=("from 0 to below 1, for example 0.2",))
    if not features:
        raise SpecError("features: no column is named", hints=(f"the frame has {', '.join(frame.columns)}",))
    for what, name in (*(("features", name) for name in features), ("labels", label)):
        if name not in frame.columns:
            raise SpecError(f"{what}: the frame has no column `{name}`", hints=(f"it has {', '.join(frame.columns)}",))
    if label in features:
        raise SpecError(f"labels: `{label}` is one of the features, too")


def _plain(frame: Any) -> Any:
    """Spark ML's vectors as arrays: Parquet readers other than Spark do not know them."""
    vectors = [field.name for field in frame.schema.fields if type(field.dataType).__name__ == "VectorUDT"]
    if vectors:
        from pyspark.ml.functions import vector_to_array

        for name in vectors:
            frame = frame.withColumn(name, vector_to_array(frame[name], dtype="float32"))
    return frame


def _deal(frame: Any, *, parts: int, validation: float, seed: int, label: str | None) -> Any:
    """The frame with columns that say where a row goes. Rows that are equal in all columns are numbered, so that they spread."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    columns = [f"`{name}`" for name in frame.columns]
    content = f.xxhash64(*columns)
    numbered = frame.withColumn(_LOT, content)
    twin = f.row_number().over(Window.partitionBy(_LOT).orderBy(*columns))
    lot = f.xxhash64(f.col(_LOT), f.lit(seed), twin)
    dealt = numbered.withColumn(_LOT, lot)
    if label is not None:  # in each class, by rank: shares are equal to within one row
        place = f.row_number().over(Window.partitionBy(f"`{label}`").orderBy(_LOT)) - 1
        many = f.count(f.lit(1)).over(Window.partitionBy(f"`{label}`"))
        kept = f.round(many * f.lit(validation))
        split = f.when(place < kept, VALIDATION).otherwise(TRAIN)
        part = f.when(place < kept, place).otherwise(place - kept.cast("int")) % parts
    else:
        split = f.when(f.pmod(f.col(_LOT), f.lit(_LOTS)) < f.lit(int(validation * _LOTS)), VALIDATION).otherwise(TRAIN)
        part = f.pmod(f.shiftrightunsigned(f.col(_LOT), 20), f.lit(parts))
    return dealt.withColumn(_SPLIT, split).withColumn(_PART, part.cast("int"))


def _count(spark: Any, url: str, parts: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    found = {(row[_SPLIT], row[_PART]): row["count"] for row in spark.read.parquet(url).groupBy(_SPLIT, _PART).count().collect()}
    train = tuple(int(found.get((TRAIN, part), 0)) for part in range(parts))
    held_out = tuple(int(found.get((VALIDATION, part), 0)) for part in range(parts))
    return train, held_out if any(held_out) else ()
