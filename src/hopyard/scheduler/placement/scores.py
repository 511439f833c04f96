"""How good a node is for one replica: the smallest score wins, then the smallest id. One rule a function, by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hopyard.scheduler.placement.free import Free, Shape
from hopyard.scheduler.placement.ground import Ints

Score = Callable[[Free, Shape, Ints], Ints]


def tightness(free: Free, shape: Shape, rows: Ints) -> Ints:
    """Smallest where least is left, GPUs before CPUs before memory, so that whole nodes stay free."""
    gpu = np.maximum(free.gpu[rows], 0).sum(axis=1)
    cpu = np.clip(free.cpu[rows] >> 3, 0, (1 << 20) - 1)
    memory = np.clip(free.memory[rows] >> 26, 0, (1 << 18) - 1)
    found: Ints = (gpu << 38) + (cpu << 18) + memory
    return found


def first_fit(free: Free, shape: Shape, rows: Ints) -> Ints:
    """All alike: the smallest id wins."""
    return np.zeros(len(rows), np.int64)


SCORES: dict[str, Score] = {
    "fragmentation": tightness,
    "fgd": tightness,
    "best-fit": tightness,
    "packed": tightness,
    "first-fit": first_fit,
}
