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
    """What is asked of a node: each says what is wrong, "" where nothing is. disk: of a folder, at once. gpus: of these indices; it may take long."""

    disk: Callable[[Path], str] = lambda _: ""
    gpus: Callable[[Sequence[int]], str] = lambda _: ""


class Health:
    """root: of the home. attempts: where replicas' folders are made. gpus: those that the driver names; () where they are declared.

    Called by one thread at a time.
    """

    def __init__(self, checks: Checks, root: Path, attempts: Path, gpus: Sequence[int]) -> None:
        self._checks, self._root, self._attempts, self._gpus = checks, root, attempts, tuple(gpus)
        self._failed, self._tried_at = "", 0.0  # the launch that failed
        self._gpu_trouble: str | None = ""  # None: not known yet
        self._asking: threading.Thread | None = None
        self._asked_at = 0.0

    def trouble(self) -> str:
        """Why nothing can start now, "" where something can. Takes no longer than a look at the disk."""
        return self._checks.disk(self._root) or self._failed or self._of_gpus()

    def failed(self, reason: str) -> None:
        """Something could not be started, for a reason of this node."""
        self._failed, self._tried_at = reason, time.monotonic()

    def doubt_gpus(self) -> None:
        """A replica could not start for a reason of this node: the driver of its GPUs is asked."""
        if self._gpus and self._gpu_trouble == "":
            self._gpu_trouble = None

    def is_due(self) -> bool:
        """Whether what failed is to be tried again."""
        return bool(self._failed) and time.monotonic() - self._tried_at >= CHECK_EVERY_S

    def try_again(self) -> bool:
        """Whether folders of replicas can be made; its caller tries the rest, and says so with `works`."""
        self._tried_at = time.monotonic()
        probe = self._attempts / f".probe-{os.getpid()}"
        try:
            make_folder(probe)
            probe.rmdir()
        except OSError:
            return False
        return True

    def works(self) -> None:
        self._failed = ""

    def _of_gpus(self) -> str:
        if self._gpu_trouble == "":
            return ""
        idle = self._asking is None or not self._asking.is_alive()
        if idle and (self._gpu_trouble is None or time.monotonic() - self._asked_at >= CHECK_EVERY_S):
            self._asked_at = time.monotonic()
            self._asking = threading.Thread(target=self._ask, name="GPU check", daemon=True)
            self._asking.start()
        return "the driver of its GPUs is being asked" if self._gpu_trouble is None else self._gpu_trouble

    def _ask(self) -> None:
        self._gpu_trouble = self._checks.gpus(self._gpus)
