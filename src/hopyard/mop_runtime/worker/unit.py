"""The steps of one unit: decode a state, train or evaluate it, and encode it again.

A worker runs them for the driver. A replay runs the same steps in one process, and must produce the same
bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hopyard.datasets.partitions.partition import Partition
from hopyard.errors import IntegrityError, SpecError
from hopyard.sdk import rng_state
from hopyard.trainables.config import Config
from hopyard.trainables.protocol import (
    Reduce,
    SupportsCapture,
    SupportsDataParallel,
    SupportsGathering,
    Trainable,
)
from hopyard.trial_state import rng_seed
from hopyard.trial_state.decode import decode
from hopyard.trial_state.encode import EncodedState, encode


def init_state(trainable: Trainable, config: Config, seed: int) -> Any:
    """Returns a new state; seeds the generators for this trial."""
    rng_seed.seed_all(seed, config.trial)
    return trainable.init(config)


def load_state(
    trainable: Trainable, data: memoryview | bytearray, config: Config, *, untrusted: bool = False
) -> Any:
    """Returns the state in bytes from `encode_state`, and restores the generators. data, untrusted: as in
    `decode`."""
    content = decode(data, untrusted=untrusted)
    try:
        captured, generators = content["state"], content["chance"]
    except (TypeError, KeyError) as error:
        raise IntegrityError("the decoded value is not the state of a trial") from error
    state = trainable.restore(captured, config) if isinstance(trainable, SupportsCapture) else captured
    rng_state.restore(generators)
    return state


def encode_state(
    trainable: Trainable, state: Any, generators: Mapping[str, Any] | None = None
) -> EncodedState:
    """generators: the states from `rng_state.capture` that are stored with the state; None means the current
    ones. Raises SpecError that names a part that cannot be serialized."""
    generators = rng_state.capture() if generators is None else generators
    captured = trainable.capture(state) if isinstance(trainable, SupportsCapture) else state
    return encode({"state": captured, "chance": generators}, name="")


def train(trainable: Trainable, state: Any, partition: Partition, config: Config) -> Any:
    trained = trainable.train(state, partition, config)
    return state if trained is None else trained


def train_together(
    trainable: Trainable,
    state: Any,
    partitions: Sequence[Partition],
    config: Config,
    reduce: Reduce,
    *,
    seed: int,
    group_partitions: Sequence[int],
) -> Any:
    """Trains as a member of a group. With all partitions and a `reduce` that returns its argument, one
    process does the work of the whole group.

    group_partitions: all partitions of the group. Afterwards every member's generators are equal, regardless
    of what each drew.
    """
    if not isinstance(trainable, SupportsDataParallel):
        raise SpecError(
            f"`{type(trainable).__name__}` has no `train_together`, so several workers cannot train "
            "one state",
            hints=("set `hybrid: false`, so that a trial uses one worker at a time",),
        )
    trained = trainable.train_together(state, partitions, config, reduce)
    rng_seed.seed_all(seed, f"{config.trial}/together/{config.epoch}/{','.join(map(str, group_partitions))}")
    return state if trained is None else trained


def evaluate(
    trainable: Trainable, state: Any, partition: Partition, config: Config
) -> tuple[dict[str, float], Any]:
    """Returns the metrics of the partition, and what `measure` needs of it: None for nothing. Raises
    SpecError if the metrics are not a dictionary of numbers."""
    if not isinstance(trainable, SupportsGathering):
        return _as_metrics("evaluate", trainable.evaluate(state, partition, config)), None
    result: Any = trainable.gather(state, partition, config)
    if not isinstance(result, tuple) or len(result) != 2:
        raise SpecError(
            f"`gather` returned {_describe_type(result)}, not metrics and gathered values",
            hints=("return two things: {'loss': 0.3}, {'outputs': array, 'targets': array}",),
        )
    return _as_metrics("gather", result[0]), result[1]


def measure(trainable: Trainable, gathered: Sequence[Any], config: Config, *, seed: int) -> dict[str, float]:
    """Returns the metrics of the whole set. gathered: of all partitions that gathered anything, in their
    order."""
    if not isinstance(trainable, SupportsGathering):
        raise SpecError(f"`{type(trainable).__name__}` has no `measure`")
    rng_seed.seed_all(seed, f"{config.trial}/measure/{config.epoch}")
    return _as_metrics("measure", trainable.measure(gathered, config))


def _as_metrics(function: str, result: Any) -> dict[str, float]:
    if not isinstance(result, Mapping):
        hint = "return a dictionary of means over the partition's rows: {'val_acc': 0.93}"
        raise SpecError(
            f"`{function}` returned {_describe_type(result)}, not a dictionary of metrics", hints=(hint,)
        )
    metrics = {}
    for name, value in result.items():
        try:
            metrics[str(name)] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise SpecError(
                f"`{function}` returned {_describe_type(value)} as `{name}`, which is not a number"
            ) from error
    return metrics


def free_memory() -> None:
    """Frees memory after a unit that ran out of it."""
    import gc

    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _describe_type(value: object) -> str:
    return "nothing" if value is None else f"a `{type(value).__name__}`"
