"""`hop.TorchTrainable`: a trainable built from a module, an optimizer and a loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from hopyard.datasets.partitions.partition import Partition
from hopyard.errors import SpecError
from hopyard.trainables import torch_gradient_averaging, torch_state
from hopyard.trainables.columns import Inputs, select_columns
from hopyard.trainables.config import Config
from hopyard.trainables.frozen_backbone import FrozenBackbone
from hopyard.trainables.metric_aggregation import Metric, RowMean, concatenate, detach
from hopyard.trainables.protocol import Reduce
from hopyard.trainables.seeding import seeded_generators, shuffle_seed, unit_seed
from hopyard.trainables.torch_data import METRICS, as_inputs, as_targets, as_tensor, move_to_device
from hopyard.trainables.torch_metrics import MeanMetrics
from hopyard.trainables.torch_state import TorchState

_EVALUATION_ROWS = 512  # per batch


class TorchTrainable:
    """Called with its parts, or subclassed with methods and attributes of the same names.

    model(config) -> nn.Module. optimizer(parameters, config). loss(outputs, targets) -> mean over the rows.
    batch_size: rows; None means the parameter `batch_size` of the trial, or 32. drop_last: drop a last,
    smaller batch. metrics: by name, functions (outputs, targets) -> number, called once with all rows of the
    validation set; or one of "accuracy", "mae", "mse", or `hop.row_mean(function)`, which are means over rows
    and computed per batch. `loss` is always reported, as such a mean.

    schedule(optimizer, config) -> a learning rate scheduler, stepped after each epoch. With
    schedule_every="batch" it is schedule(optimizer, config, batches per epoch), stepped after each batch.

    inputs, target: columns; several inputs make one matrix. By default they are found by name (x, image …; y,
    label …). transform(batch, config, training) -> (inputs, targets): replaces inputs and target; batch is a
    dictionary of all columns, numbers as tensors. A tuple of inputs is passed to the model as several
    arguments. loader(partition, config, training) -> batches (inputs, targets), for example a DataLoader:
    replaces all of these.

    trunk() -> nn.Module: a frozen backbone whose outputs are the model's inputs. They are computed once per
    partition and stored on the node, so `transform` must not depend on random numbers, the config or
    `training`. clip_norm: the maximum norm of gradients. device: "auto" is the first GPU, or the CPU. The
    study decides whether PyTorch is deterministic, before it calls the trainable.
    """

    model: Callable[..., Any]
    optimizer: Callable[..., Any]
    loss: Callable[..., Any]
    schedule: Callable[..., Any] | None = None
    transform: Callable[..., Any] | None = None
    loader: Callable[..., Any] | None = None
    trunk: Callable[[], Any] | None = None
    metrics: Mapping[str, Metric | str] = {}
    inputs: Inputs | None = None
    target: str | None = None
    batch_size: int | None = None
    drop_last: bool = False
    schedule_every: str = "epoch"
    clip_norm: float | None = None
    device: str = "auto"

    def __init__(self, **parts: Any) -> None:
        """Raises SpecError for an unknown name, or if model, optimizer or loss are missing."""
        for name, value in parts.items():
            if name not in TorchTrainable.__annotations__:
                hint = f"it has {', '.join(TorchTrainable.__annotations__)}"
                raise SpecError(f"TorchTrainable has no `{name}`", hints=(hint,))
            setattr(self, name, value)
        for name in ("model", "optimizer", "loss", "schedule", "transform", "loader", "trunk"):
            static_value = inspect.getattr_static(self, name, None)
            if (
                inspect.isfunction(static_value)
                and name not in vars(self)
                and next(iter(inspect.signature(static_value).parameters), "") != "self"
            ):
                setattr(self, name, static_value)  # `loss = F.cross_entropy` in a class is not a method
        for name in ("model", "optimizer", "loss"):
            if not callable(getattr(self, name, None)):
                raise SpecError(
                    f"TorchTrainable needs `{name}`, a function",
                    hints=("TorchTrainable(model=…, optimizer=…, loss=…)",),
                )
        if self.loader is not None and (self.transform is not None or self.trunk is not None):
            raise SpecError(
                "TorchTrainable: `loader` cannot be combined with `transform` or `trunk`, because it "
                "returns finished batches",
                hints=("remove one of them",),
            )
        if self.schedule_every not in ("epoch", "batch"):
            raise SpecError(
                f"TorchTrainable: schedule_every is `{self.schedule_every}`", hints=("epoch or batch",)
            )
        for name, metric in self.metrics.items():
            if isinstance(metric, str) and metric not in METRICS:
                raise SpecError(
                    f"TorchTrainable: the metric `{name}` is `{metric}`",
                    hints=(f"a function, `hop.row_mean(function)`, or one of {', '.join(METRICS)}",),
                )
        self._whole_metrics: dict[str, Metric] = {
            name: metric for name, metric in self.metrics.items() if not isinstance(metric, (str, RowMean))
        }
        self._backbone = FrozenBackbone(self.trunk, self.transform) if self.trunk is not None else None

    # -- the trainable protocol
    # ----------------------------------------------------------------------------------

    def init(self, config: Config) -> TorchState:
        with seeded_generators(unit_seed(config, None)):
            return self._build_state(self.model(config), config)

    def train(self, state: TorchState, partition: Partition, config: Config) -> TorchState:
        with self._train_context(state, (partition,), config):
            for inputs, targets in self._batches(partition, config, training=True):
                self._step(state, inputs, targets, config)
        return state

    def train_together(
        self, state: TorchState, partitions: Sequence[Partition], config: Config, reduce: Reduce
    ) -> TorchState:
        """Trains as `train` does, on all partitions at once: each step takes one batch of each and averages
        the gradients.

        Batch sizes differ as little as possible, so that partitions of different sizes have the same number
        of steps. Running means of modules are averaged too.
        """
        if self.loader is not None:
            hints = (
                "set `hybrid: false`, so that a trial uses one worker at a time",
                "or set `transform` instead of `loader`",
            )
            raise SpecError(
                "TorchTrainable: the number of batches of a `loader` cannot be equal on all workers",
                hints=hints,
            )
        steps = min(-(-max(partitions[0].peers) // self._batch_size(config)), *partitions[0].peers)
        with self._train_context(state, partitions, config):
            batches = [
                self._batches(partition, config, training=True, steps=steps) for partition in partitions
            ]
            streams = torch_gradient_averaging.RandomStreams(
                [unit_seed(config, partition.index) for partition in partitions]
            )
            passes = [partial(self._next_loss, state, iterator, config) for iterator in batches]
            for _ in range(steps):
                torch_gradient_averaging.average_gradients(state.model, passes, streams, reduce)
                self._update(state)
        return state

    def evaluate(self, state: TorchState, partition: Partition, config: Config) -> dict[str, float]:
        """Returns `loss` and the metrics of this partition."""
        means, gathered = self._evaluate_batches(state, partition, config)
        return means if gathered is None else {**means, **self.measure([gathered], config)}

    def gather(
        self, state: TorchState, partition: Partition, config: Config
    ) -> tuple[Mapping[str, float], Any]:
        """Returns the means over the rows, and the outputs and targets of all rows for other metrics."""
        if type(self).evaluate is not TorchTrainable.evaluate:  # a subclass has its own
            return self.evaluate(state, partition, config), None
        return self._evaluate_batches(state, partition, config)

    def measure(self, gathered: Sequence[Any], config: Config) -> dict[str, float]:
        """Returns the metrics that are no means over rows. gathered: of all partitions, in their order."""
        import torch

        outputs, targets = (concatenate([part[name] for part in gathered]) for name in ("outputs", "targets"))
        with seeded_generators(unit_seed(config, None)), torch.no_grad():
            means = MeanMetrics()
            means.add(1, {name: metric(outputs, targets) for name, metric in self._whole_metrics.items()})
            return means.compute()

    def _evaluate_batches(
        self, state: TorchState, partition: Partition, config: Config
    ) -> tuple[dict[str, float], dict[str, Any] | None]:
        import torch

        means, parts = MeanMetrics(), list[tuple[Any, Any]]()
        with seeded_generators(unit_seed(config, partition.index)), torch.no_grad():
            state.model.eval()
            for inputs, targets in self._batches(partition, config, training=False):
                outputs = self._outputs(state.model, inputs)
                means.add(len(targets), self._compute_means(outputs, targets))
                if self._whole_metrics:
                    parts.append((detach(outputs), detach(targets)))
        if not parts:
            return means.compute(), None
        outputs, targets = (concatenate(column) for column in zip(*parts, strict=True))
        return means.compute(), {"outputs": outputs, "targets": targets}

    def predict(self, state: TorchState, partition: Partition, config: Config) -> Any:
        """Returns the module's output for each row as a NumPy array."""
        import torch

        with seeded_generators(unit_seed(config, partition.index)), torch.no_grad():
            state.model.eval()
            outputs = [
                self._outputs(state.model, inputs).cpu()
                for inputs, _ in self._batches(partition, config, training=False)
            ]
        return torch.cat(outputs).numpy()

    def capture(self, state: TorchState) -> dict[str, Any]:
        """Returns a dictionary of tensors, numbers and strings; the tensors are those of the state."""
        return torch_state.capture(state)

    def restore(self, captured: Mapping[str, Any], config: Config) -> TorchState:
        """Returns a state that uses the tensors of `captured`, which the caller must not use any more.
        Changed values of the config apply."""
        with seeded_generators(unit_seed(config, None)):
            model = torch_state.build_empty(lambda: self.model(config), captured)
            torch_state.fill_model(model, captured)
            state = self._build_state(model, config)
            state.steps, state.epoch = int(captured["steps"]), int(captured["epoch"])
            if captured["scheduler"] is not None:
                state.scheduler = self._build_scheduler(state, config)
                torch_state.fill_scheduler(state.scheduler, captured)
            torch_state.fill_optimizer(state, captured)
        return state

    # -- may be overridden by a subclass
    # -------------------------------------------------------------------------

    def training_loss(self, model: Any, inputs: Any, targets: Any, config: Config) -> Any:
        """Returns the loss of one batch."""
        del config  # for subclasses that override it
        return self.loss(self._outputs(model, inputs), targets)

    # -- parts -----------------------------------------------------------------------------------------------

    def whole(self, state: TorchState) -> Any:
        """Returns the trained module, after its backbone if there is one."""
        import torch

        return (
            state.model
            if self._backbone is None
            else torch.nn.Sequential(self._backbone.module(self._device()), state.model)
        )

    def _build_state(self, model: Any, config: Config) -> TorchState:
        import torch

        if not isinstance(model, torch.nn.Module):
            raise SpecError(
                f"TorchTrainable: model(config) returned {type(model).__name__}, not a torch.nn.Module"
            )
        if any(torch.nn.parameter.is_lazy(parameter) for parameter in model.parameters()):
            raise SpecError(
                "TorchTrainable: the model has lazy parameters, whose shapes are not known yet",
                hints=("set the sizes of its layers",),
            )
        model.to(self._device())
        optimizer = self.optimizer(model.parameters(), config)
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise SpecError(
                f"TorchTrainable: optimizer(parameters, config) returned {type(optimizer).__name__}, "
                "not a torch.optim.Optimizer"
            )
        return TorchState(model, optimizer, initial_hyperparameters=torch_state.hyperparameters(optimizer))

    def _build_scheduler(self, state: TorchState, config: Config) -> Any:
        assert self.schedule is not None
        scheduler = (
            self.schedule(state.optimizer, config, state.steps)
            if self.schedule_every == "batch"
            else self.schedule(state.optimizer, config)
        )
        if type(scheduler).__name__ == "ReduceLROnPlateau" or not hasattr(scheduler, "step"):
            raise SpecError(
                f"TorchTrainable: schedule returned {type(scheduler).__name__}",
                hints=("a scheduler whose step() takes no metric",),
            )
        return scheduler

    @contextmanager
    def _train_context(
        self, state: TorchState, partitions: Sequence[Partition], config: Config
    ) -> Iterator[None]:
        """One unit of work: sets the epoch's learning rate, the unit's random numbers, and training mode."""
        if self.schedule is not None and state.scheduler is None:
            size = self._batch_size(config)
            state.steps, state.epoch = (
                sum(self._step_count(rows, size) for rows in partitions[0].peers),
                config.epoch,
            )
            state.scheduler = self._build_scheduler(state, config)
        while state.epoch < config.epoch:
            state.epoch += 1
            if state.scheduler is not None and self.schedule_every == "epoch":
                state.scheduler.step()
        with seeded_generators(unit_seed(config, partitions[0].index)):
            state.model.train()
            yield

    def _step(self, state: TorchState, inputs: Any, targets: Any, config: Config) -> None:
        state.optimizer.zero_grad(set_to_none=True)
        self.training_loss(state.model, inputs, targets, config).backward()
        self._update(state)

    def _next_loss(self, state: TorchState, batches: Iterator[tuple[Any, Any]], config: Config) -> Any:
        inputs, targets = next(batches)
        return self.training_loss(state.model, inputs, targets, config)

    def _update(self, state: TorchState) -> None:
        if self.clip_norm is not None:
            import torch

            torch.nn.utils.clip_grad_norm_(state.model.parameters(), self.clip_norm)
        state.optimizer.step()
        if state.scheduler is not None and self.schedule_every == "batch":
            state.scheduler.step()

    def _batches(
        self, partition: Partition, config: Config, *, training: bool, steps: int | None = None
    ) -> Iterator[tuple[Any, Any]]:
        device = self._device()
        if self.loader is not None:
            for inputs, targets in self.loader(partition, config, training):
                yield move_to_device(inputs, device), move_to_device(targets, device)
            return
        size = self._batch_size(config) if training else _EVALUATION_ROWS
        seed = shuffle_seed(config, partition.index) if training else None
        data = self._prepare_data(partition)
        if training and not self.drop_last and steps is None:
            steps = self._step_count(len(data), size)
            steps = None if steps == -(-len(data) // size) else steps
        for batch in data.batches(size, seed, drop_last=training and self.drop_last, steps=steps):
            tensors = {name: as_tensor(array, device) for name, array in batch.items()}
            if self.transform is not None and self._backbone is None:
                inputs, targets = self.transform(tensors, config, training)
            else:
                inputs, targets = tensors["x"], tensors["y"]
            yield as_inputs(inputs), as_targets(targets)

    def _prepare_data(self, partition: Partition) -> Partition:
        if self._backbone is not None:
            return self._backbone.features(
                partition if self.transform else select_columns(partition, self.inputs, self.target),
                self._device(),
            )
        return (
            partition if self.transform is not None else select_columns(partition, self.inputs, self.target)
        )

    def _outputs(self, model: Any, inputs: Any) -> Any:
        return model(*inputs) if isinstance(inputs, tuple) else model(inputs)

    def _compute_means(self, outputs: Any, targets: Any) -> dict[str, Any]:
        means = {
            name: (METRICS[metric] if isinstance(metric, str) else metric)(outputs, targets)
            for name, metric in self.metrics.items()
            if isinstance(metric, (str, RowMean))
        }
        return {"loss": self.loss(outputs, targets), **means}

    def _batch_size(self, config: Config) -> int:
        size = self.batch_size if self.batch_size is not None else config.get("batch_size", 32)
        if not isinstance(size, int) or size < 1:
            raise SpecError(f"batch_size is {size!r}", hints=("a whole number of rows, at least 1",))
        return size

    def _step_count(self, rows: int, size: int) -> int:
        """Returns how many batches a partition makes. A single remaining row joins another batch: alone, it
        has no variance for normalisation."""
        if self.drop_last or (rows > size and rows % size == 1):
            return rows // size
        return -(-rows // size)

    def _device(self) -> Any:
        import torch

        return torch.device(
            ("cuda" if torch.cuda.is_available() else "cpu") if self.device == "auto" else self.device
        )
