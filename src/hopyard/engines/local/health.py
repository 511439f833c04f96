"""Whether this node can start anything now. What it could not do is tried again until it works."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hopyard.private_files import make_folder

CHECK_EVERY_S = 2.0  # of what failed


@dataclass(frozen=True, slots=True)
class Checks:
    """What is asked of a node: each says what is wrong, "" where nothing is. home: of its folder, at once.
    gpus: of these indices; it may take long."""

    home: Callable[[Path], str] = lambda _: ""
    gpus: Callable[[Sequence[int]], str] = lambda _: ""


class Health:
    """root: of the home. attempts: where replicas' folders are made.
    gpus: those that the driver names; () where they are declared.

    Any thread may call it: launches and looks go on beside each other.
    """

    def __init__(self, checks: Checks, root: Path, attempts: Path, gpus: Sequence[int]) -> None:
        self._checks, self._root, self._attempts, self._gpus = checks, root, attempts, tuple(gpus)
        self._lock = threading.Lock()
        self._failed, self._tried_at = "", 0.0  # the launch that failed
        self._gpu_trouble: str | None = ""  # None: not known yet
        self._doubts = 0  # how often the GPUs were doubted
        self._asking: threading.Thread | None = None
        self._asked_at = 0.0

    def trouble(self) -> str:
        """Why nothing can start now, "" where something can. Takes no longer than a look at the disk."""
        found = self._checks.home(self._root)
        with self._lock:
            return found or self._failed or self._of_gpus()

    def failed(self, reason: str) -> None:
        """Something could not be started, for a reason of this node."""
        with self._lock:
            self._failed, self._tried_at = reason, time.monotonic()

    def doubt_gpus(self) -> None:
        """A replica could not start for a reason of this node: the driver of its GPUs is asked."""
        with self._lock:
            if self._gpus:
                self._doubts += 1
                self._gpu_trouble = self._gpu_trouble or None

    def is_due(self) -> bool:
        """Whether what failed is to be tried again."""
        with self._lock:
            return bool(self._failed) and time.monotonic() - self._tried_at >= CHECK_EVERY_S

    def try_again(self) -> bool:
        """Whether folders of replicas can be made; its caller tries the rest, and says so with `works`."""
        with self._lock:
            self._tried_at = time.monotonic()
        probe = self._attempts / f".probe-{os.getpid()}"
        try:
            make_folder(probe)
            probe.rmdir()
        except OSError:
            return False
        return True

    def works(self) -> None:
        with self._lock:
            self._failed = ""

    def _of_gpus(self) -> str:
        if self._gpu_trouble == "":
            return ""
        idle = self._asking is None or not self._asking.is_alive()
        if idle and (self._gpu_trouble is None or time.monotonic() - self._asked_at >= CHECK_EVERY_S):
            self._asked_at = time.monotonic()
            self._asking = threading.Thread(
                target=self._ask, args=(self._doubts,), name="GPU check", daemon=True
            )
            self._asking.start()
        return "the driver of its GPUs is being asked" if self._gpu_trouble is None else self._gpu_trouble

    def _ask(self, doubts: int) -> None:
        told = self._checks.gpus(self._gpus)
        with self._lock:
            if told or doubts == self._doubts:  # what was doubted while the driver was asked is asked again
                self._gpu_trouble = told
