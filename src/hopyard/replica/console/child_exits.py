"""The ends of processes that a replica starts beside the script. The supervisor reaps all its children."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


class ChildExit:
    """The end of one process. wake: a descriptor that becomes readable when it has ended."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None  # as of `os.waitpid`
        self.wake, self._write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def record(self, status: int) -> None:
        self.status = status
        os.write(self._write_end, b".")

    def close(self) -> None:
        os.close(self.wake)
        os.close(self._write_end)


class ChildExits:
    """The processes that are waited for. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._exits: dict[int, ChildExit] = {}

    def start(self, fork: Callable[[], int]) -> ChildExit:
        """Starts a process. fork: returns its pid; the process may end before this returns."""
        with self._lock:
            child = ChildExit(fork())
            self._exits[child.pid] = child
            return child

    def record(self, pid: int, status: int) -> None:
        """Is called for each process that was reaped."""
        with self._lock:
            child = self._exits.pop(pid, None)
            if child is not None:
                child.record(status)

    def drop(self, child: ChildExit) -> None:
        """Forgets a process, and closes its descriptors."""
        with self._lock:
            if self._exits.get(child.pid) is child:
                del self._exits[child.pid]
            child.close()
