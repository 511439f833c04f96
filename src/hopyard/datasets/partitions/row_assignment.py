"""Dealing rows to partitions, like cards."""

from __future__ import annotations

from hopyard.datasets.partitions.arrays import Array, np
from hopyard.datasets.partitions.seeded_order import derive_seed, epoch_order, shuffle_rows


def stratified_order(rows: int, strata: Array | None, seed: int) -> Array:
    """All rows, shuffled; those of a class together. Dealt one by one to any number of partitions, both the
    partitions and each class within them differ by one row at most, for a class is one stretch of the
    turn."""
    order = shuffle_rows(rows, derive_seed(seed, "rows"))
    return order if strata is None else order[np.argsort(strata[order], kind="stable")]


def split_validation(order: Array, share: float) -> tuple[Array, Array]:
    """(the rest, the share), the share taken evenly along the turn: of every class as much, within one
    row."""
    count = int(len(order) * share + 0.5)
    steps = np.arange(len(order) + 1, dtype=np.int64) * count // max(1, len(order))
    chosen = np.diff(steps) > 0
    return order[~chosen], order[chosen]


def assign_rows(
    positions: Array, parts: int, blocks: Array | None, window_rows: int, seed: int
) -> list[Array]:
    """The rows of each partition, in the partition's own order."""
    found = []
    for part in range(parts):
        rows = np.sort(positions[part::parts])
        order = epoch_order(
            len(rows),
            derive_seed(seed, "within", part),
            None if blocks is None else blocks[rows],
            window_rows,
        )
        found.append(rows[order])
    return found
