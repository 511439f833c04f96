"""Keeping a run within its part of the memory of a GPU that it shares, so that its neighbours on that card
live on.

The driver gives every process as much as there is. So it is watched: the driver's library tells what each
process uses of a card. Where it does not (in some containers it knows processes under other numbers), nothing
can be said and nobody is ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hopyard.config.units import format_bytes
from hopyard.replica import process_tree

CHECK_INTERVAL_S = 0.25
GpuUsage = Callable[[int], Mapping[int, int]]  # of a card, by its index: bytes by process


def read_nvml_usage() -> GpuUsage:
    """What NVIDIA's library tells, loaded here and not before a fork; nothing for cards that it does not
    know."""
    handles: dict[int, Any] = {}
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # declared GPUs, or a driver that went away: there is nothing to tell
        return lambda _card: {}

    def usage(card: int) -> Mapping[int, int]:
        try:
            if card not in handles:
                handles[card] = pynvml.nvmlDeviceGetHandleByIndex(card)
            found: dict[int, int] = {}
            for processes in (
                pynvml.nvmlDeviceGetComputeRunningProcesses,
                pynvml.nvmlDeviceGetGraphicsRunningProcesses,
            ):
                found |= {
                    int(one.pid): int(one.usedGpuMemory)
                    for one in processes(handles[card])
                    if one.usedGpuMemory
                }
        except pynvml.NVMLError:
            return {}
        return found

    return usage


@dataclass(slots=True)
class GpuMemoryLimit:
    """limit: of each card, in bytes. check() returns the reason to end the run, or None."""

    limit: int
    gpu_indices: tuple[int, ...]
    usage: GpuUsage = field(default_factory=read_nvml_usage)

    def check(self) -> str | None:
        ours: set[int] | None = None
        for card in self.gpu_indices:
            by_process = self.usage(card)
            if sum(by_process.values()) <= self.limit:
                continue  # all who use it together; looking for who is ours costs more
            ours = {stat.pid for stat in process_tree.descendants(os.getpid())} if ours is None else ours
            used = sum(size for pid, size in by_process.items() if pid in ours)
            if used > self.limit:
                return (
                    f"out of GPU memory: used {format_bytes(used)} of its "
                    f"{format_bytes(self.limit)} on GPU {card}"
                )
        return None
