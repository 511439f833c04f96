"""The interface between a study and user code: initialise a state, train it on a partition, evaluate it.

A state moves between processes: it is encoded after every unit, and decoded in another process before the
next. It consists of dictionaries with string keys, lists, numbers, strings, bytes, NumPy arrays and PyTorch
tensors. Other states need `capture`, which returns such a value, and `restore`, which rebuilds the state from
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from hopyard.datasets.partitions.partition import Partition
from hopyard.trainables.config import Config

State = Any
Reduce = Callable[[Sequence[Any]], Sequence[Any]]
"""Takes this process's NumPy arrays and returns their element-wise averages over all processes that train the
state together. It must add in the order of partitions and divide at the end, as `average` does, so that all
processes get the same bits."""


class Trainable(Protocol):
    """Called with positional arguments. Calls for one trial are sequential, but not in one process."""

    def init(self, config: Config, /) -> State:
        """Returns the state of an untrained trial. Equal configs must give equal states."""
        ...

    def train(self, state: State, partition: Partition, config: Config, /) -> State:
        """Returns the state after one pass over the partition; None means that `state` was changed in place.
        The result must depend only on state, partition and config, because a unit may be repeated and a study
        replayed."""
        ...

    def evaluate(self, state: State, partition: Partition, config: Config, /) -> Mapping[str, float]:
        """Returns metrics as means over the rows of the partition. Must not change the state."""
        ...


@runtime_checkable
class SupportsCapture(Protocol):
    """Optional. The runtime encodes `capture(state)` instead of the state, and calls `restore` with the
    decoded value."""

    def capture(self, state: State, /) -> Mapping[str, Any]:
        """The result may share memory with the state: it is encoded before the state is trained further."""
        ...

    def restore(self, captured: Mapping[str, Any], config: Config, /) -> State:
        """Returns a state. The callee owns `captured`: its arrays are writable, not shared, and may be used
        in place, because a copy costs more than a hop may. The config may have other values than at the start
        of the state (population based training); the new values apply from now on."""
        ...


@runtime_checkable
class SupportsGathering(Protocol):
    """Optional. Metrics of the whole validation set that are no means over rows, such as RMSE, F1 and AUC."""

    def gather(
        self, state: State, partition: Partition, config: Config, /
    ) -> tuple[Mapping[str, float], Any]:
        """Called instead of `evaluate`. Returns the metrics that `evaluate` returns, and what `measure` needs
        of this partition: arrays, tensors and plain values, or None for nothing."""
        ...

    def measure(self, gathered: Sequence[Any], config: Config, /) -> Mapping[str, float]:
        """Returns metrics of the whole set. gathered: of all partitions, in their order, without None. Called
        in one process, for each state once."""
        ...


@runtime_checkable
class SupportsPredict(Protocol):
    """Optional. Predicts rows with a trained state."""

    def predict(self, state: State, partition: Partition, config: Config, /) -> Any:
        """Returns an array with one row per row of the partition, in the same order. The target column has no
        meaning here. Must not change the state."""
        ...


@runtime_checkable
class SupportsDataParallel(Protocol):
    """Optional. Several processes train one state at once, each on its own partition, with averaged
    gradients."""

    def train_together(
        self, state: State, partitions: Sequence[Partition], config: Config, reduce: Reduce, /
    ) -> State:
        """Trains as `train` does, over all partitions at once.

        partitions: those of this process, in order of their index; normally one. Every process makes the same
        number of steps and ends with the same state. One process with all partitions and a `reduce` that
        returns its argument produces the same bits.
        """
        ...


def average(gradients: Sequence[Sequence[Any]]) -> list[Any]:
    """Returns the element-wise mean over partitions, added in their order. gradients[p]: the arrays of
    partition p."""
    first, *rest = gradients
    if not rest:
        return list(first)
    means = [array.copy() for array in first]
    for arrays in rest:
        for index, array in enumerate(arrays):
            means[index] += array
    for index in range(len(means)):
        means[index] /= len(gradients)
    return means
