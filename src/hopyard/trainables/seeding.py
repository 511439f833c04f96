"""Random streams per unit: a repeated unit draws the same numbers on any process at any time."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hopyard.datasets.partitions.seeded_order import derive_seed
from hopyard.sdk import rng_state
from hopyard.trainables.config import Config
from hopyard.trial_state.rng_seed import seed_torch


def unit_seed(config: Config, partition: int | None) -> int:
    """Of one trial on one partition in one epoch; partition None: of the beginning of the trial."""
    if partition is None:
        return derive_seed(config.seed, config.trial, "init")
    return derive_seed(config.seed, config.trial, config.epoch, partition)


def shuffle_seed(config: Config, partition: int) -> int:
    """The order of rows: the same for all trials, which makes them comparable."""
    return derive_seed(config.seed, "shuffle", config.epoch, partition)


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """The generators of Python, NumPy and PyTorch begin at `seed`; after the block they are as they were
    before."""
    before = rng_state.capture()
    seed_generators(seed)
    try:
        yield
    finally:
        rng_state.restore(before)


def seed_generators(seed: int) -> None:
    """Seed the generators of Python and of whatever is in use."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        seed_torch(torch, seed)
