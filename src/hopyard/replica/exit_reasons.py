"""Describes how a process ended."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path

from hopyard.domain.attempt import Exit, ExitKind
from hopyard.replica.failure_reason import abort_reason, failure_reason
from hopyard.replica.signal_text import signal_text

_FULL_DISK_BYTES = 64 * 1024  # less than a traceback needs
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
    disk_full: bool = False,
) -> Exit:
    """Returns the exit for a wait status. exit_text: what the script passed to `sys.exit`. disk_full: whether
    the disk of `stderr` was full when the process ended, so that it could not write its error. begins: where
    the output of the process begins, by stream; an earlier process of the replica wrote the rest."""
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return Exit(ExitKind.EXIT_CODE, 0, "finished")
    if code > 0:
        error_line = failure_reason(stderr, stdout, exit_text=exit_text, begins=begins)
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


def is_disk_full(folder: Path) -> bool:
    """Returns whether the disk of `folder` has no space for a traceback."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _FULL_DISK_BYTES


def read_node_oom_kills() -> int:
    """Returns how many processes this machine's kernel has killed because of memory since boot."""
    try:
        with open("/proc/vmstat", "rb") as file:
            return next((int(line.split()[1]) for line in file if line.startswith(b"oom_kill ")), 0)
    except OSError:
        return 0
