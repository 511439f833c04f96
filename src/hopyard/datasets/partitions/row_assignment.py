"""Assigns rows to partitions in turn."""

from __future__ import annotations

from hopyard.datasets.partitions.arrays import Array, np
from hopyard.datasets.partitions.seeded_order import derive_seed, epoch_order, shuffle_rows


def stratified_order(rows: int, strata: Array | None, seed: int) -> Array:
    """Returns all rows, shuffled, with the rows of a class together.

    The rows are assigned in turn to any number of partitions. Each class is one contiguous stretch of the
    order. So both the partitions and each class within them differ by at most one row.
    """
    order = shuffle_rows(rows, derive_seed(seed, "rows"))
    return order if strata is None else order[np.argsort(strata[order], kind="stable")]


def split_validation(order: Array, share: float) -> tuple[Array, Array]:
    """Returns (the rest, the share). The share is taken evenly along the order, so it holds the same share of
    every class, within one row."""
    count = int(len(order) * share + 0.5)
    steps = np.arange(len(order) + 1, dtype=np.int64) * count // max(1, len(order))
    is_validation = np.diff(steps) > 0
    return order[~is_validation], order[is_validation]


def assign_rows(
    positions: Array, parts: int, blocks: Array | None, window_rows: int, seed: int
) -> list[Array]:
    """Returns the rows of each partition, in the partition's own order."""
    assignments = []
    for part in range(parts):
        rows = np.sort(positions[part::parts])
        order = epoch_order(
            len(rows),
            derive_seed(seed, "within", part),
            None if blocks is None else blocks[rows],
            window_rows,
        )
        assignments.append(rows[order])
    return assignments
