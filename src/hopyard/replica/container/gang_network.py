"""The private network of the containers of one gang, in which each replica has an address for its rank.

The names of all replicas are in the hosts file of each container from the start. A name service would know
only replicas that have started already.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_network

from hopyard.container_engine.engine_api import EngineApi
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


def open_network(api: EngineApi, name: str, attempt: str, size: int, labels: dict[str, str]) -> GangNetwork:
    """Returns the network of the attempt, which the first replica creates. Call it with the lock of the gang.
    Raises ContainerError."""
    try:
        return _read(name, api.get(f"/networks/{name}"))
    except ContainerError as error:
        if error.status != 404:
            raise
    problem = ContainerError("no subnet is free for the network of the gang")
    for subnet in _candidates(attempt, size):
        config = {"Subnet": str(subnet), "Gateway": str(subnet[1])}
        body = {"Name": name, "Driver": "bridge", "Labels": labels, "IPAM": {"Config": [config]}}
        try:
            api.post("/networks/create", body)
            return GangNetwork(name, subnet)
        except ContainerError as error:
            if error.status not in (400, 403, 409, 500):
                raise
            problem = error  # another network has addresses of this subnet
    raise problem


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
