"""Detects problems that keep a node from starting anything. The engine checks before it places a run, and
each replica checks again."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hopyard.config.home import Home
from hopyard.config.units import format_bytes
from hopyard.domain.preflight import Check

MIN_FREE_BYTES = 64 * 1024**2  # for streams and status; a checkpoint without room reports that itself
MIN_FREE_FILES = 1000
_EARLIEST_CLOCK_S = 1_700_000_000.0  # November 2023: a machine with an earlier time never set its clock
DRIVER_TIMEOUT_S = 20.0  # a stuck driver never answers


def find_disk_problem(folder: Path) -> str:
    """Returns the problem of the disk of this folder, with its fix; "" if there is none."""
    try:
        disk = os.statvfs(folder)
    except OSError as failed:
        return f"the disk of {folder} does not answer: {failed.strerror}"
    # without the number, so that the repeated message stays the same
    if disk.f_bavail * disk.f_frsize < MIN_FREE_BYTES:
        return (
            f"less than {format_bytes(MIN_FREE_BYTES)} are free on the disk of {folder}; free space or "
            "set HOPYARD_HOME to another disk"
        )
    if disk.f_files and disk.f_favail < MIN_FREE_FILES:
        return (
            f"the file system of {folder} has no room for more files; remove some or set HOPYARD_HOME "
            "to another disk"
        )
    return ""


def find_clock_problem() -> str:
    """Returns the problem of the clock of this machine; "" if there is none."""
    if time.time() >= _EARLIEST_CLOCK_S:
        return ""
    return f"the clock says {time.strftime('%Y-%m-%d')}; set it, times and tokens depend on it"


def find_cache_problem(home: Home) -> str:
    """Returns the problem of the folders that runs of a home share; "" if there is none."""
    for folder in (home.trees.parent, home.trees, home.envs):
        try:
            status = folder.stat()
        except FileNotFoundError:
            if not folder.is_symlink():
                continue  # it is created when it is needed
            return f"{folder} is a broken link; create its target, or remove it"
        except OSError as error:
            return f"{folder} cannot be read: {error.strerror}; make it readable, or remove it"
        if not stat.S_ISDIR(status.st_mode):
            return f"{folder} is not a folder; remove it"
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            return f"{folder} has no read and write permission; change its mode and owner, or remove it"
    return ""


def find_home_problem(root: Path) -> str:
    """Returns the first problem that keeps runs of this home from starting; "" if there is none."""
    return find_disk_problem(root) or find_clock_problem() or find_cache_problem(Home(root))


def find_gpu_problem(indices: Sequence[int]) -> str:
    """Returns the problem of these GPUs or of their driver; "" if there is none."""
    return call_with_timeout(
        lambda: _query_driver(indices),
        timeout_s=DRIVER_TIMEOUT_S,
        default="the driver of the GPUs does not answer",
    )


def call_with_timeout(call: Callable[[], str], *, timeout_s: float, default: str) -> str:
    """Returns the result of `call`, or a problem after the timeout. The call then continues: a system call
    that hangs cannot be ended."""
    results: list[str] = []
    thread = threading.Thread(target=lambda: results.append(call()), name="node check", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return results[0] if results else f"{default} within {timeout_s:g} s"


def _query_driver(indices: Sequence[int]) -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        hint = "; reboot after an update of the driver" if "mismatch" in str(error) else ""
        return f"the driver of the GPUs does not answer now: {error}{hint}"
    index = -1
    try:
        for index in indices:
            pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError as error:
        return f"GPU {index} does not answer: {error}"
    finally:
        pynvml.nvmlShutdown()
    return ""


def check_node(folder: Path, home: Home, gpus: Sequence[int] | None) -> Iterator[tuple[Check, str]]:
    """Makes the checks of this node one after the other, and yields each with its problem, or "". folder: of
    which the disk is checked. gpus: the indices of GPUs of the driver; None where there are none."""
    yield Check.DISK, find_disk_problem(folder)
    yield Check.CLOCK, find_clock_problem()
    yield Check.CACHE, find_cache_problem(home)
    if gpus:
        yield Check.GPU, find_gpu_problem(gpus)
