"""How much of a machine's memory a partition may take."""

from __future__ import annotations

import os
from pathlib import Path

from hopyard.errors import SpecError

DEFAULT_BUDGET = -1  # half of what is free now, shared with the other workers of this machine
BUDGET_VARIABLE = "HOPYARD_PARTITION_MEMORY"
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def budget_bytes(limit: int, partitions: int) -> int:
    """limit: bytes, or DEFAULT_BUDGET. partitions: how many may be on this machine, where `LOCAL_WORLD_SIZE`
    does not say."""
    if limit != DEFAULT_BUDGET:
        return limit
    asked = os.environ.get(BUDGET_VARIABLE, "")
    if asked:
        return _parse_bytes(asked)
    neighbours = os.environ.get("LOCAL_WORLD_SIZE", "")
    return _free_bytes() // (2 * max(1, int(neighbours) if neighbours.isdigit() else partitions))


def _parse_bytes(text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in _UNITS else (text, "")
    try:
        return int(float(number) * _UNITS.get(unit, 1))
    except ValueError as bad:
        raise SpecError(
            f"{BUDGET_VARIABLE}: `{text}` is no amount of memory", hints=("it looks like 8G or 512M",)
        ) from bad


def _free_bytes() -> int:
    """What the machine could give, and what the group of processes that this one is in may still take."""
    free = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    try:
        text = Path("/proc/meminfo").read_text()
        free = [
            next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("MemAvailable"))
        ]
    except (OSError, StopIteration, ValueError):
        pass  # no Linux: what is free at least
    for limit, used in _CGROUP_FILES:
        try:
            free.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return max(0, min(free))


_CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
