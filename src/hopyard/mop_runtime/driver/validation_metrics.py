"""Combines the metrics of all validation partitions."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hopyard.domain.ids import PartitionId


def weighted_means(results: Mapping[PartitionId, tuple[Mapping[str, float], int]]) -> dict[str, float]:
    """Returns the mean of each metric over all rows. Partitions are added in a fixed order, so the order of
    evaluations does not affect the result."""
    names = {name: None for partition in sorted(results) for name in results[partition][0]}
    return {
        name: weighted_mean(
            [
                (results[partition_id][0][name], results[partition_id][1])
                for partition_id in sorted(results)
                if name in results[partition_id][0]
            ]
        )
        for name in names
    }


def weighted_mean(weighted_values: list[tuple[float, int]]) -> float:
    """Returns the mean of values with numbers of rows (or of partitions)."""
    rows = sum(count for _, count in weighted_values)
    if not rows:
        return math.nan
    products = [value * count for value, count in weighted_values if count]
    if all(map(math.isfinite, products)):
        return math.fsum(products) / rows
    return sum(products) / rows
