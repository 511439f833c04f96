"""What is left of a user's process whose replica died."""

from __future__ import annotations

import time
from pathlib import Path

from hopyard.domain.replica import ReplicaSpec, ReplicaState
from hopyard.replica import process_tree
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.resource_limits import ReplicaCgroups

_KILL_TIMEOUT_S = 10.0


def kill_leftover_processes(folder: ReplicaDir, spec: ReplicaSpec, state: ReplicaState | None) -> None:
    """End every process of the attempt's replica, wherever it hid: in its cgroups, its session, or with its
    folder in its environment. After a reboot there is none, and numbers mean other processes; in a copy of a
    home they mean the original's, which live on."""
    groups = ReplicaCgroups.existing(spec.node)
    if not process_tree.belong_to_other_replica(groups.pids(), folder.root):
        groups.remove()
    session, started = (
        (state.child_pid, state.child_started) if state is not None and state.boot == boot_id() else (0, 0)
    )
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while time.monotonic() < deadline:
        left = process_tree.find_leftover_processes(folder.root, session, started)
        if not left:
            return
        process_tree.kill_processes(left)
        time.sleep(0.01)


def boot_id() -> str:
    """The kernel's name for the time since the machine started; "" where it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def process_start_ticks(pid: int) -> int:
    """When a process of ours started, 0 when it is gone."""
    stat = process_tree.read_stat(pid)
    return 0 if stat is None else stat.started
