"""Looking, before anything is started, for what would end the run later and less clearly."""

from __future__ import annotations

import time
from pathlib import Path

from hopyard.config.node_checks import disk_trouble, gpu_trouble
from hopyard.domain.replica import ReplicaSpec
from hopyard.replica.failure import NodeFault

_NO_CLOCK_BEFORE = 1_700_000_000.0  # November 2023: a machine whose clock says less never set it


def check(spec: ReplicaSpec, folder: Path) -> None:
    """Raises NodeFault with what to do about it."""
    trouble = disk_trouble(folder)
    if not trouble and time.time() < _NO_CLOCK_BEFORE:
        trouble = f"the clock of node {spec.node.id} says {time.strftime('%Y-%m-%d')}; set it, times and tokens depend on it"
    if not trouble and spec.node.gpus and spec.node.nvml:
        trouble = gpu_trouble(spec.node.gpus)
    if trouble:
        raise NodeFault(trouble)
