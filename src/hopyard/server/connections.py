"""How many connections there are, from which peers, and which of them are closed when there are too many or
they stall."""

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
_MAX_LINGERING_REFUSALS = 64  # connections that are kept open only to tell their clients to come back
_OWNER_RESERVE = 64  # connections over the limit that the server's own Unix user may have
_SLOW_LOG_INTERVAL_S = 60.0
_MAX_BACKLOG = 2048
_RESERVED_DESCRIPTORS = 256  # for the database, streams, blobs and engines


def _connection_capacity(descriptors: int) -> int:
    return max(128, descriptors - _RESERVED_DESCRIPTORS)


def backlog_for(descriptors: int) -> int:
    """How many connections may wait to be accepted: all of them may be accepted at once, before any is
    refused."""
    return min(_MAX_BACKLOG, _connection_capacity(descriptors) // 16)


class TrackedConnection(Protocol):
    """One connection, as it is counted. expired: closes it when it stalls or keeps the server waiting too
    long."""

    def evict_for_newer(self) -> None: ...
    def close_if_stalled(self, now: float) -> None: ...


class PeerConnections:
    """The connections of one address, or of one Unix user of this machine.
    idle: those without a request in progress, oldest first."""

    __slots__ = ("count", "idle", "key")

    def __init__(self, key: str) -> None:
        self.key, self.count = key, 0
        self.idle: dict[TrackedConnection, None] = {}


class Connections:
    """Counts the connections of one server. A new connection over the limit takes the place of one without a
    request in progress: the oldest of its own peer, or of the peer that has most of them. Where all are busy
    the new one is refused.

    descriptors: how many files this process may have open. local: those by the Unix socket of the home in
    place of those over TCP; all of them are the owner's processes, and neither kind takes the place of the
    other.
    """

    def __init__(self, limits: LimitSettings, *, descriptors: int, local: bool = False) -> None:
        # the rest is left for those that are refused, and for all else that opens files
        eighths = 1 if local else 5
        room = max(16, _connection_capacity(descriptors) * eighths // 8)
        self.limits = limits
        self.max_connections = min(limits.connections, room)
        self.max_per_peer = (
            self.max_connections if local else min(limits.connections_per_peer, self.max_connections)
        )
        self.total = 0
        self._peers: dict[str, PeerConnections] = {}
        self._lingering_refusals = 0
        # connections that were closed since the log said so; when it did
        self._slow_count, self._slow_logged_at = 0, -_SLOW_LOG_INTERVAL_S
        self._watched: set[TrackedConnection] = set()
        self._check_timer: asyncio.TimerHandle | None = None
        self._owner_uid = f"uid {os.getuid()}"

    def admit(self, connection: TrackedConnection, key: str) -> PeerConnections | None:
        """Count a connection of the peer `key`; None when there is no place for it."""
        peer = self._peers.get(key) or PeerConnections(key)
        most = self.max_connections + (_OWNER_RESERVE if key == self._owner_uid else 0)
        if peer.count >= self.max_per_peer and not self._evict_idle(peer):
            return None
        if self.total >= most and not self._evict_idle(
            max(self._peers.values(), key=lambda one: len(one.idle))
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
        """A connection that was admitted is over."""
        peer.idle.pop(connection, None)
        peer.count -= 1
        self.total -= 1
        if not peer.count:
            self._peers.pop(peer.key, None)

    def start_refusal(self) -> bool:
        """Whether a connection without a place may stay until it is told so; `refused_one_left` when it is
        over."""
        if self._lingering_refusals >= _MAX_LINGERING_REFUSALS:
            return False
        self._lingering_refusals += 1
        return True

    def end_refusal(self) -> None:
        self._lingering_refusals -= 1

    def log_slow_client(self, reason: str, key: str) -> None:
        """A connection of the peer was closed because its client was too slow.
        The log says so once in a while."""
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
        """Ask the connection again and again whether it has stalled, until `unwatch`."""
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
        for held in list(self._watched):
            held.close_if_stalled(now)
        self._check_timer = (
            loop.call_later(self._check_interval_s, self._check_all, loop) if self._watched else None
        )


# -- who is at the other end ---------------------------------------------------------------------------------

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1  # <linux/netlink.h>, <linux/sock_diag.h>
_HEADER = struct.Struct("=LHHLL")
_UID_OFFSET = _HEADER.size + 4 + 48 + 12  # of `struct inet_diag_msg`


class PeerIdentifier:
    """Names the peer of a connection: `uid N` for a process of this machine, else the address."""

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
        """The Unix user of a socket of this machine, as the kernel has it; None where it does not tell."""
        if self._netlink is None:
            return None
        try:
            family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
            ends = b"".join(
                socket.inet_pton(family, end).ljust(16, b"\0") for end in (peer[0], local_address[0])
            )
            wanted = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
            wanted += (
                struct.pack("!HH", peer[1], local_address[1]) + ends + struct.pack("=I", 0) + b"\xff" * 8
            )
            self._netlink.send(
                _HEADER.pack(_HEADER.size + len(wanted), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + wanted
            )
            found = self._netlink.recv(4096)
        except OSError:
            return None
        if len(found) < _UID_OFFSET + 4 or _HEADER.unpack_from(found)[1] != _SOCK_DIAG_BY_FAMILY:
            return None
        return int(struct.unpack_from("=I", found, _UID_OFFSET)[0])

    def close(self) -> None:
        if self._netlink is not None:
            self._netlink.close()


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def unix_peer(transport: asyncio.BaseTransport) -> str:
    """The Unix user at the other end of a Unix socket; "" where the kernel does not say."""
    with suppress(OSError, struct.error):
        return f"uid {peer_of_transport(transport).uid}"
    return ""
