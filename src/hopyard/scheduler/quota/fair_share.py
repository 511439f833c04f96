"""The numbers that decide who comes first.

Sources: Ghodsi et al., Dominant Resource Fairness (NSDI'11): who has the smallest dominant share comes next.
Kueue, fair sharing: between queues only what is borrowed beyond the guarantee counts, divided by the weight.
Slurm, multifactor priority: past use counts with a half-life.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from hopyard.domain.queue import GPU_OF, Amounts


def guarantee_utilisation(used: Amounts, guarantee: Amounts, resources: Iterable[str]) -> float:
    """How full the guarantee is in the fullest of these resources: max over r of used_r / guarantee_r.
    All are in `guarantee`."""
    return max(used.get(name, 0) / guarantee[name] for name in resources)


def borrowed_amounts(used: Amounts, guarantee: Amounts) -> Amounts:
    """What is used beyond the guarantee: max(0, used_r - guarantee_r) for every resource r."""
    return {
        name: amount - guarantee.get(name, 0)
        for name, amount in used.items()
        if amount > guarantee.get(name, 0)
    }


def borrowed_share(used: Amounts, guarantee: Amounts, cluster: Amounts, weight: float) -> float:
    """max over r of borrowed_r / cluster_r, divided by the weight.
    With no guarantee it is DRF's dominant share. Models of GPUs count as GPUs only."""
    largest = 0.0
    for name, amount in used.items():
        beyond = amount - guarantee.get(name, 0)
        if beyond > 0 and cluster.get(name) and not name.startswith(GPU_OF):
            largest = max(largest, beyond / cluster[name])
    return largest / weight


def historical_share(share_seconds: float, half_life_s: float) -> float:
    """The share of the cluster that was used on average, with weights that halve every `half_life_s`:
    share-seconds times ln 2 / half-life. Who used the share s all the time has s."""
    return share_seconds * math.log(2) / half_life_s
