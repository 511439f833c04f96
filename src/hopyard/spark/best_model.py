"""The best model of a study, as Spark ML has models: `transform` adds a column to a frame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hopyard.datasets.partitions.arrays import Array, np
from hopyard.datasets.partitions.arrow import to_array
from hopyard.datasets.partitions.partition import partition_of_arrays
from hopyard.errors import SpecError
from hopyard.spark.columns import quote_column, to_array_column
from hopyard.spark.partition_reader import as_model_columns
from hopyard.trainables.config import Config
from hopyard.trainables.load import load
from hopyard.trainables.protocol import SupportsCapture, SupportsPredict
from hopyard.trial_state.decode import decode

_RAW_COLUMN = "hop_raw"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Of what a study was made. trainable: the object, or the text by which executors import it.
    shipped: the object as they get it. label_kind: `whole` (one whole number a row), `number`, or `list`."""

    trainable: Any
    shipped: bytes
    features: tuple[str, ...]
    label: str
    label_kind: str


class BestModel:
    """params: of its trial. state: what `train` returned; of a `TorchTrainable`, with its `model`."""

    def __init__(self, source: ModelSource, state: bytes, config: Config) -> None:
        self._made, self._bytes, self._config = source, state, config
        if not isinstance(source.trainable, str):
            _check_predicts(source.trainable)

    def __repr__(self) -> str:
        return f"BestModel(trial {self._config.trial}, {dict(self._config.params)})"

    @property
    def params(self) -> dict[str, Any]:
        return dict(self._config.params)

    @property
    def state(self) -> Any:
        trainable = self._made.trainable
        return _restore_state(
            load(trainable, Path.cwd()) if isinstance(trainable, str) else trainable,
            self._bytes,
            self._config,
        )

    def transform(self, frame: Any, *, prediction: str = "prediction", raw: str | None = None) -> Any:
        """`frame` with a column `prediction`: the number that the model gives for a row; where it gives
        several and the label is one whole number a row, the index of the largest; where the label is an
        array, all of them. raw: the name of one more column, with all that the model gives, as an array.

        Computed by executors when the frame is; a row without a value fails there. Raises SpecError for
        columns that there are not.
        """
        import pyarrow as pa
        from pyspark.sql import functions as f
        from pyspark.sql.pandas.functions import arrow_udf

        made = self._made
        for name in made.features:
            if name not in frame.columns:
                raise SpecError(
                    f"features: the frame has no column `{name}`",
                    hints=(f"it has {', '.join(frame.columns)}",),
                )
        for name in (prediction, *(() if raw is None else (raw,))):
            if name in frame.columns:
                raise SpecError(
                    f"the frame already has a column `{name}`",
                    hints=("choose another name: transform(frame, prediction=…)",),
                )
        # the object itself is of files that executors do not have
        light = replace(made, trainable=None) if made.shipped else made
        sent = frame.sparkSession.sparkContext.broadcast((light, self._bytes, self._config))

        def predict(batches: Any) -> Any:
            return _predict_batches(sent, batches)

        # by which Spark knows what to give it
        predict.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
        computed: Any = arrow_udf
        columns = (
            to_array_column(frame[quote_column(name)], frame.schema[name].dataType).alias(name)
            for name in made.features
        )
        told = frame.withColumn(raw or _RAW_COLUMN, computed(predict, "array<double>")(f.struct(*columns)))
        values = told[quote_column(raw or _RAW_COLUMN)]
        largest = (f.array_position(values, f.array_max(values)) - 1).cast("double")
        several = f.raise_error(
            f.lit(
                "the model returns several numbers per row for one label: use transform(…, raw=…) to "
                "get all of them"
            )
        )
        one = f.when(f.size(values) == 1, values[0]).otherwise(
            largest if made.label_kind == "whole" else several.cast("double")
        )
        told = told.withColumn(prediction, values if made.label_kind == "list" else one)
        return told if raw else told.drop(_RAW_COLUMN)


def _predict_batches(broadcast: Any, batches: Iterator[Any]) -> Iterator[Any]:
    """In an executor: for each batch of rows (structs of the features) what the model gives, row by row."""
    import pyarrow as pa

    made, state, config = broadcast.value
    trainable = _check_predicts(_unpickle(made.shipped) if made.shipped else load(made.trainable, Path.cwd()))
    model = _restore_state(trainable, state, config)
    for batch in batches:
        arrays = {name: _without_nulls(batch.field(name), name) for name in made.features}
        # nobody knows it; a `transform` of the user's may ask for it
        arrays[made.label] = np.zeros(len(batch), dtype=np.int64)
        partition = as_model_columns(partition_of_arrays(arrays), made.features, made.label)
        found = np.asarray(trainable.predict(model, partition, config), dtype=np.float64)
        if len(found) != len(batch):
            raise SpecError(f"predict(state, partition, config) gave {len(found):,} rows for {len(batch):,}")
        values = found.reshape(len(batch), -1)
        yield pa.ListArray.from_arrays(
            np.arange(len(batch) + 1, dtype=np.int32) * values.shape[1], values.reshape(-1)
        )


def _without_nulls(column: Any, name: str) -> Array:
    if column.null_count:
        raise SpecError(
            f"column `{name}`: {column.null_count:,} rows have no value",
            hints=(f"frame.na.drop(subset=['{name}']) leaves them out",),
        )
    return to_array(column, "frame", name)


def _restore_state(trainable: Any, state: bytes, config: Config) -> Any:
    captured = decode(bytearray(state))["state"]
    return trainable.restore(captured, config) if isinstance(trainable, SupportsCapture) else captured


def _unpickle(content: bytes) -> Any:
    from pyspark import cloudpickle

    return cloudpickle.loads(content)


def _check_predicts(trainable: Any) -> SupportsPredict:
    if not isinstance(trainable, SupportsPredict):
        hint = "predict(state, partition, config) -> an array with a row for each of the partition's"
        raise SpecError(
            f"the trainable ({type(trainable).__name__}) cannot predict: it has no `predict`", hints=(hint,)
        )
    return trainable
