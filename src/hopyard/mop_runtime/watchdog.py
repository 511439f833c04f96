"""The heartbeat of a worker's process, watched by its parent: a worker that hangs while it holds the GIL
cannot handle a request to end.

The worker writes a byte into a pipe every second, from a thread that needs the GIL. The parent counts the
seconds of its own time without a byte, so that a suspended host ends no worker. It does not count while the
worker is stopped, for example by a debugger. It does not count before the first byte: a library may load
slowly from a cold disk.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

HEARTBEAT_PIPE_VARIABLE = "HOPYARD_PULSE"  # the number of the pipe's end
HANG_TIMEOUT_S = 60.0  # without a heartbeat; the driver waits as long for a worker that opens its data
_HEARTBEAT_INTERVAL_S = 1.0
_DUMP_TIMEOUT_S = 5.0  # to print its stack, before SIGKILL


def start_heartbeat() -> None:
    """Starts the heartbeat if a parent watches this process. Call it once per process."""
    pipe_text = os.environ.pop(HEARTBEAT_PIPE_VARIABLE, "")
    if not pipe_text.isdecimal():
        return
    pipe = int(pipe_text)
    os.set_inheritable(pipe, False)
    faulthandler.enable(2)  # SIGABRT prints the stack, whichever thread holds the GIL
    threading.Thread(target=_write_heartbeats, args=(pipe,), name="pulse", daemon=True).start()


def _write_heartbeats(pipe: int) -> None:
    pause = threading.Event()
    try:
        while True:
            os.write(pipe, b".")
            pause.wait(_HEARTBEAT_INTERVAL_S)
    except OSError:
        return  # the parent has ended


class Watchdog:
    """The parent's end, for one child at a time; close it before the process exits. hang_timeout_s: time
    without a heartbeat after which the child is killed."""

    def __init__(self, log_message: Callable[[str], None], *, hang_timeout_s: float = HANG_TIMEOUT_S) -> None:
        self._log_message, self._hang_timeout_s = log_message, hang_timeout_s
        self._child: subprocess.Popen[bytes] | None = None
        self._read_fd, self.write_fd = os.pipe()  # passed to the child by the variable
        os.set_blocking(self._read_fd, False)
        self._heartbeat_seen, self._silent_s = False, 0.0
        signal.signal(signal.SIGALRM, self._on_timer)
        signal.setitimer(signal.ITIMER_REAL, _HEARTBEAT_INTERVAL_S, _HEARTBEAT_INTERVAL_S)

    def watch(self, child: subprocess.Popen[bytes]) -> None:
        """Watches this child from now on."""
        self._drain()
        self._child, self._heartbeat_seen, self._silent_s = child, False, 0.0

    def close(self) -> None:
        """Stops the timer. Python takes its handlers away as it exits, and a timer that still runs would kill
        the process then."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        for descriptor in (self._read_fd, self.write_fd):
            os.close(descriptor)

    def _on_timer(self, _number: int, _frame: object) -> None:
        if self._drain():
            self._heartbeat_seen, self._silent_s = True, 0.0
        elif (
            self._heartbeat_seen
            and self._child is not None
            and self._child.returncode is None
            and not _is_stopped(self._child.pid)
        ):
            self._silent_s += _HEARTBEAT_INTERVAL_S
            late_s = self._silent_s - self._hang_timeout_s
            if 0 <= late_s < _HEARTBEAT_INTERVAL_S:
                self._log_message(
                    f"the study's worker hangs: no message from its process for {self._silent_s:.0f} "
                    "s, so it is killed. Its stack:"
                )
                self._send(self._child.pid, signal.SIGABRT)
            elif late_s >= _DUMP_TIMEOUT_S:
                self._send(self._child.pid, signal.SIGKILL)

    @staticmethod
    def _send(pid: int, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, number)

    def _drain(self) -> bool:
        """Returns whether there were heartbeats."""
        try:
            return bool(os.read(self._read_fd, 65536))
        except BlockingIOError:
            return False


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False
