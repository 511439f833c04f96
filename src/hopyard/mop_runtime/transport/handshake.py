"""Both sides of a new connection prove that they know the secret of the attempt, without telling it.

    client -> server   magic, a nonce
    server -> client   magic, a nonce of its own, HMAC-SHA256(secret, "server" + both nonces)
    client -> server   HMAC-SHA256(secret, "client" + both nonces)

The roles in the MACs keep one side's proof from being played back as the other's. What follows is neither
encrypted nor signed: this keeps out whoever can connect, not one who can alter packets on the way.
"""

from __future__ import annotations

import hmac
import os
import socket
import time

from hopyard.errors import AuthError
from hopyard.mop_runtime.transport.framing import (
    MAX_PAYLOAD_BYTES,
    ConnectionBroken,
    FramedConnection,
    configure_socket,
    join_address,
    split_address,
)

_MAGIC = b"HOPLINK1"
_NONCE_BYTES = 32
_MAC_BYTES = 32
HANDSHAKE_TIMEOUT_S = 10.0  # to connect and prove, in all


class HostUnreachable(TimeoutError):
    """Nobody's host answered: packets are dropped on the way, or it is gone.
    A process that is busy, or stopped, is not this."""


def connect(
    address: str,
    secret: bytes,
    *,
    timeout_s: float = HANDSHAKE_TIMEOUT_S,
    connect_timeout_s: float = HANDSHAKE_TIMEOUT_S,
    payload_limit: int = MAX_PAYLOAD_BYTES,
) -> FramedConnection:
    """A proven connection to `host:port`. connect_timeout_s: for the host to answer at all. Raises
    Unreachable where it does not, AuthError where the other side knows another secret, else OSError."""
    until = time.monotonic() + timeout_s
    try:
        sock = socket.create_connection(split_address(address), min(timeout_s, connect_timeout_s))
    except TimeoutError as silent:
        raise HostUnreachable(f"nothing answers at {address}") from silent
    try:
        configure_socket(sock)
        mine = os.urandom(_NONCE_BYTES)
        _send(sock, _MAGIC + mine, until)
        answer = _receive(sock, len(_MAGIC) + _NONCE_BYTES + _MAC_BYTES, until)
        theirs, proof = answer[len(_MAGIC) : -_MAC_BYTES], answer[-_MAC_BYTES:]
        if not answer.startswith(_MAGIC) or not hmac.compare_digest(
            proof, _mac(secret, b"server", mine, theirs)
        ):
            raise AuthError(
                f"{address} does not know the secret of this attempt",
                hints=("another program may have taken the port",),
            )
        _send(sock, _mac(secret, b"client", mine, theirs), until)
        sock.settimeout(None)
        return FramedConnection(sock, peer=address, payload_limit=payload_limit)
    except BaseException:
        sock.close()
        raise


def accept(
    sock: socket.socket,
    secret: bytes,
    *,
    timeout_s: float = HANDSHAKE_TIMEOUT_S,
    payload_limit: int = MAX_PAYLOAD_BYTES,
) -> FramedConnection:
    """The server's half, over a socket that was just accepted.
    Raises AuthError, OSError; then the socket is closed."""
    until = time.monotonic() + timeout_s
    try:
        configure_socket(sock)
        host, port = sock.getpeername()[:2]
        hello = _receive(sock, len(_MAGIC) + _NONCE_BYTES, until)
        if not hello.startswith(_MAGIC):
            raise ConnectionBroken(f"the received bytes do not belong to this protocol: {hello[:16]!r}")
        theirs, mine = hello[len(_MAGIC) :], os.urandom(_NONCE_BYTES)
        _send(sock, _MAGIC + mine + _mac(secret, b"server", theirs, mine), until)
        if not hmac.compare_digest(_receive(sock, _MAC_BYTES, until), _mac(secret, b"client", theirs, mine)):
            raise AuthError("the client does not know the secret of this attempt")
        sock.settimeout(None)
        return FramedConnection(sock, peer=join_address(host, port), payload_limit=payload_limit)
    except BaseException:
        sock.close()
        raise


def _mac(secret: bytes, role: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    return hmac.digest(secret, role + client_nonce + server_nonce, "sha256")


def _send(sock: socket.socket, data: bytes, deadline: float) -> None:
    sock.settimeout(max(deadline - time.monotonic(), 0.001))
    sock.sendall(data)


def _receive(sock: socket.socket, size: int, deadline: float) -> bytes:
    """Exactly so many bytes before `deadline`, however slowly they drip in."""
    data = b""
    while len(data) < size:
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        part = sock.recv(size - len(data))
        if not part:
            raise ConnectionBroken("the peer closed the connection before authentication")
        data += part
    return data
