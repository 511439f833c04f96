"""Chooses the cores to which a replica is bound if the kernel offers no quota."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable


def choose_cores(cpu_milli: int, used: Iterable[int]) -> tuple[int, ...] | None:
    """Returns enough whole cores for the request, the least used first; None if that is all of them, so no
    binding is needed."""
    cores = sorted(os.sched_getaffinity(0))
    core_count = max(1, -(-cpu_milli // 1000))
    if core_count >= len(cores):
        return None
    load = Counter(used)
    return tuple(sorted(sorted(cores, key=lambda core: (load[core], core))[:core_count]))
