"""`server.limits` of `config.yaml`: what one client may take of the server.
The defaults are far above what honest use needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hopyard.config import units
from hopyard.config.yaml_section import YamlSection

_MIB = 1024 * 1024
_MIN_BODY_MEMORY, _MAX_BODY_MEMORY = 64 * _MIB, 2**42
_MIN_TIMEOUT_S, _MAX_TIMEOUT_S = 0.1, 24 * 3600.0
_MAX_RATE = 10**9


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


def read_limits(section: YamlSection) -> LimitSettings:
    """Raises SpecError naming the key."""
    section.check_keys(
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
    connections = section.integer("connections", default.connections, low=16, high=1_000_000)
    return LimitSettings(
        connections=connections,
        connections_per_peer=section.integer(
            "connections_per_peer", max(8, connections // 2), low=8, high=1_000_000
        ),
        header_timeout_s=_read_bounded(
            section,
            "header_timeout",
            units.parse_time,
            default.header_timeout_s,
            _MIN_TIMEOUT_S,
            _MAX_TIMEOUT_S,
        ),
        body_timeout_s=_read_bounded(
            section, "body_timeout", units.parse_time, default.body_timeout_s, _MIN_TIMEOUT_S, _MAX_TIMEOUT_S
        ),
        idle_timeout_s=_read_bounded(
            section, "idle_timeout", units.parse_time, default.idle_timeout_s, _MIN_TIMEOUT_S, _MAX_TIMEOUT_S
        ),
        body_memory_bytes=int(
            _read_bounded(
                section,
                "body_memory",
                units.parse_memory,
                default.body_memory_bytes,
                _MIN_BODY_MEMORY,
                _MAX_BODY_MEMORY,
            )
        ),
        requests_per_s=section.integer("requests_per_s", default.requests_per_s, low=0, high=_MAX_RATE),
        submissions_per_s=section.integer(
            "submissions_per_s", default.submissions_per_s, low=0, high=_MAX_RATE
        ),
        upload_bytes_per_s=int(
            _read_bounded(section, "upload_per_s", units.parse_memory, default.upload_bytes_per_s, 0, 2**50)
        ),
    )


def _read_bounded(
    section: YamlSection, key: str, parse: Callable[[str], float], default: float, low: float, high: float
) -> float:
    amount = section.amount(key, parse)
    if amount is None:
        return default
    if not low <= amount <= high:
        first, last = (
            units.format_time(end) if parse is units.parse_time else units.format_memory(int(end))
            for end in (low, high)
        )
        raise section.error(
            key,
            f"{section.given(key)} is out of range",
            f"allowed: {first} to {last}; leave the line out for the default",
        )
    return amount
