"""The containers of the replicas of this engine. The replica programs start and remove them; here the rest
of those that were killed is removed."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from hopyard.container_engine.container_labels import remove_unknown_containers
from hopyard.container_engine.engine_discovery import find_engine, start_podman_service
from hopyard.errors import ContainerError
from hopyard.private_files import open_file

_MARKER = "containers"  # in the home: it had containers
log = logging.getLogger("hopyard.engines")


class ContainerCleanup:
    """home: of the engine. The methods block, and raise no error: a replica reports that it has no container
    engine."""

    def __init__(self, home: Path) -> None:
        self._home = home

    @property
    def is_used(self) -> bool:
        """Whether a run of this home has had containers."""
        return (self._home / _MARKER).exists()

    def prepare(self) -> None:
        """Starts Podman's service if this node has Podman and no engine that answers."""
        with suppress(OSError):
            os.close(open_file(self._home / _MARKER, os.O_WRONLY | os.O_CREAT))
        try:
            start_podman_service()
        except (ContainerError, OSError) as error:
            log.warning("Podman's service could not be started: %s", error)

    def remove_unknown(self, known: Collection[str]) -> None:
        """Removes the containers of this home without one of these attempts."""
        if not self.is_used:
            return
        try:
            removed = remove_unknown_containers(find_engine().api, self._home, known)
        except (ContainerError, OSError) as error:
            log.warning("leftover containers could not be removed: %s", error)
            return
        if removed:
            log.info("removed leftover containers of attempts %s", ", ".join(removed))
