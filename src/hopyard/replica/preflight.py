"""Looking, before anything is started, for what would end the run later and less clearly."""

from __future__ import annotations

from pathlib import Path

from hopyard.config.home import Home
from hopyard.config.node_checks import (
    find_cache_problem,
    find_clock_problem,
    find_disk_problem,
    find_gpu_problem,
)
from hopyard.domain.replica import ReplicaSpec
from hopyard.replica.errors import NodeFault


def check_node(spec: ReplicaSpec, folder: Path) -> None:
    """Raises NodeFault with what to do about it."""
    trouble = (
        find_disk_problem(folder) or find_clock_problem() or find_cache_problem(Home(Path(spec.node.home)))
    )
    if not trouble and spec.node.gpus and spec.node.nvml:
        trouble = find_gpu_problem(spec.node.gpus)
    if trouble:
        raise NodeFault(trouble)
