"""The server's end of the Unix socket in its home, and of its proof on a port; see
`api_client.home_socket`."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import cast

from hopyard.api_client.home_socket import SocketPeer, socket_peer

_TCP_LISTEN = "0A"  # the state of a socket in /proc/net/tcp


class OwnerOnlyProtocol(asyncio.Protocol):
    """A new connection by the Unix socket. A process of this server's user, or of root, gets the protocol
    that `make_protocol` makes; others, whom the mode of the home should have kept out, get nothing."""

    def __init__(self, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        self._make_protocol = make_protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if peer_of_transport(transport).uid not in (os.geteuid(), 0):
            cast(asyncio.Transport, transport).abort()
            return
        protocol = self._make_protocol()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


def peer_of_transport(transport: asyncio.BaseTransport) -> SocketPeer:
    """The process at the other end of a connection by a Unix socket."""
    wrapped: socket.socket = transport.get_extra_info("socket")
    # no new descriptor: there may be none left
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, wrapped.fileno())
    try:
        return socket_peer(sock)
    finally:
        sock.detach()


def listener_uid(port: int) -> int | None:
    """The uid of the process that listens on a port of this machine; None where it is not told."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as lines:
                for line in lines:
                    fields = line.split()
                    if len(fields) > 7 and fields[3] == _TCP_LISTEN and fields[1].endswith(f":{port:04X}"):
                        return int(fields[7])
        except OSError:
            continue
    return None
