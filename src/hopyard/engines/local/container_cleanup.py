"""The containers of the replicas of this engine. The replica programs start and remove them; here the rest
of those that were killed is removed."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from hopyard.container_engine.container_labels import remove_unknown_containers
from hopyard.container_engine.engine_discovery import open_engine, start_podman_service
from hopyard.errors import ContainerError
from hopyard.private_files import open_file

_MARKER = "containers"  # in the home: it had containers
_TIMEOUT_S = 20.0  # for each answer of an engine: one that hangs delays launches
_RETRY_INTERVAL_S = 60.0
log = logging.getLogger("hopyard.engines")


class ContainerCleanup:
    """home: of the engine. The methods block, and raise no error: a replica reports that it has no container
    engine."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._retry_at = float("inf")  # monotonic time

    @property
    def is_used(self) -> bool:
        """Whether a run of this home has had containers."""
        return (self._home / _MARKER).exists()

    def prepare(self) -> None:
        """Starts Podman's service if this node has Podman and no engine that answers."""
        with suppress(OSError):
            os.close(open_file(self._home / _MARKER, os.O_WRONLY | os.O_CREAT))
        try:
            start_podman_service(timeout_s=_TIMEOUT_S)
        except (ContainerError, OSError) as error:
            log.warning("Podman's service could not be started: %s", error)

    @property
    def is_due(self) -> bool:
        """Whether a removal failed some time ago, such as while the container engine was away."""
        return time.monotonic() >= self._retry_at

    def remove_unknown(self, list_known: Callable[[], Collection[str]]) -> None:
        """Removes the containers of this home of attempts that `list_known` does not return."""
        is_repeated, self._retry_at = self._retry_at < float("inf"), float("inf")
        if not self.is_used:
            return
        try:
            api = open_engine(timeout_s=_TIMEOUT_S).api
            removed, is_complete = remove_unknown_containers(api, self._home, list_known)
        except (ContainerError, OSError) as error:
            if not is_repeated:
                log.warning("leftover containers could not be removed: %s", error)
            removed, is_complete = [], False
        if not is_complete:
            self._retry_at = time.monotonic() + _RETRY_INTERVAL_S
        elif removed:
            log.info("removed leftover containers of attempts %s", ", ".join(removed))
