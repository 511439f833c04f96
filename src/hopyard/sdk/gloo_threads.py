"""Lets PyTorch's gloo threads finish before the interpreter of a script ends. Standard library only.

A gloo thread wakes the script first and drops the tensors of its collective afterwards. If the interpreter
ends in between, dropping them needs a lock that is gone, and the process aborts ("terminate called without an
active exception") although all its work is done: the run of a gang would fail after its last step.
`destroy_process_group` ends these threads only where nothing else holds the group, and
DistributedDataParallel does. See pull request 179291 of PyTorch.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

_THREAD_NAME = "pt_gloo_runloop"
_TIMEOUT_S = 2.0
_POLL_INTERVAL_S = 0.002
_IDLE_POLLS = 3  # a thread that waits for Python's own lock sleeps, too, but not for so many looks on end


def _is_any_runnable(threads: Path) -> bool:
    """Whether a gloo thread of this process is about to run."""
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
    """Wait until no gloo thread has anything to do, at most two seconds."""
    if "torch.distributed" not in sys.modules or not threads.is_dir():
        return
    until, idle = time.monotonic() + _TIMEOUT_S, 0
    while idle < _IDLE_POLLS and time.monotonic() < until:
        idle = 0 if _is_any_runnable(threads) else idle + 1
        time.sleep(_POLL_INTERVAL_S)
