"""Tracks whether this node can start runs now. A failed step is retried until it works."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hopyard.private_files import make_folder

CHECK_INTERVAL_S = 2.0  # between retries of a failed step


@dataclass(frozen=True, slots=True)
class HealthChecks:
    """The checks of a node. Each returns a problem, or "". home: checks the home's folder, quickly. gpus:
    checks the GPUs with these indices; it may take long."""

    home: Callable[[Path], str] = lambda _: ""
    gpus: Callable[[Sequence[int]], str] = lambda _: ""


class NodeHealth:
    """root: of the home. attempts: the folder of the attempts. gpus: the GPUs that the driver reports; () if
    they are declared.

    Thread-safe: launches and observations run concurrently.
    """

    def __init__(self, checks: HealthChecks, root: Path, attempts: Path, gpus: Sequence[int]) -> None:
        self._checks, self._root, self._attempts, self._gpus = checks, root, attempts, tuple(gpus)
        self._lock = threading.Lock()
        self._launch_failure, self._rechecked_at = "", 0.0  # why the last launch failed
        self._gpu_problem: str | None = ""  # None: unknown
        self._pending_checks = 0  # how many checks of the GPUs were requested
        self._checking: threading.Thread | None = None
        self._checked_at = 0.0

    def current_problem(self) -> str:
        """Returns why no run can start now, or "". Takes only as long as a check of the disk."""
        problem = self._checks.home(self._root)
        with self._lock:
            return problem or self._launch_failure or self._check_gpus()

    def record_failure(self, reason: str) -> None:
        """Records that a start failed because of this node."""
        with self._lock:
            self._launch_failure, self._rechecked_at = reason, time.monotonic()

    def recheck_gpus(self) -> None:
        """Requests a check of the GPU driver, because a replica could not start for a reason of this node."""
        with self._lock:
            if self._gpus:
                self._pending_checks += 1
                self._gpu_problem = self._gpu_problem or None

    def is_due(self) -> bool:
        """Returns whether the failed step must be retried now."""
        with self._lock:
            return bool(self._launch_failure) and time.monotonic() - self._rechecked_at >= CHECK_INTERVAL_S

    def recheck(self) -> bool:
        """Returns whether folders of replicas can be created. The caller retries the rest and calls
        `record_success`."""
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
        problem = self._checks.gpus(self._gpus)
        with self._lock:
            # a check that was requested meanwhile runs again
            if problem or pending_checks == self._pending_checks:
                self._gpu_problem = problem
