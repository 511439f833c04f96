"""Whether this node can start anything now. What it could not do is tried again until it works."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hopyard.private_files import make_folder

CHECK_INTERVAL_S = 2.0  # of what failed


@dataclass(frozen=True, slots=True)
class HealthChecks:
    """What is asked of a node: each says what is wrong, "" where nothing is. home: of its folder, at once.
    gpus: of these indices; it may take long."""

    home: Callable[[Path], str] = lambda _: ""
    gpus: Callable[[Sequence[int]], str] = lambda _: ""


class NodeHealth:
    """root: of the home. attempts: where replicas' folders are made.
    gpus: those that the driver names; () where they are declared.

    Any thread may call it: launches and looks go on beside each other.
    """

    def __init__(self, checks: HealthChecks, root: Path, attempts: Path, gpus: Sequence[int]) -> None:
        self._checks, self._root, self._attempts, self._gpus = checks, root, attempts, tuple(gpus)
        self._lock = threading.Lock()
        self._launch_failure, self._rechecked_at = "", 0.0  # the launch that failed
        self._gpu_problem: str | None = ""  # None: not known yet
        self._pending_checks = 0  # how often the GPUs were doubted
        self._checking: threading.Thread | None = None
        self._checked_at = 0.0

    def current_problem(self) -> str:
        """Why nothing can start now, "" where something can. Takes no longer than a look at the disk."""
        found = self._checks.home(self._root)
        with self._lock:
            return found or self._launch_failure or self._check_gpus()

    def record_failure(self, reason: str) -> None:
        """Something could not be started, for a reason of this node."""
        with self._lock:
            self._launch_failure, self._rechecked_at = reason, time.monotonic()

    def recheck_gpus(self) -> None:
        """A replica could not start for a reason of this node: the driver of its GPUs is asked."""
        with self._lock:
            if self._gpus:
                self._pending_checks += 1
                self._gpu_problem = self._gpu_problem or None

    def is_due(self) -> bool:
        """Whether what failed is to be tried again."""
        with self._lock:
            return bool(self._launch_failure) and time.monotonic() - self._rechecked_at >= CHECK_INTERVAL_S

    def recheck(self) -> bool:
        """Whether folders of replicas can be made; its caller tries the rest, and says so with `works`."""
        with self._lock:
            self._rechecked_at = time.monotonic()
        probe = self._attempts / f".probe-{os.getpid()}"
        try:
            make_folder(probe)
            probe.rmdir()
        except OSError:
            return False
        return True

    def record_success(self) -> None:
        with self._lock:
            self._launch_failure = ""

    def _check_gpus(self) -> str:
        if self._gpu_problem == "":
            return ""
        idle = self._checking is None or not self._checking.is_alive()
        if idle and (self._gpu_problem is None or time.monotonic() - self._checked_at >= CHECK_INTERVAL_S):
            self._checked_at = time.monotonic()
            self._checking = threading.Thread(
                target=self._run_checks, args=(self._pending_checks,), name="GPU check", daemon=True
            )
            self._checking.start()
        return "waiting for the GPU driver" if self._gpu_problem is None else self._gpu_problem

    def _run_checks(self, pending_checks: int) -> None:
        told = self._checks.gpus(self._gpus)
        with self._lock:
            # what was doubted while the driver was asked is asked again
            if told or pending_checks == self._pending_checks:
                self._gpu_problem = told
