"""The containers of `benchmarks.chaos`: the processes that belong to them, and what is left of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from benchmarks.podman_service import PodmanService
from hopyard.container_engine.container_labels import container_name, home_tag
from hopyard.errors import ContainerError

_SUBNETS = ip_network("10.64.0.0/10")  # of the networks of gangs
_API = "/v4.0.0/libpod"


@contextmanager
def podman_service(shared: Path) -> Iterator[PodmanService]:
    """Starts Podman's service with a storage of its own. shared: a folder that all containers see."""
    with TemporaryDirectory(prefix="hopyard-chaos-podman-") as folder:
        service = PodmanService(Path(folder), shared=[shared])
        try:
            service.load_image()
            service.start()
            yield service
        finally:
            service.end()


class Containers:
    """The containers of one home."""

    def __init__(self, service: PodmanService, home: Path) -> None:
        self.service, self.home = service, home

    def find_pid(self, part: str, attempt: str, rank: int) -> int:
        """Returns the process of a part: the service, or the container or monitor of a rank. 0: there is
        none yet."""
        if part == "service":
            return self.service.pid
        try:
            name = container_name(self.home, attempt, rank)
            state = self.service.api.get(f"{_API}/containers/{name}/json")["State"]
        except ContainerError:
            return 0
        return int(state.get("ConmonPid" if part == "conmon" else "Pid", 0))

    def leftovers(self) -> list[str]:
        """Returns the containers and networks of the home, the monitors, and the bridges without a network.
        All services of a machine share the networks, and each of them has a bridge."""
        api, mine = self.service.api, f"hopyard-{home_tag(self.home)[:8]}-"
        try:
            containers: list[dict[str, Any]] = api.get("/containers/json", all=True)
            networks: list[dict[str, Any]] = api.get(f"{_API}/networks/json")
        except ContainerError as error:
            return [f"Podman does not list them: {error.message}"]
        found = [f"container {values['Names'][0]}" for values in containers]
        found += [f"network {values['name']}" for values in networks if values["name"].startswith(mine)]
        found += [f"monitor {process.pid}" for process in self.service.monitors()]
        bridges = {values["network_interface"] for values in networks if "network_interface" in values}
        for name, addresses in psutil.net_if_addrs().items():
            for address in addresses:
                if name not in bridges and name.startswith("podman") and _is_of_gang(address.address):
                    found.append(f"bridge {name}")
        return found


def _is_of_gang(text: str) -> bool:
    try:
        return ip_address(text) in _SUBNETS
    except ValueError:
        return False
