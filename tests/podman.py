"""A real Podman for tests: its service with a storage of its own, and a small image of this machine's
Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.podman_service import IMAGE as IMAGE
from benchmarks.podman_service import PodmanService, missing_programs
from hopyard.container_engine.engine_api import EngineApi
from hopyard.errors import ContainerError


@dataclass(frozen=True)
class Podman:
    """variables: of a server that is to find it. command: `podman` with the same storage. old_networks: of
    other tests. All services share the networks, so that each has a device of its own.
    service: the pid of this one."""

    api: EngineApi
    storage: Path
    variables: dict[str, str]
    command: tuple[str, ...]
    old_networks: frozenset[str]
    service: int

    def containers(self) -> list[str]:
        """Returns the names of all containers."""
        try:
            return [values["Names"][0] for values in self.api.get("/containers/json", all=True)]
        except ContainerError as error:
            if "container not known" not in error.message:
                raise
            return [error.message]  # one without files, which must be removed, too

    def networks(self) -> list[str]:
        """Returns the names of the networks of gangs."""
        return [name for name in _gang_networks(self.api) if name not in self.old_networks]


def _gang_networks(api: EngineApi) -> list[str]:
    names = [values["Name"] for values in api.get("/networks")]
    return [name for name in names if name.startswith("hopyard-")]


def serve_podman(folder: Path) -> Iterator[Podman]:
    """Starts the service with its storage in `folder`, and yields it once it has the image."""
    service = PodmanService(folder)
    try:
        service.load_image()
        service.start()
        old_networks = frozenset(_gang_networks(service.api))
        yield Podman(
            service.api, service.storage, service.variables, service.command, old_networks, service.pid
        )
    finally:
        service.end()


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    if reason := missing_programs():
        pytest.skip(reason)
    yield from serve_podman(tmp_path_factory.mktemp("podman"))
