"""Looking, before anything is started, for what would end the run later and less clearly."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from hopyard.domain.replica import ReplicaSpec
from hopyard.replica.failure import PrepareFailed
from hopyard.replica.limits import bytes_in_words

NEEDED_BYTES = 64 * 1024**2  # for streams and status; a checkpoint that finds no room says so itself
NEEDED_FILES = 1000
_NO_CLOCK_BEFORE = 1_700_000_000.0  # November 2023: a machine whose clock says less never set it


def check(spec: ReplicaSpec, folder: Path) -> None:
    """Raises PrepareFailed with what to do about it."""
    _check_disk(folder)
    if time.time() < _NO_CLOCK_BEFORE:
        raise PrepareFailed(f"the clock of node {spec.node.id} says {time.strftime('%Y-%m-%d')}; set it, times and tokens depend on it")
    if spec.node.gpus and spec.node.nvml:
        _check_gpus(spec)


def _check_disk(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise PrepareFailed(f"only {bytes_in_words(free)} are free on the disk of {folder}; make room or set HOPYARD_HOME to another disk")
    found = os.statvfs(folder)
    if found.f_files and found.f_favail < NEEDED_FILES:
        raise PrepareFailed(f"the file system of {folder} has no room for more files; remove some or set HOPYARD_HOME to another disk")


def _check_gpus(spec: ReplicaSpec) -> None:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as failed:
        raise PrepareFailed(f"node {spec.node.id} had GPUs, but its driver does not answer now: {failed}") from failed
    try:
        for index in spec.node.gpus:
            pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError as failed:
        raise PrepareFailed(f"GPU {index} of node {spec.node.id} does not answer: {failed}") from failed
    finally:
        pynvml.nvmlShutdown()
