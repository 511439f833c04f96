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
    """Returns the seed of one trial on one partition in one epoch; for partition None, that of the start of
    the trial."""
    if partition is None:
        return derive_seed(config.seed, config.trial, "init")
    return derive_seed(config.seed, config.trial, config.epoch, partition)


def shuffle_seed(config: Config, partition: int) -> int:
    """Returns the seed for the order of rows. It is the same for all trials, which makes them comparable."""
    return derive_seed(config.seed, "shuffle", config.epoch, partition)


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Seeds the generators of Python, NumPy and PyTorch with `seed`, and restores their states after the
    block."""
    saved_states = rng_state.capture()
    seed_generators(seed)
    try:
        yield
    finally:
        rng_state.restore(saved_states)


def seed_generators(seed: int) -> None:
    """Seeds the generators of Python and of the imported libraries."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        seed_torch(torch, seed)
