"""The private network of the containers of one gang, in which each replica has an address for its rank.

The names of all replicas are in the hosts file of each container from the start. A name service would know
only replicas that have started already. Docker keeps networks apart. Podman is asked to, by its own
interface; older versions of its netavark forget that when another network ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_network
from typing import Any

from hopyard.container_engine.engine_discovery import ContainerEngine
from hopyard.errors import ContainerError

_POOL = IPv4Network("10.64.0.0/10")  # private addresses that few sites use
_PREFIX, _LARGE_PREFIX, _FIRST_HOST = 24, 18, 10
_MAX_SMALL_GANG = 200
_MAX_TRIES = 20


@dataclass(frozen=True, slots=True)
class GangNetwork:
    name: str
    subnet: IPv4Network

    def address(self, rank: int) -> str:
        return str(self.subnet[_FIRST_HOST + rank])

    def hosts(self, names: Iterable[str]) -> dict[str, str]:
        """names: of all replicas, in the order of ranks."""
        return {name: self.address(rank) for rank, name in enumerate(names)}


def open_network(
    engine: ContainerEngine, name: str, attempt: str, size: int, labels: dict[str, str], *, is_internal: bool
) -> GangNetwork:
    """Returns the network of the attempt, which the first replica creates. Call it with the lock of the gang.

    is_internal: the containers reach only each other. Raises ContainerError.
    """
    api = engine.api
    try:
        return _read(name, api.get(f"/networks/{name}"))
    except ContainerError as error:
        if error.status != 404:
            raise
    problem = ContainerError("no subnet is free for the network of the gang")
    for subnet in _candidates(attempt, size):
        try:
            _create(engine, GangNetwork(name, subnet), labels, is_internal)
            return GangNetwork(name, subnet)
        except ContainerError as error:
            if error.status not in (400, 403, 409, 500):
                raise
            problem = error  # another network has addresses of this subnet
    raise problem


def _create(engine: ContainerEngine, network: GangNetwork, labels: dict[str, str], is_internal: bool) -> None:
    subnet, gateway = str(network.subnet), str(network.subnet[1])
    body: dict[str, Any]
    if engine.name == "Podman":
        # without a gateway, the node itself has no address in an internal network
        range_ = {"subnet": subnet} if is_internal else {"subnet": subnet, "gateway": gateway}
        body = {"name": network.name, "driver": "bridge", "labels": labels, "subnets": [range_]}
        body |= {"internal": is_internal, "options": {"isolate": "true"}}
        engine.api.post("/v4.0.0/libpod/networks/create", body)
    else:
        ipam = {"Config": [{"Subnet": subnet, "Gateway": gateway}]}
        body = {"Name": network.name, "Driver": "bridge", "Labels": labels, "IPAM": ipam}
        engine.api.post("/networks/create", body | {"Internal": is_internal})


def _read(name: str, values: dict[str, object]) -> GangNetwork:
    ipam = values.get("IPAM")
    configs = ipam.get("Config") if isinstance(ipam, dict) else None
    subnet = ip_network(str(configs[0]["Subnet"])) if configs else None
    if not isinstance(subnet, IPv4Network):
        raise ContainerError(f"the network {name} has no IPv4 subnet")
    return GangNetwork(name, subnet)


def _candidates(attempt: str, size: int) -> Iterable[IPv4Network]:
    """Yields subnets, which differ between attempts."""
    prefix = _PREFIX if size <= _MAX_SMALL_GANG else _LARGE_PREFIX
    count = 1 << (prefix - _POOL.prefixlen)
    start = int.from_bytes(hashlib.blake2s(attempt.encode()).digest()[:4], "big")
    for attempt_number in range(_MAX_TRIES):
        offset = (start + attempt_number * 7919) % count << (32 - prefix)
        yield IPv4Network((int(_POOL.network_address) + offset, prefix))
