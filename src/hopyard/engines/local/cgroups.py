"""Where the kernel lets us limit processes: the folder below which each replica gets cgroups of its own."""

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
_UNLIMITED = 2**60  # version 1 says "no limit" by a number near 2^63
CGROUP_FOLDER = "hopyard"


def find_cgroups() -> Mapping[str, Path]:
    """Controller ("memory", "cpu", "pids") → a folder of ours in which groups may be made, for those
    controllers where it works.

    The folder is as high in the hierarchy as it can be without leaving a limit that this process is under:
    then a replica outlives the group of whoever started the server, and never escapes what the machine's
    owner set.
    """
    found = {controller: _own_cgroup(controller) for controller in _LIMIT_FILES}
    return {controller: folder for controller, folder in found.items() if folder is not None}


def remove_groups(folders: Iterable[Path]) -> None:
    """Remove groups of replicas that are gone. One that still holds a process stays."""
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
    """All runs together weigh as much as a busy process per core; by default they would weigh as much as a
    single process."""
    cores = len(os.sched_getaffinity(0))
    for name, weight, most in (("cpu.weight", 100 * cores, 10_000), ("cpu.shares", 1024 * cores, 262_144)):
        try:
            if (folder / name).exists():
                (folder / name).write_text(str(min(weight, most)))
        except OSError:
            continue  # the quota holds all the same


def _is_limited(folder: Path, controller: str) -> bool:
    for name in _LIMIT_FILES[controller]:
        try:
            word = (folder / name).read_text().split()[0]
        except (OSError, IndexError):
            continue
        return word.isdecimal() and int(word) < _UNLIMITED
    return False


def _enable_controller(folder: Path, controller: str) -> None:
    """Version 2 hands a controller down only where it is told to."""
    control = folder / "cgroup.subtree_control"
    if control.exists() and controller not in control.read_text().split():
        control.write_text(f"+{controller}")


def _is_usable(folder: Path, controller: str) -> bool:
    """Whether a group can be made here, has the limit's file, and can be joined as far as permissions
    tell."""
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
