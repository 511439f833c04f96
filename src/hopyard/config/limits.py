"""`server.limits` of `config.yaml`: what one client may take of the server.
The defaults are far above what honest use needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hopyard.config import units
from hopyard.config.reader import Section, shown

_MIB = 1024 * 1024
_LEAST_BODY_MEMORY, _MOST_BODY_MEMORY = 64 * _MIB, 2**42
_SHORTEST_S, _LONGEST_S = 0.1, 24 * 3600.0
_MOST_PER_S = 10**9


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Limits of the server.

    connections: over TCP, in all; connections_per_peer: of them from one address, or on this machine from one
    Unix user. header_timeout_s: within it a connection's next request must arrive whole, up to its body.
    body_timeout_s: for the whole body, and for reading an answer of up to 16 MiB that holds memory.
    idle_timeout_s: of a connection between two requests. body_memory_bytes: of request bodies that are being
    received or used, in all; one user gets at most half of it. requests_per_s, submissions_per_s,
    upload_bytes_per_s: of one user; 0 sets no limit.
    """

    connections: int = 4096
    connections_per_peer: int = 2048
    header_timeout_s: float = 20.0
    body_timeout_s: float = 900.0
    idle_timeout_s: float = 75.0  # longer than a replica's heartbeat
    body_memory_bytes: int = 768 * _MIB
    requests_per_s: int = 5000
    submissions_per_s: int = 4000
    upload_bytes_per_s: int = 0


def read_limits(given: Section) -> LimitSettings:
    """Raises SpecError naming the key."""
    given.only(
        "connections",
        "connections_per_peer",
        "header_timeout",
        "body_timeout",
        "idle_timeout",
        "body_memory",
        "requests_per_s",
        "submissions_per_s",
        "upload_per_s",
    )
    default = LimitSettings()
    connections = given.whole("connections", default.connections, low=16, high=1_000_000)
    return LimitSettings(
        connections=connections,
        connections_per_peer=given.whole(
            "connections_per_peer", max(8, connections // 2), low=8, high=1_000_000
        ),
        header_timeout_s=_within(
            given, "header_timeout", units.parse_time, default.header_timeout_s, _SHORTEST_S, _LONGEST_S
        ),
        body_timeout_s=_within(
            given, "body_timeout", units.parse_time, default.body_timeout_s, _SHORTEST_S, _LONGEST_S
        ),
        idle_timeout_s=_within(
            given, "idle_timeout", units.parse_time, default.idle_timeout_s, _SHORTEST_S, _LONGEST_S
        ),
        body_memory_bytes=int(
            _within(
                given,
                "body_memory",
                units.parse_memory,
                default.body_memory_bytes,
                _LEAST_BODY_MEMORY,
                _MOST_BODY_MEMORY,
            )
        ),
        requests_per_s=given.whole("requests_per_s", default.requests_per_s, low=0, high=_MOST_PER_S),
        submissions_per_s=given.whole(
            "submissions_per_s", default.submissions_per_s, low=0, high=_MOST_PER_S
        ),
        upload_bytes_per_s=int(
            _within(given, "upload_per_s", units.parse_memory, default.upload_bytes_per_s, 0, 2**50)
        ),
    )


def _within(
    given: Section, key: str, parse: Callable[[str], float], default: float, low: float, high: float
) -> float:
    found = given.amount(key, parse)
    if found is None:
        return default
    if not low <= found <= high:
        first, last = (
            units.format_time(end) if parse is units.parse_time else units.format_memory(int(end))
            for end in (low, high)
        )
        raise given.fail(
            key,
            f"{shown(given.values[key])} is out of range",
            f"allowed: {first} to {last}; without the line the default is generous",
        )
    return found
