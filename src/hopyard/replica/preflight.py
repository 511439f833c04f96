"""Checks a node before a run is started, for problems that would end the run later with a less
clear error."""

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
    """Raises NodeFault with the remedy."""
    problem = (
        find_disk_problem(folder) or find_clock_problem() or find_cache_problem(Home(Path(spec.node.home)))
    )
    if not problem and spec.node.gpus and spec.node.nvml:
        problem = find_gpu_problem(spec.node.gpus)
    if problem:
        raise NodeFault(problem)
