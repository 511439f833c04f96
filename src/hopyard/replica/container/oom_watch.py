"""Counts the processes of a container that the kernel kills because of memory.

The kernel removes the control group, with its counter, as soon as the container has ended. Therefore the
counter is read at each of its events.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
_KILL_WAIT_S, _INTERVAL_S = 1.0, 0.002


def container_cgroups(pid: int) -> dict[str, Path]:
    """Returns the folders of the control groups of a container: controller ("memory", "cpu", "pids") →
    folder. pid: of its first process.

    Groups that the container shares are left out, because all processes in a group of a container are ended
    with it. Podman makes no groups for a user on a node with version 1.
    """
    folders: dict[str, Path] = {}
    shared = {*_memberships("self"), *_memberships(_parent(pid))}
    for controllers, path in _memberships(pid):
        if path == "/" or (controllers, path) in shared:
            continue
        for name in controllers.split(","):
            if name in ("memory", "cpu", "pids"):
                folders[name] = CGROUP_ROOT / name / path.lstrip("/")
        if not controllers:
            unified = CGROUP_ROOT / path.lstrip("/")
            for name in ("memory", "cpu", "pids"):
                folders.setdefault(name, unified)
    return {name: folder for name, folder in folders.items() if folder.is_dir()}


def _memberships(pid: int | str) -> list[tuple[str, str]]:
    """Returns the control groups of a process: controllers, path."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return []
    return [(controllers, path) for _, controllers, path in (line.split(":", 2) for line in lines)]


def _parent(pid: int) -> str:
    """Returns the pid of the parent; "" if the process has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("PPid:"):
                return line.split()[1]
    return ""


class OomWatch:
    """pid: the first process of the container. descriptor: has an event, as of `events`, when the counter may
    have changed; -1 where the kernel allows no watch."""

    def __init__(self, pid: int) -> None:
        self.kills, self.descriptor, self.events = 0, -1, select.POLLIN
        folder = container_cgroups(pid).get("memory")
        self._file = -1
        if folder is None:
            return
        with suppress(OSError):
            if (folder / "memory.events").exists():
                self._file = os.open(folder / "memory.events", os.O_RDONLY | os.O_CLOEXEC)
                self.descriptor, self.events = self._file, select.POLLPRI
            else:
                self._file = os.open(folder / "memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
                event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                control = os.open(folder / "cgroup.event_control", os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.write(control, f"{event} {self._file}".encode())
                finally:
                    os.close(control)
                self.descriptor = event
        self.count()

    def read(self) -> bool:
        """Reads the counter after an event: version 1 reports a lack of memory just before it kills. Returns
        whether the control group still exists."""
        if self.descriptor >= 0 and self.descriptor != self._file:
            with suppress(OSError):
                os.eventfd_read(self.descriptor)
        before, until = self.kills, time.monotonic() + _KILL_WAIT_S
        while True:
            exists = self.count()
            if not exists or self.kills > before or self.descriptor in (-1, self._file):
                return exists
            if time.monotonic() > until:
                return True
            time.sleep(_INTERVAL_S)

    def close(self) -> None:
        self.descriptor = -1

    def count(self) -> bool:
        """Reads the counter. Returns whether the control group still exists."""
        if self._file < 0:
            return False
        try:
            text = os.pread(self._file, 4096, 0)
        except OSError:
            return False
        for line in text.splitlines():
            if line.startswith(b"oom_kill "):
                self.kills = max(self.kills, int(line.split()[1]))
        return True
