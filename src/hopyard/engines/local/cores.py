"""Which cores a replica is bound to where the kernel offers no quota."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable


def choose_cores(cpu_milli: int, used: Iterable[int]) -> tuple[int, ...] | None:
    """As many whole cores as cover the request, the least used first; None when that is all of them (nothing
    to bind)."""
    cores = sorted(os.sched_getaffinity(0))
    wanted = max(1, -(-cpu_milli // 1000))
    if wanted >= len(cores):
        return None
    load = Counter(used)
    return tuple(sorted(sorted(cores, key=lambda core: (load[core], core))[:wanted]))
