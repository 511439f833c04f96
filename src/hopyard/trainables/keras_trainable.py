"""`hop.KerasTrainable`: a trainable built from a Keras 3 model, on any Keras backend."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hopyard.datasets.partitions.arrays import Array, np
from hopyard.datasets.partitions.partition import Partition
from hopyard.errors import SpecError
from hopyard.trainables.columns import Inputs, select_columns
from hopyard.trainables.config import Config, params_of
from hopyard.trainables.keras_gradient_averaging import GradientAveraging
from hopyard.trainables.protocol import Reduce
from hopyard.trainables.seeding import seeded_generators, shuffle_seed, unit_seed
from hopyard.trainables.torch_gradient_averaging import RandomStreams

_MAX_CACHED_MODELS = 4  # to build and trace a model often takes longer than a unit
_EVALUATION_ROWS = 512  # per batch
State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _BuiltModel:
    """A model for one set of parameters. learning_rate: the rate that its config set; None if a schedule
    decides."""

    model: Any
    learning_rate: float | None
    gradient_averaging: GradientAveraging

    @property
    def variables(self) -> tuple[list[Any], list[Any]]:
        """The variables of the model, including the seeds of its layers, and those of the optimizer."""
        return list(self.model.variables), list(self.model.optimizer.variables)


class KerasTrainable:
    """Called with its parts, or subclassed with methods and attributes of the same names.

    model(config) -> a built keras.Model; either compiled, or optimizer(config), loss and metrics are given
    here as for `compile`. batch_size: rows; None means the parameter `batch_size` of the trial, or 32.
    schedule(epoch, config) -> the learning rate of an epoch, if the optimizer has no schedule itself. inputs,
    target: columns; several inputs make one matrix; by default they are found by name. transform(batch,
    config, training) -> (inputs, targets): replaces inputs and target; batch is a dictionary of arrays.

    A state is {"weights", "optimizer": lists of arrays, "rate": the learning rate from its config}.
    """

    model: Callable[..., Any]
    optimizer: Callable[..., Any] | None = None
    loss: Any = None
    metrics: Sequence[Any] = ()
    schedule: Callable[..., float] | None = None
    transform: Callable[..., Any] | None = None
    inputs: Inputs | None = None
    target: str | None = None
    batch_size: int | None = None

    def __init__(self, **parts: Any) -> None:
        """Raises SpecError for an unknown name, or if `model` is missing."""
        for name, value in parts.items():
            if name not in KerasTrainable.__annotations__:
                raise SpecError(
                    f"KerasTrainable has no `{name}`",
                    hints=(f"it has {', '.join(KerasTrainable.__annotations__)}",),
                )
            setattr(self, name, value)
        if not callable(getattr(self, "model", None)):
            raise SpecError(
                "KerasTrainable needs `model`, a function of config",
                hints=("KerasTrainable(model=…, optimizer=…, loss=…)",),
            )
        self._cached_models: OrderedDict[str, _BuiltModel] = OrderedDict()

    def init(self, config: Config) -> State:
        return _copy_values(self._build(config))

    def train(self, state: State, partition: Partition, config: Config) -> State:
        built = self._restore_model(state, config)
        if self.schedule is not None:
            built.model.optimizer.learning_rate = self.schedule(config.epoch, config)
        with seeded_generators(unit_seed(config, partition.index)):
            for inputs, targets in self._batches(partition, config, training=True):
                built.model.train_on_batch(inputs, targets)
        return _copy_values(built)

    def train_together(
        self, state: State, partitions: Sequence[Partition], config: Config, reduce: Reduce
    ) -> State:
        """Trains as `train` does, on all partitions at once: each step takes one batch of each and averages
        the gradients.

        Batch sizes differ as little as possible, so that partitions of different sizes have the same number
        of steps. Running means of layers are averaged too. A `train_step` of the model is not called.
        """
        built = self._restore_model(state, config)
        if self.schedule is not None:
            built.model.optimizer.learning_rate = self.schedule(config.epoch, config)
        steps = min(-(-max(partitions[0].peers) // self._batch_size(config)), *partitions[0].peers)
        streams = RandomStreams([unit_seed(config, partition.index) for partition in partitions])
        with seeded_generators(unit_seed(config, partitions[0].index)):
            batches = [
                self._batches(partition, config, training=True, steps=steps) for partition in partitions
            ]
            next_batches = [partial(next, iterator) for iterator in batches]
            for _ in range(steps):
                built.gradient_averaging.step(next_batches, streams, reduce)
        return _copy_values(built)

    def evaluate(self, state: State, partition: Partition, config: Config) -> dict[str, float]:
        """Returns `loss` and the compiled metrics of this partition."""
        return _metric_results(self._evaluate_batches(state, partition, config)[0])

    def gather(self, state: State, partition: Partition, config: Config) -> tuple[dict[str, float], Any]:
        """Returns what the metrics have counted on this partition. Keras keeps sums from which the result is
        computed, so their total over all partitions gives the result of the whole set."""
        if type(self).evaluate is not KerasTrainable.evaluate:  # a subclass has its own
            return self.evaluate(state, partition, config), None
        model, sample = self._evaluate_batches(state, partition, config)
        for variable in model.metrics_variables:
            if getattr(variable, "aggregation", "sum") != "sum":
                raise SpecError(
                    f"KerasTrainable: `{variable.path}` of a metric cannot be added up over partitions",
                    hints=("create it with add_variable(…, aggregation='sum')",),
                )
        sums = [np.array(_keras().ops.convert_to_numpy(item)) for item in model.metrics_variables]
        return {}, None if sample is None else {"sums": sums, "sample": sample}

    def measure(self, gathered: Sequence[Any], config: Config) -> dict[str, float]:
        """Returns `loss` and the compiled metrics. gathered: of all partitions, in their order."""
        model = self._cached_model(config).model
        model.test_on_batch(*gathered[0]["sample"])  # creates the variables of the metrics
        model.reset_metrics()
        for variable, *parts in zip(
            model.metrics_variables, *(part["sums"] for part in gathered), strict=True
        ):
            variable.assign(sum(parts[1:], parts[0]))
        return _metric_results(model)

    def _evaluate_batches(self, state: State, partition: Partition, config: Config) -> tuple[Any, Any]:
        """Counts the partition in the metrics of the model; returns the model and a sample of one row."""
        model, sample = self._restore_model(state, config).model, None
        model.reset_metrics()
        with seeded_generators(unit_seed(config, partition.index)):
            for inputs, targets in self._batches(partition, config, training=False):
                sample = (_first_row(inputs), _first_row(targets)) if sample is None else sample
                model.test_on_batch(inputs, targets)
        return model, sample

    def predict(self, state: State, partition: Partition, config: Config) -> Array:
        """Returns the output of the model for each row."""
        model = self._restore_model(state, config).model
        with seeded_generators(unit_seed(config, partition.index)):
            return np.concatenate(
                [
                    model.predict_on_batch(inputs)
                    for inputs, _ in self._batches(partition, config, training=False)
                ]
            )

    def whole(self, state: State, config: Config) -> Any:
        """Returns the trained keras.Model. This trainable reuses it: save it before more training."""
        return self._restore_model(state, config).model

    # -- models ----------------------------------------------------------------------------------------------

    def _cached_model(self, config: Config) -> _BuiltModel:
        key = json.dumps(dict(params_of(config)), sort_keys=True)
        if key not in self._cached_models:
            self._cached_models[key] = self._build(config)
            while len(self._cached_models) > _MAX_CACHED_MODELS:
                self._cached_models.popitem(last=False)
        self._cached_models.move_to_end(key)
        return self._cached_models[key]

    def _restore_model(self, state: Mapping[str, Any], config: Config) -> _BuiltModel:
        built = self._cached_model(config)
        for variables, values in zip(built.variables, (state["weights"], state["optimizer"]), strict=True):
            if [tuple(variable.shape) for variable in variables] != [value.shape for value in values]:
                hint = "keep parameters that change the shape of the model (PBT, `perturb:`)"
                raise SpecError("the state does not fit the model of this config", hints=(hint,))
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
        # the config has changed the rate since
        if built.learning_rate is not None and state["rate"] and state["rate"] != built.learning_rate:
            optimizer = built.model.optimizer
            optimizer.learning_rate = built.learning_rate * float(optimizer.learning_rate) / state["rate"]
        return built

    def _build(self, config: Config) -> _BuiltModel:
        keras = _keras()
        with seeded_generators(unit_seed(config, None)):
            keras.utils.set_random_seed(unit_seed(config, None) % 2**32)
            model = self.model(config)
            if not isinstance(model, keras.Model):
                raise SpecError(
                    f"KerasTrainable: model(config) returned {type(model).__name__}, not a keras.Model"
                )
            if not model.built:
                hint = "start the model with keras.Input(shape=…), or call model.build((None, …))"
                raise SpecError(
                    "KerasTrainable: the model is not built, so it has no weights yet", hints=(hint,)
                )
            if not model.compiled:
                if self.optimizer is None or self.loss is None:
                    raise SpecError(
                        "KerasTrainable: the model is not compiled",
                        hints=("set optimizer and loss, or compile it in model(config)",),
                    )
                model.compile(optimizer=self.optimizer(config), loss=self.loss, metrics=list(self.metrics))
            model.optimizer.build(model.trainable_variables)
        scheduled = isinstance(
            getattr(model.optimizer, "_learning_rate", None), keras.optimizers.schedules.LearningRateSchedule
        )
        return _BuiltModel(
            model,
            None if scheduled else float(model.optimizer.learning_rate),
            GradientAveraging(keras, model),
        )

    def _batch_size(self, config: Config) -> int:
        size = self.batch_size if self.batch_size is not None else config.get("batch_size", 32)
        if not isinstance(size, int) or size < 1:
            raise SpecError(f"batch_size is {size!r}", hints=("a whole number of rows, at least 1",))
        return size

    def _batches(
        self, partition: Partition, config: Config, *, training: bool, steps: int | None = None
    ) -> Iterator[tuple[Any, Any]]:
        size = self._batch_size(config)
        data = (
            partition if self.transform is not None else select_columns(partition, self.inputs, self.target)
        )
        seed = shuffle_seed(config, partition.index) if training else None
        for batch in data.batches(size if training else _EVALUATION_ROWS, seed, steps=steps):
            yield (
                self.transform(batch, config, training)
                if self.transform is not None
                else (_as_inputs(batch["x"]), batch["y"])
            )


def _copy_values(model: _BuiltModel) -> State:
    """Returns copies of a model's values."""
    keras = _keras()
    weights, optimizer = (
        [np.array(keras.ops.convert_to_numpy(variable)) for variable in variables]
        for variables in model.variables
    )
    return {"weights": weights, "optimizer": optimizer, "rate": model.learning_rate}


def _metric_results(model: Any) -> dict[str, float]:
    return {name: float(value) for name, value in model.get_metrics_result().items()}


def _first_row(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _first_row(element) for name, element in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_first_row(element) for element in value)
    return np.asarray(value)[:1]


def _as_inputs(array: Array) -> Array:
    """Converts images of bytes to floats from 0 to 1 with an axis for channels, and 64-bit floats
    to 32 bits."""
    if array.dtype == np.uint8 and array.ndim in (3, 4):
        channels_first = _keras().config.image_data_format() == "channels_first"
        images = (array if array.ndim == 4 else array[..., None]).astype(np.float32) / np.float32(255)
        return np.moveaxis(images, -1, 1) if channels_first else images
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _keras() -> Any:
    try:
        import keras
    except ImportError as error:
        hints = ("pip install keras", "install a backend too: KERAS_BACKEND=torch, jax or tensorflow")
        raise SpecError(f"Keras cannot be used in this interpreter: {error}", hints=hints) from error
    if not hasattr(keras, "config") or int(keras.__version__.split(".")[0]) < 3:
        raise SpecError(
            f"KerasTrainable needs Keras 3; this is {keras.__version__}", hints=("pip install 'keras>=3.3'",)
        )
    return keras
