"""SIGUSR1 as the request to save: schedulers such as Slurm send it before they end a script.

The default action of SIGUSR1 ends a process, so only processes that handle it get it.
"""

from __future__ import annotations

import os
import signal

from hopyard.replica import process_tree

SAVE_SIGNAL = signal.SIGUSR1


def request_save(root: int) -> bool:
    """Sends SIGUSR1 to the processes below `root` that handle it. Returns whether there was one.

    A process with a handling parent gets none: a launcher passes the signal on itself, and loaders of data
    only inherit the handler of the training.
    """
    stats = {stat.pid: stat for stat in process_tree.descendants(root)}
    handling = {pid for pid in stats if handles_signal(pid, SAVE_SIGNAL)}
    sent = False
    for pid in handling:
        parent = stats[pid].parent
        while parent in stats and parent not in handling:
            parent = stats[parent].parent
        if parent in handling:
            continue
        try:
            os.kill(pid, SAVE_SIGNAL)
            sent = True
        except (ProcessLookupError, PermissionError):
            continue
    return sent


def handles_signal(pid: int, number: signal.Signals) -> bool:
    """Returns whether the process has a handler for the signal; False if it has ended."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith(b"SigCgt:")), b"0")
    return bool(int(caught, 16) >> (number - 1) & 1)
