"""Finds the cgroup folder below which each replica gets its own cgroups, if the kernel allows it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from hopyard.engines.local.node_detection import cgroup_chain

_LIMIT_FILES = {
    "memory": ("memory.max", "memory.limit_in_bytes"),
    "cpu": ("cpu.max", "cpu.cfs_quota_us"),
    "pids": ("pids.max",),
}
_UNLIMITED = 2**60  # version 1 represents "no limit" by a number near 2^63
CGROUP_FOLDER = "hopyard"


def find_cgroups() -> Mapping[str, Path]:
    """Returns the folder for new groups by controller ("memory", "cpu", "pids"), for the controllers that
    work.

    The folder is as high in the hierarchy as possible, but within every limit of this process. A replica
    therefore outlives the group in which the server was started, and never escapes the limits that the
    machine's owner set.
    """
    folders = {controller: _own_cgroup(controller) for controller in _LIMIT_FILES}
    return {controller: folder for controller, folder in folders.items() if folder is not None}


def remove_groups(folders: Iterable[Path]) -> None:
    """Removes the groups of replicas that ended. A group that still has a process stays."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _own_cgroup(controller: str) -> Path | None:
    chain = cgroup_chain(controller)
    limited = next((i for i, folder in enumerate(chain) if _is_limited(folder, controller)), len(chain) - 1)
    for parent in reversed(chain[: limited + 1]):
        folder = parent / CGROUP_FOLDER
        try:
            folder.mkdir(exist_ok=True)
            _enable_controller(parent, controller)
            _enable_controller(folder, controller)
        except OSError:
            continue
        if _is_usable(folder, controller):
            _set_weight(folder)
            return folder
    return None


def _set_weight(folder: Path) -> None:
    """Gives all runs together the weight of a busy process per core; the default is the weight of a single
    process."""
    cores = len(os.sched_getaffinity(0))
    for name, weight, maximum in (("cpu.weight", 100 * cores, 10_000), ("cpu.shares", 1024 * cores, 262_144)):
        try:
            if (folder / name).exists():
                (folder / name).write_text(str(min(weight, maximum)))
        except OSError:
            continue  # the quota still applies


def _is_limited(folder: Path, controller: str) -> bool:
    for name in _LIMIT_FILES[controller]:
        try:
            text = (folder / name).read_text().split()[0]
        except (OSError, IndexError):
            continue
        return text.isdecimal() and int(text) < _UNLIMITED
    return False


def _enable_controller(folder: Path, controller: str) -> None:
    """Enables the controller for sub-folders, which version 2 requires."""
    control = folder / "cgroup.subtree_control"
    if control.exists() and controller not in control.read_text().split():
        control.write_text(f"+{controller}")


def _is_usable(folder: Path, controller: str) -> bool:
    """Returns whether a group can be created here, has the limit's file, and can be joined according to its
    permissions."""
    probe = folder / f"probe-{os.getpid()}"
    try:
        probe.mkdir(exist_ok=True)
    except OSError:
        return False
    try:
        has_limit = any(os.access(probe / name, os.W_OK) for name in _LIMIT_FILES[controller])
        return has_limit and os.access(probe / "cgroup.procs", os.W_OK)
    finally:
        probe.rmdir()
