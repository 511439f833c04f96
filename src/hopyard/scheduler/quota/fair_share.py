"""The numbers that order queues and users.

Sources: Ghodsi et al., Dominant Resource Fairness (NSDI'11): the user with the smallest dominant share is
next. Kueue, fair sharing: between queues only borrowed amounts beyond the guarantee count, divided by the
weight. Slurm, multifactor priority: past usage counts with a half-life.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from hopyard.domain.queue import GPU_OF, Amounts


def guarantee_utilisation(used: Amounts, guarantee: Amounts, resources: Iterable[str]) -> float:
    """Returns the largest utilisation of the guarantee by resource: max over r of used_r / guarantee_r. All
    resources are in `guarantee`."""
    return max(used.get(name, 0) / guarantee[name] for name in resources)


def borrowed_amounts(used: Amounts, guarantee: Amounts) -> Amounts:
    """Returns the usage beyond the guarantee: max(0, used_r - guarantee_r) for every resource r."""
    return {
        name: amount - guarantee.get(name, 0)
        for name, amount in used.items()
        if amount > guarantee.get(name, 0)
    }


def borrowed_share(used: Amounts, guarantee: Amounts, cluster: Amounts, weight: float) -> float:
    """Returns max over r of borrowed_r / cluster_r, divided by the weight. Without a guarantee it is the
    dominant share of DRF. GPU models count as GPUs only."""
    largest = 0.0
    for name, amount in used.items():
        borrowed = amount - guarantee.get(name, 0)
        if borrowed > 0 and cluster.get(name) and not name.startswith(GPU_OF):
            largest = max(largest, borrowed / cluster[name])
    return largest / weight


def historical_share(share_seconds: float, half_life_s: float) -> float:
    """Returns the average used share of the cluster, with weights that halve every `half_life_s`:
    share-seconds times ln 2 / half-life. A constant share s gives s."""
    return share_seconds * math.log(2) / half_life_s
