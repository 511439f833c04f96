"""Samples a run's resource usage on its node: CPU, memory, disk, GPUs. The kernel counts the network per
host, not per process: these samples are of all traffic of the network namespace that the run is in."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hopyard.replica import process_tree
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.resource_limits import ReplicaCgroups

FIRST_INTERVAL_S, SAMPLE_INTERVAL_S, LATE_SAMPLE_INTERVAL_S = 1.0, 2.0, 5.0
_FREQUENT_SAMPLES = 60  # after two minutes of samples a curve needs fewer points


class SystemMetrics:
    """Writes samples to the `system` stream. gpus: indices of the node's GPUs that belong to the run."""

    def __init__(self, folder: ReplicaDir, groups: ReplicaCgroups, gpus: Sequence[int]) -> None:
        self._folder, self._groups = folder, groups
        self._gpus = _Gpus(gpus) if gpus else None
        self._sampled_at, self._cpu, self._samples = time.monotonic(), 0, 0
        self._disk_bytes = 0, 0  # read and written so far
        self._network_bytes = read_network_bytes()  # received and sent so far

    def write_sample(self) -> float:
        """Writes one sample; returns in how many seconds the next is due."""
        now = time.monotonic()
        stats = process_tree.descendants(os.getpid())
        cpu = sum(stat.cpu for stat in stats)
        # The CPU time of a process that ended without being waited for is lost. The difference may then be
        # negative, and is reported as 0.
        elapsed_s = max(now - self._sampled_at, 1e-3)
        used = max(0, cpu - self._cpu) / process_tree.TICKS / elapsed_s
        disk_bytes = process_tree.disk_bytes(stat.pid for stat in stats)
        read, written = (
            round(max(0, total - before) / elapsed_s)
            for total, before in zip(disk_bytes, self._disk_bytes, strict=True)
        )
        self._disk_bytes = disk_bytes
        network_bytes = read_network_bytes()
        received, sent = (
            round(max(0, total - before) / elapsed_s)
            for total, before in zip(network_bytes, self._network_bytes, strict=True)
        )
        self._network_bytes = network_bytes
        self._cpu, self._sampled_at, self._samples = cpu, now, self._samples + 1
        memory = self._groups.memory_bytes()
        if memory is None:
            memory = process_tree.resident_bytes(stat.pid for stat in stats)
        self._folder.append_json(
            "system",
            cpu_percent=round(used * 100, 1),
            memory_bytes=memory,
            read_bytes_per_s=read,
            write_bytes_per_s=written,
            host_received_bytes_per_s=received,
            host_sent_bytes_per_s=sent,
            gpus=[] if self._gpus is None else self._gpus.sample(),
        )
        return SAMPLE_INTERVAL_S if self._samples < _FREQUENT_SAMPLES else LATE_SAMPLE_INTERVAL_S


def read_network_bytes(file: str = "/proc/net/dev") -> tuple[int, int]:
    """Returns the bytes that all interfaces but the loopback received and sent since the boot; zeros if they
    cannot be read.

    Virtual interfaces of containers and bridges repeat the traffic of a physical one. So they count only
    where there is no physical one, as in a container.
    """
    try:
        with open(file, encoding="ascii", errors="replace") as lines:
            counters = [line.partition(":")[::2] for line in lines if ":" in line]
    except OSError:
        return 0, 0
    amounts = {
        name.strip(): (int(fields[0]), int(fields[8]))
        for name, text in counters
        if len(fields := text.split()) > 8 and name.strip() != "lo"
    }
    physical = [name for name in amounts if os.path.exists(f"/sys/class/net/{name}/device")]
    counted = [amounts[name] for name in physical or amounts]
    return sum(received for received, _ in counted), sum(sent for _, sent in counted)


class _Gpus:
    """Reads GPUs through NVIDIA's library, loaded here and not before the fork: its state does not survive a
    fork."""

    def __init__(self, indices: Sequence[int]) -> None:
        self._handles: list[tuple[int, Any]] = []
        try:
            import pynvml

            pynvml.nvmlInit()
            self._nvml: Any = pynvml
            self._handles = [(index, pynvml.nvmlDeviceGetHandleByIndex(index)) for index in indices]
        except Exception:  # declared GPUs, or a driver that was unloaded: there is no data
            self._handles = []

    def sample(self) -> list[dict[str, float]]:
        samples: list[dict[str, float]] = []
        for index, handle in self._handles:
            try:
                rates, memory = (
                    self._nvml.nvmlDeviceGetUtilizationRates(handle),
                    self._nvml.nvmlDeviceGetMemoryInfo(handle),
                )
            except self._nvml.NVMLError:
                continue  # a GPU that fell off the bus must not end the run's metrics
            sample = {
                "index": index,
                "utilisation_percent": float(rates.gpu),
                "memory_bytes": int(memory.used),
            }
            with suppress(self._nvml.NVMLError):  # some virtual GPUs have no sensor
                sample["temperature_celsius"] = float(
                    self._nvml.nvmlDeviceGetTemperature(handle, self._nvml.NVML_TEMPERATURE_GPU)
                )
            samples.append(sample)
        return samples
