"""Enforces a run's share of the memory of a GPU, so that its neighbours on that card survive.

The driver gives every process as much as is free. So the memory that each process uses is polled from the
driver's library. If the library does not report it (in some containers it uses other pids), no limit is
enforced and no process is ended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hopyard.config.units import format_bytes
from hopyard.domain.replica import NodeContext
from hopyard.replica import process_tree
from hopyard.replica.supervisor import PeriodicAction

CHECK_INTERVAL_S = 0.25
GpuUsage = Callable[[int], Mapping[int, int]]  # takes a card's index; returns bytes by pid


def read_nvml_usage() -> GpuUsage:
    """Returns a reader of NVIDIA's library, loaded here and not before a fork. It returns {} for cards that
    the library does not know."""
    handles: dict[int, Any] = {}
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # declared GPUs, or a driver that was unloaded: there is no data
        return lambda _card: {}

    def usage(card: int) -> Mapping[int, int]:
        try:
            if card not in handles:
                handles[card] = pynvml.nvmlDeviceGetHandleByIndex(card)
            bytes_by_pid: dict[int, int] = {}
            for processes in (
                pynvml.nvmlDeviceGetComputeRunningProcesses,
                pynvml.nvmlDeviceGetGraphicsRunningProcesses,
            ):
                bytes_by_pid |= {
                    int(process.pid): int(process.usedGpuMemory)
                    for process in processes(handles[card])
                    if process.usedGpuMemory
                }
        except pynvml.NVMLError:
            return {}
        return bytes_by_pid

    return usage


@dataclass(slots=True)
class GpuMemoryLimit:
    """limit: of each card, in bytes. check() returns the reason to end the run, or None."""

    limit: int
    gpu_indices: tuple[int, ...]
    usage: GpuUsage = field(default_factory=read_nvml_usage)

    def check(self) -> str | None:
        run_pids: set[int] | None = None
        for card in self.gpu_indices:
            by_process = self.usage(card)
            if sum(by_process.values()) <= self.limit:
                continue  # the total of all users of the card; finding the run's own processes costs more
            run_pids = (
                {stat.pid for stat in process_tree.descendants(os.getpid())} if run_pids is None else run_pids
            )
            used = sum(size for pid, size in by_process.items() if pid in run_pids)
            if used > self.limit:
                return (
                    f"out of GPU memory: used {format_bytes(used)} of its "
                    f"{format_bytes(self.limit)} on GPU {card}"
                )
        return None


def gpu_memory_checks(node: NodeContext, kill: Callable[[str], None], now: float) -> list[PeriodicAction]:
    """Returns the checks of whether a run that shares a GPU stays within its share of the memory. kill:
    called with the reason."""
    if not node.gpu_memory_bytes or not node.nvml:
        return []
    limit = GpuMemoryLimit(node.gpu_memory_bytes, node.gpus)

    def check_limit() -> float:
        reason = limit.check()
        if reason is not None:
            kill(reason)
        return CHECK_INTERVAL_S

    return [PeriodicAction(now + CHECK_INTERVAL_S, check_limit)]
