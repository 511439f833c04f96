"""Lets PyTorch's gloo threads finish before the interpreter of a script ends. Standard library only.

A gloo thread wakes the script first and drops the tensors of its collective afterwards. Dropping them needs a
lock that no longer exists if the interpreter ends in between. Then the process aborts ("terminate called
without an active exception") although all its work is done. The run of a gang would fail after its last step.
`destroy_process_group` ends these threads only if it holds the last reference to the group, and
DistributedDataParallel holds another. See pull request 179291 of PyTorch.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

_THREAD_NAME = "pt_gloo_runloop"
_TIMEOUT_S = 2.0
_POLL_INTERVAL_S = 0.002
_IDLE_POLLS = 3  # a thread that waits for the GIL sleeps too, but not for so many polls in a row


def _is_any_runnable(threads: Path) -> bool:
    """Returns whether a gloo thread of this process is about to run."""
    for thread in threads.iterdir():
        try:
            name, state = (
                (thread / "comm").read_text().strip(),
                (thread / "stat").read_text().rpartition(")")[2].split()[0],
            )
        except (OSError, IndexError):  # the thread has just ended
            continue
        if name == _THREAD_NAME and state != "S":
            return True
    return False


def wait_for_gloo_threads(threads: Path = Path("/proc/self/task")) -> None:
    """Waits until all gloo threads are idle, at most two seconds."""
    if "torch.distributed" not in sys.modules or not threads.is_dir():
        return
    deadline, idle_polls = time.monotonic() + _TIMEOUT_S, 0
    while idle_polls < _IDLE_POLLS and time.monotonic() < deadline:
        idle_polls = 0 if _is_any_runnable(threads) else idle_polls + 1
        time.sleep(_POLL_INTERVAL_S)
