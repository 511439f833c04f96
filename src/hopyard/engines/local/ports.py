"""Free ports of this machine, and the addresses of the replicas of a gang."""

from __future__ import annotations

import random
import socket
from collections.abc import Collection, Iterable
from pathlib import Path

from hopyard.errors import LaunchFailed

_MIN_PORT, _MAX_PORT = 10_000, 65_000
_ADDRESSES = 250  # of one gang


def choose_port(used: Collection[int]) -> int:
    """Returns a free port that is not in `used`.

    It is outside the ephemeral range. Otherwise an outgoing connection of the machine could get the port
    between this choice and the replica's bind.
    """
    low, high = _ephemeral_range()
    below, above = range(_MIN_PORT, min(low, _MAX_PORT)), range(max(high + 1, _MIN_PORT), _MAX_PORT)
    if not below and not above:
        below = range(_MIN_PORT, _MAX_PORT)
    count = len(below) + len(above)
    start = random.randrange(count)
    for index in range(start, start + count):
        offset = index % count
        port = below[offset] if offset < len(below) else above[offset - len(below)]
        if port not in used and _is_port_free(port):
            return port
    raise LaunchFailed("no free port for the replicas")


class PortClaims:
    """The ports that this engine gave to its replicas. Engines of other homes on this machine give out none
    of them, also before the scripts listen.

    A claim is an abstract Unix socket with the number of the port in its name. The kernel has each name once
    per network namespace, as the port itself, and removes the claims of an engine that ends.
    """

    def __init__(self) -> None:
        self._claims: dict[int, socket.socket] = {}

    def choose(self) -> int:
        """Claims a free port and returns it. Raises LaunchFailed."""
        taken: set[int] = set(self._claims)
        while True:
            port = choose_port(taken)
            if self._claim(port):
                return port
            taken.add(port)

    def assign(self, numbers: Iterable[int]) -> dict[int, int]:
        """Claims a free port for each of these numbers: the same one where possible. Raises LaunchFailed."""
        return {
            number: number if _is_port_free(number) and self._claim(number) else self.choose()
            for number in numbers
        }

    def keep_only(self, ports: Collection[int]) -> None:
        """Releases all other ports, and claims those of replicas of an earlier engine."""
        for port in self._claims.keys() - set(ports):
            self._claims.pop(port).close()
        for port in ports:
            self._claim(port)

    def close(self) -> None:
        """Releases all ports."""
        self.keep_only(())

    def _claim(self, port: int) -> bool:
        """Returns False for a port that has a claim."""
        if port in self._claims:
            return False
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0hopyard-port-{port}")
        except OSError:
            claim.close()
            return False
        self._claims[port] = claim
        return True


def replica_address(port: int, rank: int) -> str:
    """Returns the loopback address of a replica of the gang with this rendezvous port.

    Each live gang of the machine has a port of its own. So each replica has an address of its own, and two
    may listen on the same port. From rank 250 on, replicas share addresses.
    """
    return f"127.{port >> 8}.{port & 255}.{rank % _ADDRESSES + 1}"


def _ephemeral_range() -> tuple[int, int]:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
        return int(low), int(high)
    except (OSError, ValueError):
        return 32_768, 60_999


def _is_port_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
