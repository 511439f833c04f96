"""Dealing rows to partitions, like cards."""

from __future__ import annotations

from hopyard.datasets.partitions.arrays import Array, np
from hopyard.datasets.partitions.order import epoch_order, seed_of, shuffled


def in_turn(rows: int, strata: Array | None, seed: int) -> Array:
    """All rows, shuffled; those of a class together. Dealt one by one to any number of partitions, both the
    partitions and each class within them differ by one row at most, for a class is one stretch of the
    turn."""
    order = shuffled(rows, seed_of(seed, "rows"))
    return order if strata is None else order[np.argsort(strata[order], kind="stable")]


def set_apart(turn: Array, share: float) -> tuple[Array, Array]:
    """(the rest, the share), the share taken evenly along the turn: of every class as much, within one
    row."""
    count = int(len(turn) * share + 0.5)
    steps = np.arange(len(turn) + 1, dtype=np.int64) * count // max(1, len(turn))
    chosen = np.diff(steps) > 0
    return turn[~chosen], turn[chosen]


def dealt(turn: Array, parts: int, blocks: Array | None, window_rows: int, seed: int) -> list[Array]:
    """The rows of each partition, in the partition's own order."""
    found = []
    for part in range(parts):
        rows = np.sort(turn[part::parts])
        order = epoch_order(
            len(rows), seed_of(seed, "within", part), None if blocks is None else blocks[rows], window_rows
        )
        found.append(rows[order])
    return found
