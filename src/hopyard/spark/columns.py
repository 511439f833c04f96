"""Checks the columns of a frame: their types, and the values of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hopyard.errors import SpecError

_NUMBER_TYPES = (
    "ByteType",
    "ShortType",
    "IntegerType",
    "LongType",
    "FloatType",
    "DoubleType",
    "BooleanType",
    "DecimalType",
)
_INTEGER_TYPES = ("ByteType", "ShortType", "IntegerType", "LongType", "BooleanType")
_INDEXER = "StringIndexer(inputCol='{0}', outputCol='{0}_index') of pyspark.ml.feature converts it to numbers"


def check_columns(frame: Any, features: Sequence[str], label: str) -> None:
    """Raises SpecError for missing columns, and for types that no model accepts."""
    if not features:
        raise SpecError("features: no column is given", hints=(f"the frame has {', '.join(frame.columns)}",))
    for argument, name in (*(("features", name) for name in features), ("labels", label)):
        if frame.columns.count(name) != 1:
            count_text = "no column" if name not in frame.columns else "more than one column"
            raise SpecError(
                f"{argument}: the frame has {count_text} `{name}`",
                hints=(f"it has {', '.join(frame.columns)}",),
            )
        if name.startswith("hop_"):
            raise SpecError(
                f"{argument}: `{name}` begins with hop_, which is reserved for columns of Hopyard",
                hints=(f"frame.withColumnRenamed('{name}', …)",),
            )
    if label in features:
        raise SpecError(f"labels: `{label}` is also a feature")
    duplicate = next((name for name in features if features.count(name) > 1), None)
    if duplicate is not None:
        raise SpecError(f"features: `{duplicate}` is named twice")
    for name in features:
        _check_feature(name, frame.schema[name].dataType, is_only_feature=len(features) == 1)
    kind = frame.schema[label].dataType
    if _is_of_type(kind, "StringType"):
        raise SpecError(f"labels: `{label}` holds text, not numbers", hints=(_INDEXER.format(label),))
    if not (_is_of_type(kind, *_NUMBER_TYPES) or is_list(kind)):
        raise SpecError(
            f"labels: `{label}` ({kind.simpleString()}) does not contain numbers",
            hints=("a number, an array of numbers, or a vector of Spark ML",),
        )


def _check_feature(name: str, kind: Any, *, is_only_feature: bool) -> None:
    if _is_of_type(kind, "MapType", "StructType", "VariantType") or (
        _is_of_type(kind, "UserDefinedType") and not is_vector(kind)
    ):
        raise SpecError(
            f"features: `{name}` ({kind.simpleString()}) has a type that workers cannot read",
            hints=("select its fields as separate columns",),
        )
    if is_only_feature or _is_of_type(kind, *_NUMBER_TYPES):
        return
    if _is_of_type(kind, "StringType"):
        raise SpecError(
            f"features: `{name}` holds text, and cannot be part of a matrix",
            hints=(_INDEXER.format(name), "use it as the only feature"),
        )
    hints = ("use VectorAssembler of pyspark.ml.feature to build one vector from several columns",)
    raise SpecError(
        f"features: `{name}` ({kind.simpleString()}) is not one number per row, so it cannot be part "
        "of a matrix",
        hints=hints,
    )


def expand_vectors(frame: Any) -> Any:
    """Converts vectors of Spark ML, dense and sparse, to arrays, because other readers do not know them.
    Missing ones stay missing."""
    for field in frame.schema.fields:
        if is_vector(field.dataType):
            frame = frame.withColumn(
                field.name, to_array_column(frame[quote_column(field.name)], field.dataType)
            )
    return frame


def to_array_column(column: Any, kind: Any) -> Any:
    if not is_vector(kind):
        return column
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as f

    return f.when(column.isNotNull(), vector_to_array(column, dtype="float32"))


class MissingValueCounter:
    """Counts rows without a value while the frame is written, so that the frame is computed only once."""

    def __init__(self, frame: Any, vectors: Sequence[str]) -> None:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        self._columns, self._vectors = list(frame.columns), list(vectors)
        self._observation = Observation(f"hopyard-{id(self)}")
        aggregates = [f.count(f.lit(1)).alias("rows")]
        for index, field in enumerate(frame.schema.fields):
            column = frame[quote_column(field.name)]
            is_missing = (
                column.isNull() | f.exists(column, lambda element: element.isNull())
                if is_list(field.dataType)
                else column.isNull()
            )
            aggregates.append(
                f.sum(f.coalesce(is_missing, f.lit(True)).cast("long")).alias(f"missing{index}")
            )
            if field.name in vectors:
                aggregates += [
                    f.min(f.size(column)).alias(f"least{index}"),
                    f.max(f.size(column)).alias(f"most{index}"),
                ]
        self.frame = frame.observe(self._observation, *aggregates)

    def check(self) -> None:
        """Must be called after the frame was written, with at least one row. Raises SpecError for a column
        with missing values, and for vectors of different lengths."""
        observed = self._observation.get
        for index, name in enumerate(self._columns):
            if missing := observed[f"missing{index}"]:
                hints = (
                    f"drop them with frame.na.drop(subset=['{name}'])",
                    f"fill them with frame.fillna({{'{name}': 0}}) or Imputer of pyspark.ml.feature",
                )
                raise SpecError(
                    f"column `{name}`: {missing:,} of {observed['rows']:,} rows have no value", hints=hints
                )
            if name in self._vectors and observed[f"least{index}"] != observed[f"most{index}"]:
                raise SpecError(
                    f"column `{name}`: its vectors have from {observed[f'least{index}']} to "
                    f"{observed[f'most{index}']} elements",
                    hints=("use vectors of one length",),
                )


def quote_column(name: str) -> str:
    """Returns the name as Spark's expressions need it if it has a dot."""
    return f"`{name.replace('`', '``')}`"


def label_kind(kind: Any) -> str:
    if is_list(kind):
        return "list"
    return "whole" if _is_of_type(kind, *_INTEGER_TYPES) else "number"


def is_vector(kind: Any) -> bool:
    return type(kind).__name__ == "VectorUDT"


def is_list(kind: Any) -> bool:
    return _is_of_type(kind, "ArrayType") or is_vector(kind)


def _is_of_type(kind: Any, *names: str) -> bool:
    return any(base.__name__ in names for base in type(kind).__mro__)
