"""What keeps a node from starting anything: looked for by its engine before a run is placed in vain, and by each replica."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from hopyard.config.units import bytes_in_words

NEEDED_BYTES = 64 * 1024**2  # for streams and status; a checkpoint that finds no room says so itself
NEEDED_FILES = 1000
DRIVER_WITHIN_S = 20.0  # a driver that is stuck answers never


def disk_trouble(folder: Path) -> str:
    """What is wrong with the disk of this folder, with what to do about it; "" where nothing is."""
    try:
        disk = os.statvfs(folder)
    except OSError as failed:
        return f"the disk of {folder} does not answer: {failed.strerror}"
    if disk.f_bavail * disk.f_frsize < NEEDED_BYTES:  # without the number: it is told again and again, and should be the same
        return f"less than {bytes_in_words(NEEDED_BYTES)} are free on the disk of {folder}; make room or set HOPYARD_HOME to another disk"
    if disk.f_files and disk.f_favail < NEEDED_FILES:
        return f"the file system of {folder} has no room for more files; remove some or set HOPYARD_HOME to another disk"
    return ""


def gpu_trouble(indices: Sequence[int]) -> str:
    """What is wrong with these GPUs, or with their driver; "" where nothing is."""
    return answered(lambda: _ask_driver(indices), within_s=DRIVER_WITHIN_S, otherwise="the driver of the GPUs does not answer")


def answered(ask: Callable[[], str], *, within_s: float, otherwise: str) -> str:
    """What `ask` says. It is left alone when that takes longer: a system call that hangs cannot be ended."""
    said: list[str] = []
    asking = threading.Thread(target=lambda: said.append(ask()), name="node check", daemon=True)
    asking.start()
    asking.join(within_s)
    return said[0] if said else f"{otherwise} within {within_s:g} s"


def _ask_driver(indices: Sequence[int]) -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as failed:
        return f"the driver of the GPUs does not answer now: {failed}"
    index = -1
    try:
        for index in indices:
            pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError as failed:
        return f"GPU {index} does not answer: {failed}"
    finally:
        pynvml.nvmlShutdown()
    return ""
