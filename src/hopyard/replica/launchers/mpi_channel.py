"""A connection between two replicas of an MPI gang. Both prove that they know the secret of the gang."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
import threading
from typing import Any

HANDSHAKE_TIMEOUT_S = 60.0
_HEAD = struct.Struct("!cI")
_NONCE_BYTES = 32
_MAX_FRAME_BYTES = 16 * 1024 * 1024


class ChannelRefused(Exception):
    """The other side does not know the secret of the gang."""


class Channel:
    """Frames of one letter and some bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._lock = threading.Lock()  # two threads may send

    def send(self, kind: bytes, data: bytes = b"") -> None:
        with self._lock:
            self.socket.sendall(_HEAD.pack(kind, len(data)) + data)

    def receive(self) -> tuple[bytes, bytes]:
        """Returns the next frame; two empty texts at the end of the connection."""
        head = self._read(_HEAD.size)
        if len(head) < _HEAD.size:
            return b"", b""
        kind, size = _HEAD.unpack(head)
        if size > _MAX_FRAME_BYTES:
            raise ChannelRefused("the frame is too large")
        data = self._read(size)
        return (kind, data) if len(data) == size else (b"", b"")

    def close(self) -> None:
        self.socket.close()

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                part = self.socket.recv(min(size - len(data), 1 << 16))
            except ConnectionError:
                return data
            if not part:
                return data
            data += part
        return data


def connect(address: str, port: int, secret: str, request: dict[str, Any]) -> Channel:
    """Connects to the agent of a replica with a request. Raises OSError, ChannelRefused."""
    channel = Channel(socket.create_connection((address, port), HANDSHAKE_TIMEOUT_S))
    try:
        own = os.urandom(_NONCE_BYTES)
        channel.send(b"n", own)
        _, answer = channel.receive()
        other, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
        if not hmac.compare_digest(proof, _proof(secret, b"agent", own, other)):
            raise ChannelRefused(f"the program at {address}:{port} is no replica of this gang")
        text = json.dumps(request).encode()
        channel.send(b"q", _proof(secret, b"client", own, other, text) + text)
        channel.socket.settimeout(None)
        channel.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return channel
    except BaseException:
        channel.close()
        raise


def accept(connection: socket.socket, secret: str) -> tuple[Channel, dict[str, Any]]:
    """Returns the channel and the request of a client. Raises OSError, ChannelRefused."""
    channel = Channel(connection)
    connection.settimeout(HANDSHAKE_TIMEOUT_S)
    _, other = channel.receive()
    own = os.urandom(_NONCE_BYTES)
    if len(other) != _NONCE_BYTES:
        raise ChannelRefused("a client sent no nonce")
    channel.send(b"n", own + _proof(secret, b"agent", other, own))
    _, answer = channel.receive()
    size = hashlib.sha256().digest_size
    proof, text = answer[:size], answer[size:]
    if not hmac.compare_digest(proof, _proof(secret, b"client", other, own, text)):
        raise ChannelRefused("a client does not know the secret of the gang")
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return channel, json.loads(text)


def _proof(secret: str, *parts: bytes) -> bytes:
    return hmac.new(secret.encode(), b"\0".join(parts), hashlib.sha256).digest()
