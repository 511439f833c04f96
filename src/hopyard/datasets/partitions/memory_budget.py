"""The memory that a partition may use."""

from __future__ import annotations

import os
from pathlib import Path

from hopyard.errors import SpecError

DEFAULT_BUDGET = -1  # half of the free memory, shared with the other workers of this machine
BUDGET_VARIABLE = "HOPYARD_PARTITION_MEMORY"
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def budget_bytes(limit: int, partitions: int) -> int:
    """Returns the memory limit of one partition in bytes.

    limit: bytes, or DEFAULT_BUDGET. partitions: their number on this machine, used if `LOCAL_WORLD_SIZE` is
    not set.
    """
    if limit != DEFAULT_BUDGET:
        return limit
    override = os.environ.get(BUDGET_VARIABLE, "")
    if override:
        return _parse_bytes(override)
    local_workers = os.environ.get("LOCAL_WORLD_SIZE", "")
    return _free_bytes() // (2 * max(1, int(local_workers) if local_workers.isdigit() else partitions))


def _parse_bytes(text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in _UNITS else (text, "")
    try:
        return int(float(number) * _UNITS.get(unit, 1))
    except ValueError as error:
        raise SpecError(
            f"{BUDGET_VARIABLE}: `{text}` is not an amount of memory", hints=("use the form 8G or 512M",)
        ) from error


def _free_bytes() -> int:
    """Returns the available memory of the machine in bytes, or the rest of the cgroup's limit if that is
    less."""
    free = [os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    try:
        text = Path("/proc/meminfo").read_text()
        free = [
            next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("MemAvailable"))
        ]
    except (OSError, StopIteration, ValueError):
        pass  # not Linux: at least the free pages
    for limit, used in _CGROUP_FILES:
        try:
            free.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # missing, or "max"
            continue
    return max(0, min(free))


_CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
