"""Limits the number of connections, in total and per peer, and closes stalled connections."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import struct
import time
from contextlib import suppress
from typing import Protocol

from hopyard.config.server_limits import LimitSettings
from hopyard.server.unix_socket import peer_of_transport

log = logging.getLogger("hopyard.server")
RETRY_AFTER_S = 1
_MAX_LINGERING_REFUSALS = 64  # connections that stay open only to send a refusal
_OWNER_RESERVE = 64  # connections over the limit that the server's own Unix user may have
_SLOW_LOG_INTERVAL_S = 60.0
_MAX_BACKLOG = 2048
_RESERVED_DESCRIPTORS = 256  # for the database, streams, blobs and engines


def _connection_capacity(descriptors: int) -> int:
    return max(128, descriptors - _RESERVED_DESCRIPTORS)


def backlog_for(descriptors: int) -> int:
    """Returns how many connections may wait to be accepted. All of them may be accepted at once, before any
    is refused."""
    return min(_MAX_BACKLOG, _connection_capacity(descriptors) // 16)


class TrackedConnection(Protocol):
    """A counted connection. close_if_stalled: closes it when it stalls or delays the server too long."""

    def evict_for_newer(self) -> None: ...
    def close_if_stalled(self, now: float) -> None: ...


class PeerConnections:
    """The connections of one address, or of one Unix user of this machine. idle: those without a request in
    progress, oldest first."""

    __slots__ = ("count", "idle", "key")

    def __init__(self, key: str) -> None:
        self.key, self.count = key, 0
        self.idle: dict[TrackedConnection, None] = {}


class Connections:
    """Counts the connections of one server.

    A new connection over the limit replaces an idle one, without a request in progress. That is the oldest of
    its own peer, or of the peer with the most idle ones. If all are busy, the new one is refused.

    descriptors: how many files this process may have open. local: counts connections by the Unix socket of
    the home instead of TCP connections. All of them are the owner's processes, and neither kind replaces the
    other.
    """

    def __init__(self, limits: LimitSettings, *, descriptors: int, local: bool = False) -> None:
        # the remaining descriptors are for refused connections and other files
        eighths = 1 if local else 5
        capacity = max(16, _connection_capacity(descriptors) * eighths // 8)
        self.limits = limits
        self.max_connections = min(limits.connections, capacity)
        self.max_per_peer = (
            self.max_connections if local else min(limits.connections_per_peer, self.max_connections)
        )
        self.total = 0
        self._peers: dict[str, PeerConnections] = {}
        self._lingering_refusals = 0
        # connections closed since the last log message, and its time
        self._slow_count, self._slow_logged_at = 0, -_SLOW_LOG_INTERVAL_S
        self._watched: set[TrackedConnection] = set()
        self._check_timer: asyncio.TimerHandle | None = None
        self._owner_uid = f"uid {os.getuid()}"

    def admit(self, connection: TrackedConnection, key: str) -> PeerConnections | None:
        """Counts a connection of the peer `key`. Returns None when it must be refused."""
        peer = self._peers.get(key) or PeerConnections(key)
        max_total = self.max_connections + (_OWNER_RESERVE if key == self._owner_uid else 0)
        if peer.count >= self.max_per_peer and not self._evict_idle(peer):
            return None
        if self.total >= max_total and not self._evict_idle(
            max(self._peers.values(), key=lambda peer_connections: len(peer_connections.idle))
        ):
            return None
        self._peers[key] = peer
        peer.count += 1
        peer.idle[connection] = None
        self.total += 1
        return peer

    def _evict_idle(self, peer: PeerConnections) -> bool:
        oldest = next(iter(peer.idle), None)
        if oldest is None:
            return False
        self.remove(oldest, peer)
        oldest.evict_for_newer()
        return True

    def remove(self, connection: TrackedConnection, peer: PeerConnections) -> None:
        """Removes a connection that was admitted and has ended."""
        peer.idle.pop(connection, None)
        peer.count -= 1
        self.total -= 1
        if not peer.count:
            self._peers.pop(peer.key, None)

    def start_refusal(self) -> bool:
        """Returns whether a refused connection may stay open for its refusal. Call `end_refusal` when it
        ends."""
        if self._lingering_refusals >= _MAX_LINGERING_REFUSALS:
            return False
        self._lingering_refusals += 1
        return True

    def end_refusal(self) -> None:
        self._lingering_refusals -= 1

    def log_slow_client(self, reason: str, key: str) -> None:
        """Counts a connection that was closed because its client was too slow. This is logged at most once a
        minute."""
        self._slow_count += 1
        now = time.monotonic()
        if now >= self._slow_logged_at + _SLOW_LOG_INTERVAL_S:
            log.warning(
                "closed %d connections of clients that were too slow; the last one, of %s, %s too slowly",
                self._slow_count,
                key or "an unknown user",
                reason,
            )
            self._slow_count, self._slow_logged_at = 0, now

    def watch(self, connection: TrackedConnection, loop: asyncio.AbstractEventLoop) -> None:
        """Checks periodically whether the connection has stalled, until `unwatch`."""
        self._watched.add(connection)
        if self._check_timer is None:
            self._check_timer = loop.call_later(self._check_interval_s, self._check_all, loop)

    def unwatch(self, connection: TrackedConnection) -> None:
        self._watched.discard(connection)

    @property
    def _check_interval_s(self) -> float:
        limits = self.limits
        return min(5.0, limits.header_timeout_s / 4, limits.body_timeout_s / 4)

    def _check_all(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in list(self._watched):
            connection.close_if_stalled(now)
        self._check_timer = (
            loop.call_later(self._check_interval_s, self._check_all, loop) if self._watched else None
        )


# -- identification of peers ---------------------------------------------------------------------------------

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1  # <linux/netlink.h>, <linux/sock_diag.h>
_HEADER = struct.Struct("=LHHLL")
_UID_OFFSET = _HEADER.size + 4 + 48 + 12  # of `struct inet_diag_msg`


class PeerIdentifier:
    """Identifies the peer of a connection: `uid N` for a process of this machine, else the address."""

    def __init__(self) -> None:
        self._netlink: socket.socket | None = None
        with suppress(OSError, AttributeError):
            self._netlink = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG
            )
            self._netlink.settimeout(0.05)

    def identify(self, peer: tuple[str, int], local_address: tuple[str, int | None] | None) -> str:
        address = peer[0]
        if local_address is None or local_address[1] is None or not _is_loopback(address):
            return address
        uid = self._local_uid(peer, (local_address[0], local_address[1]))
        return address if uid is None else f"uid {uid}"

    def _local_uid(self, peer: tuple[str, int], local_address: tuple[str, int]) -> int | None:
        """Returns the Unix user of a socket of this machine, from the kernel; None if that is unknown."""
        if self._netlink is None:
            return None
        try:
            family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
            addresses = b"".join(
                socket.inet_pton(family, end).ljust(16, b"\0") for end in (peer[0], local_address[0])
            )
            request = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
            request += (
                struct.pack("!HH", peer[1], local_address[1]) + addresses + struct.pack("=I", 0) + b"\xff" * 8
            )
            self._netlink.send(
                _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
                + request
            )
            response = self._netlink.recv(4096)
        except OSError:
            return None
        if len(response) < _UID_OFFSET + 4 or _HEADER.unpack_from(response)[1] != _SOCK_DIAG_BY_FAMILY:
            return None
        return int(struct.unpack_from("=I", response, _UID_OFFSET)[0])

    def close(self) -> None:
        if self._netlink is not None:
            self._netlink.close()


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def unix_peer(transport: asyncio.BaseTransport) -> str:
    """Returns the Unix user of the peer of a Unix socket; "" if that is unknown."""
    with suppress(OSError, struct.error):
        return f"uid {peer_of_transport(transport).uid}"
    return ""
