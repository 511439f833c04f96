"""What a study asks of the user's code: to begin a state, to train it on a partition, to evaluate it.

A state hops between processes: it is encoded after every unit and decoded before the next, elsewhere. It is
made of dictionaries with string keys, lists, numbers, strings, bytes, NumPy arrays and PyTorch tensors; or
`capture` makes such a value of it, and `restore` makes it of that again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from hopyard.datasets.partitions.partition import Partition
from hopyard.trainables.config import Config

State = Any
Reduce = Callable[[Sequence[Any]], Sequence[Any]]
"""Takes this process's arrays (NumPy) and returns the averages, element by element, over all processes that
train the state together. Must add in the order of partitions and divide at the end, as `average` does, so
that everybody gets the same bits."""


class Trainable(Protocol):
    """Called with positional arguments. A trial's calls come one after another, though not in one process."""

    def init(self, config: Config, /) -> State:
        """The state of a trial that has not trained. Equal configs must give equal states."""
        ...

    def train(self, state: State, partition: Partition, config: Config, /) -> State:
        """The state after one pass over the partition; None says that `state` was changed in place. It must
        depend on the state, the partition and the config only: a unit may be repeated, and a study
        replayed."""
        ...

    def evaluate(self, state: State, partition: Partition, config: Config, /) -> Mapping[str, float]:
        """Metrics as means over the partition's rows. Must not change the state."""
        ...


@runtime_checkable
class Captures(Protocol):
    """Optional. The runtime encodes `capture(state)` in place of the state, and calls `restore` with what it
    decoded."""

    def capture(self, state: State, /) -> Mapping[str, Any]:
        """It may share memory with the state: it is encoded before the state is trained on."""
        ...

    def restore(self, captured: Mapping[str, Any], config: Config, /) -> State:
        """A state. `captured` is given away: what lies in it is writable, nobody else's, and may be used in
        place, for copying costs more than a hop may. The config may have other values than those the state
        was begun with (population based training): they hold from now on."""
        ...


@runtime_checkable
class Predicts(Protocol):
    """Optional. What a trained state says of rows whose target nobody knows."""

    def predict(self, state: State, partition: Partition, config: Config, /) -> Any:
        """An array with one row for each of the partition's, in its own order; what it holds as the target
        means nothing. Must not change the state."""
        ...


@runtime_checkable
class TrainsDataParallel(Protocol):
    """Optional. One state trained by several processes at once, each on a partition of its own, gradients
    averaged."""

    def train_together(
        self, state: State, partitions: Sequence[Partition], config: Config, reduce: Reduce, /
    ) -> State:
        """As `train`, over all partitions at once. partitions: those of this process, in order of their
        index; normally one. Every process makes as many steps, and ends with the same state. Given all
        partitions and a `reduce` that returns what it is given, one process does the same, bit for bit."""
        ...


def average(gradients: Sequence[Sequence[Any]]) -> list[Any]:
    """Element by element the mean over partitions: gradients[p] are the arrays of the p-th, added in this
    order."""
    first, *others = gradients
    if not others:
        return list(first)
    means = [array.copy() for array in first]
    for arrays in others:
        for at, array in enumerate(arrays):
            means[at] += array
    for at in range(len(means)):
        means[at] /= len(gradients)
    return means
