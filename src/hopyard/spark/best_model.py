"""The best model of a study as a Spark ML model: `transform` adds a column to a frame."""

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
    """The source of a study's models. trainable: the object, or the text by which executors import it.
    shipped: the pickled object for executors. label_kind: `whole` (one integer per row), `number`, or `list`.
    """

    trainable: Any
    shipped: bytes
    features: tuple[str, ...]
    label: str
    label_kind: str


class BestModel:
    """params: of its trial. state: the result of `train`; for a `TorchTrainable` it has the `model`."""

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
        """Returns `frame` with a column `prediction`: the number that the model returns for a row. If it
        returns several and the label is one integer per row, it is the index of the largest. If the label is
        an array, it is all of them.

        raw: the name of an additional column with all outputs of the model, as an array. The columns are
        computed by executors when the frame is; a row without a value fails there. Raises SpecError for
        missing columns.
        """
        import pyarrow as pa
        from pyspark.sql import functions as f
        from pyspark.sql.pandas.functions import arrow_udf

        source = self._made
        for name in source.features:
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
        # the object's class may be in files that executors do not have
        sent_source = replace(source, trainable=None) if source.shipped else source
        broadcast = frame.sparkSession.sparkContext.broadcast((sent_source, self._bytes, self._config))

        def predict(batches: Any) -> Any:
            return _predict_batches(broadcast, batches)

        # Spark derives the argument types from it
        predict.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
        udf_factory: Any = arrow_udf
        columns = (
            to_array_column(frame[quote_column(name)], frame.schema[name].dataType).alias(name)
            for name in source.features
        )
        result = frame.withColumn(
            raw or _RAW_COLUMN, udf_factory(predict, "array<double>")(f.struct(*columns))
        )
        values = result[quote_column(raw or _RAW_COLUMN)]
        largest = (f.array_position(values, f.array_max(values)) - 1).cast("double")
        several_error = f.raise_error(
            f.lit(
                "the model returns several numbers per row for one label: use transform(…, raw=…) to "
                "get all of them"
            )
        )
        single = f.when(f.size(values) == 1, values[0]).otherwise(
            largest if source.label_kind == "whole" else several_error.cast("double")
        )
        result = result.withColumn(prediction, values if source.label_kind == "list" else single)
        return result if raw else result.drop(_RAW_COLUMN)


def _predict_batches(broadcast: Any, batches: Iterator[Any]) -> Iterator[Any]:
    """Runs in an executor: for each batch of rows (structs of the features) yields the model's output, row by
    row."""
    import pyarrow as pa

    source, state, config = broadcast.value
    trainable = _check_predicts(
        _unpickle(source.shipped) if source.shipped else load(source.trainable, Path.cwd())
    )
    model = _restore_state(trainable, state, config)
    for batch in batches:
        arrays = {name: _without_nulls(batch.field(name), name) for name in source.features}
        # the label is unknown, but a user's `transform` may read it
        arrays[source.label] = np.zeros(len(batch), dtype=np.int64)
        partition = as_model_columns(partition_of_arrays(arrays), source.features, source.label)
        outputs = np.asarray(trainable.predict(model, partition, config), dtype=np.float64)
        if len(outputs) != len(batch):
            raise SpecError(
                f"predict(state, partition, config) gave {len(outputs):,} rows for {len(batch):,}"
            )
        values = outputs.reshape(len(batch), -1)
        yield pa.ListArray.from_arrays(
            np.arange(len(batch) + 1, dtype=np.int32) * values.shape[1], values.reshape(-1)
        )


def _without_nulls(column: Any, name: str) -> Array:
    if column.null_count:
        raise SpecError(
            f"column `{name}`: {column.null_count:,} rows have no value",
            hints=(f"drop them with frame.na.drop(subset=['{name}'])",),
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
        hint = "add predict(state, partition, config), which returns an array with a row per partition row"
        raise SpecError(
            f"the trainable ({type(trainable).__name__}) cannot predict: it has no `predict`", hints=(hint,)
        )
    return trainable
