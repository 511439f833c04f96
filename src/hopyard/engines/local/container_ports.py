"""The ports that the containers of this home publish, as the container engine knows them.

The folder of a replica has its ports, too, but its script may write there. It could name a port of the node
that is out of reach of its container, and the server would connect its user to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopyard.container_engine.container_labels import container_name
from hopyard.container_engine.engine_discovery import find_engine
from hopyard.domain.ids import AttemptId
from hopyard.engines.local.replica_folder import process_start
from hopyard.errors import ContainerError

_TIMEOUT_S = 20.0
_MAX_CONTAINERS = 1024  # that are remembered


@dataclass(frozen=True, slots=True)
class _Container:
    """pid, start: of its first process. ports: of this node."""

    pid: int
    start: str
    ports: frozenset[int]


class ContainerPorts:
    """Remembers each container while it runs: a page makes dozens of connections."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._containers: dict[tuple[AttemptId, int], _Container] = {}

    def has(self, attempt: AttemptId, rank: int, real: int) -> bool:
        """Returns whether the container of a replica runs and publishes this port of the node. It blocks."""
        container = self._containers.get((attempt, rank))
        if container is None or process_start(container.pid) != container.start:
            self._containers.pop((attempt, rank), None)
            container = self._read(attempt, rank)
            if container is None:
                return False
            if len(self._containers) >= _MAX_CONTAINERS:
                self._containers.clear()
            self._containers[attempt, rank] = container
        return real in container.ports

    def _read(self, attempt: AttemptId, rank: int) -> _Container | None:
        with suppress(ContainerError, OSError, KeyError, TypeError, ValueError):
            name = container_name(self._home, attempt, rank)
            values = find_engine(timeout_s=_TIMEOUT_S).api.get(f"/containers/{name}/json")
            pid = int(values["State"]["Pid"])
            start = process_start(pid)
            if start:
                return _Container(pid, start, frozenset(_ports(values["NetworkSettings"]["Ports"])))
        return None


def _ports(bindings: Mapping[str, Any]) -> list[int]:
    return [int(binding["HostPort"]) for each in bindings.values() for binding in each or ()]
