"""Failures of a replica that only report the failure of another one: a broken connection."""

from __future__ import annotations

import re

_BROKEN_CONNECTION = re.compile(
    r"connection (?:was )?(?:closed|reset|refused)|broken ?pipe|socket (?:is )?closed|peer closed"
    r"|ConnectionError|ConnectionResetError|ConnectionRefusedError|BrokenPipeError|EOFError"
    r"|failed to (?:connect|recv|send)|remote process exited"
    r"|DistNetworkError|DistStoreError|RendezvousConnectionError"
    r"|Coordination service|UnavailableError|UNAVAILABLE: |heartbeat timeout|SignalException"
    r"|lost communication with a remote daemon",
    re.IGNORECASE,
)


def is_peer_failure(reason: str) -> bool:
    """Returns whether the reason of a failure names a broken connection, as after the end of a peer."""
    return _BROKEN_CONNECTION.search(reason) is not None
