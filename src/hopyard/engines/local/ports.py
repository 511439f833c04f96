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


def assign_ports(numbers: Iterable[int], used: Collection[int]) -> dict[int, int]:
    """Returns a free port that is not in `used` for each of these numbers: the same one where possible."""
    ports: dict[int, int] = {}
    for number in numbers:
        taken = {*used, *ports.values()}
        is_free = number not in taken and _is_port_free(number)
        ports[number] = number if is_free else choose_port(taken)
    return ports


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
