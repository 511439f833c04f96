"""What is left of a user's process whose replica died."""

from __future__ import annotations

import time
from pathlib import Path

from hopyard.domain.replica import ReplicaSpec, ReplicaState
from hopyard.replica import tree
from hopyard.replica.folder import Folder
from hopyard.replica.limits import Groups

_WITHIN_S = 10.0


def end_leftovers(folder: Folder, spec: ReplicaSpec, state: ReplicaState | None) -> None:
    """End every process of the attempt's replica, wherever it hid: in its cgroups, its session, or with its
    folder in its environment. After a reboot there is none, and numbers mean other processes; in a copy of a
    home they mean the original's, which live on."""
    groups = Groups.left(spec.node)
    if not tree.are_of_another(groups.pids(), folder.root):
        groups.remove()
    session, started = (
        (state.child_pid, state.child_started) if state is not None and state.boot == boot_id() else (0, 0)
    )
    deadline = time.monotonic() + _WITHIN_S
    while time.monotonic() < deadline:
        left = tree.leftovers(folder.root, session, started)
        if not left:
            return
        tree.kill(left)
        time.sleep(0.01)


def boot_id() -> str:
    """The kernel's name for the time since the machine started; "" where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def started_ticks(pid: int) -> int:
    """When a process of ours started, 0 when it is gone."""
    stat = tree.read_stat(pid)
    return 0 if stat is None else stat.started
