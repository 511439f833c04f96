"""Enforces a run's memory, CPU and process limits, so that its neighbours survive.

Memory: a cgroup if the kernel allows it, otherwise by polling the process tree. In both cases a run over its
limit is killed as a whole.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from hopyard.config.units import format_bytes
from hopyard.domain.replica import NodeContext
from hopyard.domain.resources import Resources
from hopyard.replica import process_tree

_PERIOD_US = 100_000
# how fast a process may fill memory: decides when to check again
_MAX_ALLOCATION_BYTES_PER_S = 4 * 1024**3
_CHECK_INTERVAL_RANGE_S = (0.02, 1.0)
# the kernel enforces the limit; the check only detects that it killed a part of the run
_GROUP_CHECK_INTERVAL_S = 0.5


class ReplicaCgroups:
    """The cgroups of one replica's user process: created, limited, read and removed. Supports cgroup versions
    1 and 2."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self.folders = dict(folders)

    @classmethod
    def create(cls, share: NodeContext, resources: Resources) -> ReplicaCgroups:
        """Creates and limits the cgroups; a controller that fails is left out.

        A memory group is created even without a limit: it lists the run's processes and their memory use.
        """
        folders: dict[str, Path] = {}
        for controller, name in share.cgroups.items():
            folder = Path(name)
            try:
                folder.mkdir(exist_ok=True)
                _limit(controller, folder, share, resources)
            except OSError:
                with contextlib.suppress(OSError):
                    folder.rmdir()
                continue
            folders[controller] = folder
        return cls(folders)

    @classmethod
    def existing(cls, share: NodeContext) -> ReplicaCgroups:
        """Returns the cgroups that an earlier replica created."""
        return cls(
            {controller: Path(name) for controller, name in share.cgroups.items() if Path(name).is_dir()}
        )

    @property
    def memory(self) -> Path | None:
        return self.folders.get("memory")

    def unknown_exit_reason(self) -> str:
        """Returns why the exit of the process is unknown; "" if it is known."""
        return ""

    def oom_kills(self) -> int:
        """Returns how many processes of the group the kernel has killed because of memory."""
        folder = self.memory
        if folder is None:
            return 0
        return _read_field(folder / "memory.events", "oom_kill") or _read_field(
            folder / "memory.oom_control", "oom_kill"
        )

    def memory_bytes(self) -> int | None:
        """Returns the memory use of the group without the file cache that the kernel may drop; None without a
        group."""
        folder = self.memory
        if folder is None:
            return None
        stat = folder / "memory.stat"
        if (folder / "memory.current").exists():
            return max(
                0,
                _read_int(folder / "memory.current")
                - _read_field(stat, "inactive_file")
                - _read_field(stat, "active_file"),
            )
        return _read_field(stat, "total_rss") + _read_field(stat, "total_shmem")

    def peak_bytes(self) -> int:
        folder = self.memory
        return (
            0
            if folder is None
            else _read_int(folder / "memory.peak") or _read_int(folder / "memory.max_usage_in_bytes")
        )

    def pids(self) -> list[int]:
        pids: set[int] = set()
        for folder in self.folders.values():
            with contextlib.suppress(OSError):
                pids.update(map(int, (folder / "cgroup.procs").read_text().split()))
        return sorted(pids)

    def drop(self, folders: Collection[Path]) -> None:
        """Removes groups that the process could not join: they limit and list no process."""
        for controller, folder in list(self.folders.items()):
            if folder in folders:
                ReplicaCgroups({controller: self.folders.pop(controller)}).remove()

    def remove(self, *, timeout_s: float = 5.0) -> None:
        """Kills the remaining processes inside, then removes the groups."""
        deadline = time.monotonic() + timeout_s
        while self.folders:
            for controller, folder in list(self.folders.items()):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    pass
                except OSError:
                    if time.monotonic() < deadline:
                        continue
                self.folders.pop(controller)
            if self.folders:
                process_tree.kill_processes(self.pids())
                time.sleep(0.005)


def _limit(controller: str, folder: Path, share: NodeContext, resources: Resources) -> None:
    if controller == "memory":
        _limit_memory(folder, resources.memory_bytes)
    elif controller == "pids":
        (folder / "pids.max").write_text(str(share.processes or "max"))
    else:
        _limit_cpu(folder, resources)


def _limit_memory(folder: Path, limit: int) -> None:
    if not limit:
        return
    if (folder / "memory.max").exists():
        (folder / "memory.max").write_text(str(limit))
        for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
            with contextlib.suppress(OSError):
                (folder / name).write_text(value)
        return
    (folder / "memory.limit_in_bytes").write_text(str(limit))
    with contextlib.suppress(OSError):  # only where the kernel accounts swap
        (folder / "memory.memsw.limit_in_bytes").write_text(str(limit))


def _limit_cpu(folder: Path, resources: Resources) -> None:
    """Sets a share of a busy node in proportion to the request, and a quota if it is a limit.

    Without a limit the share is at least one core. A study's driver requests almost no CPU, and all its
    workers wait for each of its answers.
    """
    quota = max(1000, resources.cpu_milli * _PERIOD_US // 1000) if resources.cpu_limited else None
    cpu_milli = resources.cpu_milli if resources.cpu_limited else max(resources.cpu_milli, 1000)
    if (folder / "cpu.max").exists():
        (folder / "cpu.max").write_text(f"{'max' if quota is None else quota} {_PERIOD_US}")
        (folder / "cpu.weight").write_text(str(min(max(cpu_milli // 10, 1), 10_000)))
        return
    (folder / "cpu.shares").write_text(str(min(max(cpu_milli * 1024 // 1000, 2), 262_144)))
    (folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
    (folder / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))


def _read_int(file: Path) -> int:
    try:
        text = file.read_text().split()[0]
    except (OSError, IndexError):
        return 0
    return int(text) if text.isdecimal() else 0


def _read_field(file: Path, name: str) -> int:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)


@dataclass(slots=True)
class MemoryLimit:
    """Checks whether a run is over its memory limit, more often when it is close.

    check() returns the reason to end it, or None; `check_after_s` is the time until the next check.
    """

    limit: int
    groups: ReplicaCgroups
    check_after_s: float = _CHECK_INTERVAL_RANGE_S[0]

    def __post_init__(self) -> None:
        if not self.limit:
            self.check_after_s = float("inf")

    def check(self) -> str | None:
        if self.groups.memory is not None:
            self.check_after_s = _GROUP_CHECK_INTERVAL_S
            return self.explain(self.groups.peak_bytes()) if self.groups.oom_kills() else None
        pids = [stat.pid for stat in process_tree.descendants(os.getpid())]
        used = process_tree.resident_bytes(pids)
        if used > self.limit * 0.9:
            used = process_tree.proportional_bytes(pids)
        if used > self.limit:
            return self.explain(used)
        self.check_after_s = min(
            max((self.limit - used) / _MAX_ALLOCATION_BYTES_PER_S, _CHECK_INTERVAL_RANGE_S[0]),
            _CHECK_INTERVAL_RANGE_S[1],
        )
        return None

    def explain(self, used: int) -> str:
        return (
            f"out of memory: used {format_bytes(max(used, self.limit))} of its "
            f"{format_bytes(self.limit)} memory"
        )
