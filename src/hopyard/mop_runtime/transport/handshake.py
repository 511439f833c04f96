"""Both sides of a new connection prove that they know the secret of the attempt, without sending it.

    client -> server   magic, a nonce
    server -> client   magic, its own nonce, HMAC-SHA256(secret, "server" + both nonces)
    client -> server   HMAC-SHA256(secret, "client" + both nonces)

The roles in the MACs prevent a replay of one side's proof as the other's. The following frames are neither
encrypted nor signed: this rejects clients that can connect, not attackers that can alter packets.
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
HANDSHAKE_TIMEOUT_S = 10.0  # to connect and authenticate, in total


class HostUnreachable(TimeoutError):
    """The host did not answer: packets are dropped, or it is down. A busy or stopped process does not cause
    this."""


def connect(
    address: str,
    secret: bytes,
    *,
    timeout_s: float = HANDSHAKE_TIMEOUT_S,
    connect_timeout_s: float = HANDSHAKE_TIMEOUT_S,
    payload_limit: int = MAX_PAYLOAD_BYTES,
) -> FramedConnection:
    """Opens an authenticated connection to `host:port`. connect_timeout_s: for the host to answer at all.
    Raises HostUnreachable if it does not, AuthError if the other side has another secret, otherwise OSError.
    """
    deadline = time.monotonic() + timeout_s
    try:
        sock = socket.create_connection(split_address(address), min(timeout_s, connect_timeout_s))
    except TimeoutError as error:
        raise HostUnreachable(f"nothing answers at {address}") from error
    try:
        configure_socket(sock)
        own_nonce = os.urandom(_NONCE_BYTES)
        _send(sock, _MAGIC + own_nonce, deadline)
        answer = _receive(sock, len(_MAGIC) + _NONCE_BYTES + _MAC_BYTES, deadline)
        peer_nonce, proof = answer[len(_MAGIC) : -_MAC_BYTES], answer[-_MAC_BYTES:]
        if not answer.startswith(_MAGIC) or not hmac.compare_digest(
            proof, _mac(secret, b"server", own_nonce, peer_nonce)
        ):
            raise AuthError(
                f"{address} does not know the secret of this attempt",
                hints=("another program may have taken the port",),
            )
        _send(sock, _mac(secret, b"client", own_nonce, peer_nonce), deadline)
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
    """The server's half, for a socket that was just accepted. Raises AuthError, OSError; then the socket is
    closed."""
    deadline = time.monotonic() + timeout_s
    try:
        configure_socket(sock)
        host, port = sock.getpeername()[:2]
        hello = _receive(sock, len(_MAGIC) + _NONCE_BYTES, deadline)
        if not hello.startswith(_MAGIC):
            raise ConnectionBroken(f"the received bytes do not belong to this protocol: {hello[:16]!r}")
        peer_nonce, own_nonce = hello[len(_MAGIC) :], os.urandom(_NONCE_BYTES)
        _send(sock, _MAGIC + own_nonce + _mac(secret, b"server", peer_nonce, own_nonce), deadline)
        if not hmac.compare_digest(
            _receive(sock, _MAC_BYTES, deadline), _mac(secret, b"client", peer_nonce, own_nonce)
        ):
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
    """Returns exactly this many bytes before `deadline`, however slowly they arrive."""
    data = b""
    while len(data) < size:
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        part = sock.recv(size - len(data))
        if not part:
            raise ConnectionBroken("the peer closed the connection before authentication")
        data += part
    return data
