"""The order of partitions as a function of seed, trial and epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from hopyard.domain.ids import PartitionId, TrialId


def make_fixed_order(
    partitions: Sequence[PartitionId], seed: int
) -> Callable[[TrialId, int], Sequence[PartitionId]]:
    """Returns a function of trial and epoch. All trials visit the partitions of an epoch in one shuffled
    circle, each from another start, so that trials of equal duration never need the same partition at
    once."""

    def order(trial: TrialId, epoch: int) -> Sequence[PartitionId]:
        # a hash is the same on every platform and in every version
        circle = sorted(
            partitions,
            key=lambda partition: hashlib.blake2b(f"{seed}/{epoch}/{partition}".encode()).digest(),
        )
        start = int(trial) % len(circle)
        return [*circle[start:], *circle[:start]]

    return order
