"""The server's side of the Unix socket in its home, and of its proof on a port; see
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
    """Accepts connections by the Unix socket. A process of this server's user, or of root, gets a protocol
    from `make_protocol`. Other processes are disconnected, although the mode of the home should have kept
    them out."""

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
    """Returns the process at the other end of a Unix socket connection."""
    wrapped: socket.socket = transport.get_extra_info("socket")
    # without a new descriptor, since none may be left
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, wrapped.fileno())
    try:
        return socket_peer(sock)
    finally:
        sock.detach()


def listener_uid(port: int) -> int | None:
    """Returns the uid of the process that listens on a port of this machine; None if it is unknown."""
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
