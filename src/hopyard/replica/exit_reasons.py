"""Describes how a process ended."""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path

from hopyard.domain.attempt import Exit, ExitKind
from hopyard.replica.failure_reason import abort_reason, failure_reason
from hopyard.replica.signal_text import signal_text

_FULL_DISK_BYTES = 64 * 1024  # less than a traceback needs
# Python prints this in place of an error that could not be written; a moment later another process may have
# removed files of the full disk, or the part of a record that it could not write
_LOST_ERROR, _SCARCE_BYTES = "lost sys.stderr", 64 * 1024 * 1024
_NODE_OUT_OF_MEMORY = (
    "; the kernel killed processes of this node for lack of memory in these seconds: request memory with "
    "`--memory` to get a node with enough"
)
_CHILD_KILLED = re.compile(r"SIGKILL|killed by signal|terminated abruptly|exit(?:code|ed)? -9\b|signal 9\b")
TIME_LIMIT_CODE = 124  # as timeout(1) uses it


def exit_from_status(
    status: int,
    stdout: Path,
    stderr: Path,
    *,
    exit_text: str = "",
    begins: Mapping[str, int] | None = None,
    node_out_of_memory: bool = False,
    free_bytes: float = math.inf,
) -> Exit:
    """Returns the exit for a wait status. exit_text: what the script passed to `sys.exit`. free_bytes: of
    the disk of `stderr` when the process ended; on a full disk it could not write its error. begins: where
    the output of the process begins, by stream; an earlier process of the replica wrote the rest."""
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return Exit(ExitKind.EXIT_CODE, 0, "finished")
    if code > 0:
        error_line = failure_reason(stderr, stdout, exit_text=exit_text, begins=begins)
        disk_full = is_disk_full(free_bytes) or (error_line == _LOST_ERROR and free_bytes < _SCARCE_BYTES)
        return Exit(
            ExitKind.EXIT_CODE,
            code,
            f"exit code {code}"
            + (f": {error_line}" if error_line else "")
            + (f"; no space left on the disk of {stderr.parent}" if disk_full else "")
            + (_NODE_OUT_OF_MEMORY if node_out_of_memory and _CHILD_KILLED.search(error_line) else ""),
        )
    number = -code
    reason = signal_text(number)
    if number == signal.SIGABRT and (why := abort_reason(stderr, begins=begins)):
        reason += f": {why}"
    if number == signal.SIGKILL and node_out_of_memory:
        reason += _NODE_OUT_OF_MEMORY
    return Exit(ExitKind.SIGNAL, 128 + number, reason)


def exit_code_from_status(status: int | None) -> int:
    """Returns the shell's exit code for a wait status; 137 if there is none."""
    if status is None:
        return 128 + signal.SIGKILL
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def format_seconds(seconds: float) -> str:
    """Returns text such as "60 s" or "2.5 s"; whole numbers without a decimal point."""
    return f"{seconds:g} s"


def free_disk_bytes(folder: Path) -> float:
    """Returns the free bytes of the disk of `folder`; infinity if they are unknown."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return math.inf
    return disk.f_bavail * disk.f_frsize


def is_disk_full(free_bytes: float) -> bool:
    """Returns whether a disk has no space for a traceback."""
    return free_bytes < _FULL_DISK_BYTES


def read_node_oom_kills() -> int:
    """Returns how many processes this machine's kernel has killed because of memory since boot."""
    try:
        with open("/proc/vmstat", "rb") as file:
            return next((int(line.split()[1]) for line in file if line.startswith(b"oom_kill ")), 0)
    except OSError:
        return 0
