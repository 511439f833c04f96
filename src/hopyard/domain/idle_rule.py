"""When a run with `--idle` is idle: decided from the measured use of its replicas and its open connections.

A sample is use if the processes of a replica used a tenth of a core in it, or a GPU of the replica computed.
Each use, and each open connection to a port or console, begins the idle time again. A run without recent
samples is never idle: its use is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hopyard.domain.duration_text import format_duration

USED_CPU_PERCENT = 10.0  # of one core, by all processes of a replica together
USED_GPU_PERCENT = 1.0  # of any GPU of a replica
SAMPLE_TIMEOUT_S = 60.0  # samples come every few seconds
MIN_IDLE_S = 60.0
SESSION_IDLE_S = 7200.0  # of notebooks and dashboards, unless their user sets another


@dataclass(frozen=True, slots=True)
class ReplicaUse:
    """What the samples of one replica show. newest_at: of all samples, used_at: of those with use; in unix
    seconds, 0 without any."""

    newest_at: float = 0.0
    used_at: float = 0.0

    def with_sample(self, sample: Mapping[str, Any]) -> ReplicaUse:
        """Returns the use with one more sample, as the API returns it."""
        at = float(sample["t"])
        gpu_percent = max((gpu["utilisation_percent"] for gpu in sample["gpus"]), default=0.0)
        is_use = sample["cpu_percent"] >= USED_CPU_PERCENT or gpu_percent >= USED_GPU_PERCENT
        used_at = max(self.used_at, at) if is_use else self.used_at
        return replace(self, newest_at=max(self.newest_at, at), used_at=used_at)


def idle_time_s(
    replicas: Collection[ReplicaUse], *, size: int, started_at: float, connected_at: float, now: float
) -> float:
    """Returns how long a run has been idle; 0 for a run that works, or has no known use.

    replicas: of the present attempt. size: how many it has. connected_at: when it last had an open
    connection, as far as known.
    """
    if len(replicas) < size or any(now - use.newest_at > SAMPLE_TIMEOUT_S for use in replicas):
        return 0.0
    last_at = max(started_at, connected_at, *(use.used_at for use in replicas))
    return max(0.0, min(use.newest_at for use in replicas) - last_at)


def idle_reason(idle_s: float) -> str:
    """Returns the reason of the end of a run."""
    return f"idle for {format_duration(idle_s)}: no use of CPU or GPU, and no connection"
