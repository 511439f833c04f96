"""Looking, before anything is started, for what would end the run later and less clearly."""

from __future__ import annotations

from pathlib import Path

from hopyard.config.home import Home
from hopyard.config.node_checks import cache_trouble, clock_trouble, disk_trouble, gpu_trouble
from hopyard.domain.replica import ReplicaSpec
from hopyard.replica.failure import NodeFault


def check(spec: ReplicaSpec, folder: Path) -> None:
    """Raises NodeFault with what to do about it."""
    trouble = disk_trouble(folder) or clock_trouble() or cache_trouble(Home(Path(spec.node.home)))
    if not trouble and spec.node.gpus and spec.node.nvml:
        trouble = gpu_trouble(spec.node.gpus)
    if trouble:
        raise NodeFault(trouble)
