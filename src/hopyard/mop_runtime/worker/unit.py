"""One unit: a state is made from its bytes, trained or evaluated, and made bytes again.
A worker does this for the driver; a replay does the same in one process, and must come to the same bytes."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hopyard.datasets.partitions.partition import Partition
from hopyard.errors import IntegrityError, SpecError
from hopyard.sdk import rng_state
from hopyard.trainables.config import Config
from hopyard.trainables.protocol import Reduce, SupportsCapture, SupportsDataParallel, Trainable
from hopyard.trial_state import rng_seed
from hopyard.trial_state.decode import decode
from hopyard.trial_state.encode import EncodedState, encode


def init_state(trainable: Trainable, config: Config, seed: int) -> Any:
    """A fresh state; the generators begin where this trial's do."""
    rng_seed.seed_all(seed, config.trial)
    return trainable.init(config)


def load_state(
    trainable: Trainable, data: memoryview | bytearray, config: Config, *, untrusted: bool = False
) -> Any:
    """The state that `keep` made these bytes of; the generators go on where they were then.
    data, untrusted: as of `decode`."""
    held = decode(data, untrusted=untrusted)
    try:
        captured, generators = held["state"], held["chance"]
    except (TypeError, KeyError) as bad:
        raise IntegrityError("the decoded value is not the state of a trial") from bad
    state = trainable.restore(captured, config) if isinstance(trainable, SupportsCapture) else captured
    rng_state.restore(generators)
    return state


def encode_state(
    trainable: Trainable, state: Any, generators: Mapping[str, Any] | None = None
) -> EncodedState:
    """generators: as `chance.take` found them, where those are to go on that the state is kept with; None: as
    they are now. Raises SpecError naming what cannot be kept."""
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
    """As a member of a group, or, with all partitions and a `reduce` that returns what it is given, as the
    whole of it.

    group_partitions: all partitions of the group. Afterwards every member's generators are the same, whatever
    each drew.
    """
    if not isinstance(trainable, SupportsDataParallel):
        raise SpecError(
            f"`{type(trainable).__name__}` has no `train_together`, so several workers cannot train "
            "one state",
            hints=("`hybrid: false` lets a trial use one worker at a time",),
        )
    trained = trainable.train_together(state, partitions, config, reduce)
    rng_seed.seed_all(seed, f"{config.trial}/together/{config.epoch}/{','.join(map(str, group_partitions))}")
    return state if trained is None else trained


def evaluate(trainable: Trainable, state: Any, partition: Partition, config: Config) -> dict[str, float]:
    """Raises SpecError where it returned no numbers by name."""
    said: Any = trainable.evaluate(state, partition, config)
    if not isinstance(said, Mapping):
        hint = "return a dictionary of means over the partition's rows: {'val_acc': 0.93}"
        raise SpecError(
            f"`evaluate` returned {_describe_type(said)}, not a dictionary of metrics", hints=(hint,)
        )
    metrics = {}
    for name, value in said.items():
        try:
            metrics[str(name)] = float(value)
        except (TypeError, ValueError, RuntimeError) as bad:
            raise SpecError(
                f"`evaluate` returned {_describe_type(value)} as `{name}`, which is not a number"
            ) from bad
    return metrics


def free_memory() -> None:
    """After a unit that ran out of it."""
    import gc

    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _describe_type(value: object) -> str:
    return "nothing" if value is None else f"a `{type(value).__name__}`"
