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

from hopyard.config.limits import LimitSettings
from hopyard.server.local import peer_of_transport

log = logging.getLogger("hopyard.server")
RETRY_AFTER_S = 1
_REFUSED_AT_ONCE = 64  # connections that are kept open only to tell their clients to come back
_OWN_RESERVE = 64  # connections over the limit that the server's own Unix user may have
_TELL_EVERY_S = 60.0
_MOST_BACKLOG = 2048
_DESCRIPTORS_KEPT = 256  # for the database, streams, blobs and engines


def _room(descriptors: int) -> int:
    return max(128, descriptors - _DESCRIPTORS_KEPT)


def backlog_for(descriptors: int) -> int:
    """How many connections may wait to be accepted: all of them may be accepted at once, before any is
    refused."""
    return min(_MOST_BACKLOG, _room(descriptors) // 16)


class Held(Protocol):
    """One connection, as it is counted. expired: closes it when it stalls or keeps the server waiting too
    long."""

    def evict(self) -> None: ...
    def expire(self, now: float) -> None: ...


class Peer:
    """The connections of one address, or of one Unix user of this machine.
    waiting: those without a request in progress, oldest first."""

    __slots__ = ("count", "key", "waiting")

    def __init__(self, key: str) -> None:
        self.key, self.count = key, 0
        self.waiting: dict[Held, None] = {}


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
        room = max(16, _room(descriptors) * eighths // 8)
        self.limits = limits
        self.most = min(limits.connections, room)
        self.most_per_peer = self.most if local else min(limits.connections_per_peer, self.most)
        self.total = 0
        self._peers: dict[str, Peer] = {}
        self._refused = 0
        # connections that were closed since the log said so; when it did
        self._slow, self._slow_told_at = 0, -_TELL_EVERY_S
        self._held: set[Held] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._own = f"uid {os.getuid()}"

    def admit(self, held: Held, key: str) -> Peer | None:
        """Count a connection of the peer `key`; None when there is no place for it."""
        peer = self._peers.get(key) or Peer(key)
        most = self.most + (_OWN_RESERVE if key == self._own else 0)
        if peer.count >= self.most_per_peer and not self._evict(peer):
            return None
        if self.total >= most and not self._evict(
            max(self._peers.values(), key=lambda one: len(one.waiting))
        ):
            return None
        self._peers[key] = peer
        peer.count += 1
        peer.waiting[held] = None
        self.total += 1
        return peer

    def _evict(self, peer: Peer) -> bool:
        oldest = next(iter(peer.waiting), None)
        if oldest is None:
            return False
        self.leave(oldest, peer)
        oldest.evict()
        return True

    def leave(self, held: Held, peer: Peer) -> None:
        """A connection that was admitted is over."""
        peer.waiting.pop(held, None)
        peer.count -= 1
        self.total -= 1
        if not peer.count:
            self._peers.pop(peer.key, None)

    def refuse(self) -> bool:
        """Whether a connection without a place may stay until it is told so; `refused_one_left` when it is
        over."""
        if self._refused >= _REFUSED_AT_ONCE:
            return False
        self._refused += 1
        return True

    def refused_one_left(self) -> None:
        self._refused -= 1

    def note_slow(self, what: str, key: str) -> None:
        """A connection of the peer was closed because its client was too slow.
        The log says so once in a while."""
        self._slow += 1
        now = time.monotonic()
        if now >= self._slow_told_at + _TELL_EVERY_S:
            log.warning(
                "closed %d connections of clients that were too slow; the last one, of %s, %s too slowly",
                self._slow,
                key or "an unknown user",
                what,
            )
            self._slow, self._slow_told_at = 0, now

    def watch(self, held: Held, loop: asyncio.AbstractEventLoop) -> None:
        """Ask the connection again and again whether it has stalled, until `unwatch`."""
        self._held.add(held)
        if self._sweep is None:
            self._sweep = loop.call_later(self._every_s, self._look, loop)

    def unwatch(self, held: Held) -> None:
        self._held.discard(held)

    @property
    def _every_s(self) -> float:
        limits = self.limits
        return min(5.0, limits.header_timeout_s / 4, limits.body_timeout_s / 4)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for held in list(self._held):
            held.expire(now)
        self._sweep = loop.call_later(self._every_s, self._look, loop) if self._held else None


# -- who is at the other end
# -----------------------------------------------------------------------------------------

_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1  # <linux/netlink.h>, <linux/sock_diag.h>
_HEADER = struct.Struct("=LHHLL")
_UID_AT = _HEADER.size + 4 + 48 + 12  # of `struct inet_diag_msg`


class PeerNames:
    """Names the peer of a connection: `uid N` for a process of this machine, else the address."""

    def __init__(self) -> None:
        self._netlink: socket.socket | None = None
        with suppress(OSError, AttributeError):
            self._netlink = socket.socket(
                socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG
            )
            self._netlink.settimeout(0.05)

    def of(self, peer: tuple[str, int], own: tuple[str, int | None] | None) -> str:
        address = peer[0]
        if own is None or own[1] is None or not _is_loopback(address):
            return address
        uid = self._uid(peer, (own[0], own[1]))
        return address if uid is None else f"uid {uid}"

    def _uid(self, peer: tuple[str, int], own: tuple[str, int]) -> int | None:
        """The Unix user of a socket of this machine, as the kernel has it; None where it does not tell."""
        if self._netlink is None:
            return None
        try:
            family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
            ends = b"".join(socket.inet_pton(family, end).ljust(16, b"\0") for end in (peer[0], own[0]))
            wanted = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF)
            wanted += struct.pack("!HH", peer[1], own[1]) + ends + struct.pack("=I", 0) + b"\xff" * 8
            self._netlink.send(_HEADER.pack(_HEADER.size + len(wanted), _BY_FAMILY, _REQUEST, 1, 0) + wanted)
            found = self._netlink.recv(4096)
        except OSError:
            return None
        if len(found) < _UID_AT + 4 or _HEADER.unpack_from(found)[1] != _BY_FAMILY:
            return None
        return int(struct.unpack_from("=I", found, _UID_AT)[0])

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
