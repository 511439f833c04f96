"""The remaining processes of a run whose replica died."""

from __future__ import annotations

import time
from pathlib import Path

from hopyard.domain.replica import ReplicaSpec, ReplicaState
from hopyard.replica import process_tree
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.resource_limits import ReplicaCgroups

_KILL_TIMEOUT_S = 10.0


def kill_leftover_processes(folder: ReplicaDir, spec: ReplicaSpec, state: ReplicaState | None) -> None:
    """Ends every process of the attempt's replica: in its cgroups, in its session, or with its folder in its
    environment. Its container is removed by `remove_leftover_container`.

    After a reboot there are none, and pids refer to other processes. In a copy of a home the pids are those
    of the original home's processes, which are not ended.
    """
    cgroups = ReplicaCgroups.existing(spec.node)
    if not process_tree.belong_to_other_replica(cgroups.pids(), folder.root):
        cgroups.remove()
    # a process of a container does not see those of the node: the state that it may have written must not end
    # one. Those of its replica end with that, or have its folder in their environment.
    is_known = state is not None and state.boot == boot_id() and not spec.launch.image
    session, started = (state.child_pid, state.child_started) if state is not None and is_known else (0, 0)
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while time.monotonic() < deadline:
        pids = process_tree.find_leftover_processes(folder.root, session, started)
        if not pids:
            return
        process_tree.kill_processes(pids)
        time.sleep(0.01)


def remove_leftover_container(spec: ReplicaSpec) -> None:
    """Removes the container of a replica that died. It may take minutes if the container engine hangs."""
    if spec.launch.image:
        from hopyard.replica.container.replica_container import remove_container_of  # late: rare

        remove_container_of(spec)


def boot_id() -> str:
    """Returns the kernel's id of the current boot; "" if it has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def process_start_ticks(pid: int) -> int:
    """Returns when a child process started, in clock ticks; 0 if it does not exist."""
    stat = process_tree.read_stat(pid)
    return 0 if stat is None else stat.started
