"""One authenticated connection and its frames: each is a JSON object with an optional binary payload.

    4 bytes  length of the head     (big-endian)
    8 bytes  length of the payload
    head     a JSON object in UTF-8; NaN and infinities as Python's `json` writes them
    payload  raw

Lengths are checked before memory is allocated. An invalid frame ends the connection, because the rest could
not be parsed.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

BytesLike: TypeAlias = bytes | bytearray | memoryview
T = TypeVar("T")

_FRAME_HEADER = struct.Struct("!IQ")
MAX_HEAD_BYTES = 8 << 20  # the longest head
MAX_PAYLOAD_BYTES = 1 << 40  # the default limit of a payload
_CHUNK_BYTES = 4 << 20  # bytes of a payload per system call
_READ_BYTES = 16 << 10  # bytes read at once for a head: most frames are much shorter
_SEND_TIMEOUT_S = 30  # after this time without progress the peer counts as not reading


class ConnectionBroken(ConnectionError):
    """The connection ended, or the received bytes are not a frame."""


class FramedConnection:
    """A connected socket whose peer has proven the secret. Any thread may send; only one at a time may
    receive.

    received_at: `time.monotonic()` of the last received bytes.
    """

    def __init__(
        self, sock: socket.socket, *, peer: str = "", payload_limit: int = MAX_PAYLOAD_BYTES
    ) -> None:
        self.peer = peer
        self.received_at = time.monotonic()
        self._sock = sock
        self._payload_limit = payload_limit
        self._send_lock = threading.Lock()
        self._buffered = bytearray()  # received, not consumed yet
        self._closed = False
        configure_socket(sock)

    @property
    def local_host(self) -> str:
        """The address under which the peer reaches this host."""
        return str(self._sock.getsockname()[0])

    def send(self, head: Mapping[str, Any], *payload: BytesLike) -> None:
        """Sends one frame. Raises OSError (ConnectionBroken and others) if the connection is closed or the
        peer does not read."""
        views = [memoryview(part).cast("B") for part in payload if len(part)]
        self._send(_frame(head, sum(map(len, views))), *views)

    def send_heads(self, heads: Iterable[Mapping[str, Any]]) -> None:
        """Sends frames without payloads in one piece, so that the peer wakes up once for all of them. Raises
        as `send`."""
        self._send(b"".join(map(_frame, heads)))

    def _send(self, *chunks: BytesLike) -> None:
        with self._send_lock:
            if self._closed:
                raise ConnectionBroken("the connection is closed")
            try:
                for part in chunks:
                    self._send_all(memoryview(part))
            except OSError:
                self.close()  # a part of a frame may have been sent, so no other can follow
                raise

    def _send_all(self, view: memoryview) -> None:
        while view:
            try:
                view = view[self._sock.send(view[:_CHUNK_BYTES]) :]
            except BlockingIOError as error:
                raise ConnectionBroken(f"the peer read nothing for {_SEND_TIMEOUT_S} s") from error

    def set_receive_timeout(self, seconds: float) -> None:
        """Sets the time after which receiving raises ConnectionBroken if no bytes arrive."""
        whole_seconds = int(seconds)
        self._sock.setsockopt(
            socket.SOL_SOCKET,
            socket.SO_RCVTIMEO,
            struct.pack("@ll", whole_seconds, int((seconds - whole_seconds) * 1e6)),
        )

    def set_payload_limit(self, size: int) -> None:
        """Sets the limit for payloads received from now on."""
        self._payload_limit = size

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Returns the next frame with its payload. Waits without a limit. Raises ConnectionBroken at the end
        of the connection."""
        head, size = self.receive_head()
        payload = bytearray(size)
        self.receive_into(memoryview(payload))
        return head, bytes(payload)

    def receive_head(self) -> tuple[dict[str, Any], int]:
        """Returns the next frame's head and the length of its payload, which must be received next."""
        self._has_buffered(_FRAME_HEADER.size)
        head_size, payload_size = _FRAME_HEADER.unpack_from(self._buffered)
        if head_size > MAX_HEAD_BYTES or payload_size > self._payload_limit:
            raise ConnectionBroken(
                f"a frame of {head_size} + {payload_size} bytes came; at most {MAX_HEAD_BYTES} + "
                f"{self._payload_limit} are taken"
            )
        end = _FRAME_HEADER.size + head_size
        self._has_buffered(end)
        text = bytes(self._buffered[_FRAME_HEADER.size : end])
        del self._buffered[:end]
        return decode_head(text), payload_size

    def _has_buffered(self, size: int) -> None:
        """Waits until this many unconsumed bytes are buffered. Reads more at once to save system calls."""
        while len(self._buffered) < size:
            self._buffered += self._receive_data(lambda: self._sock.recv(_READ_BYTES))

    def receive_into(self, view: memoryview) -> None:
        """Fills `view` from any number of pieces."""
        buffered_bytes = min(len(view), len(self._buffered))
        view[:buffered_bytes] = self._buffered[:buffered_bytes]
        del self._buffered[:buffered_bytes]
        view = view[buffered_bytes:]
        while view:
            view = view[self._receive_data(partial(self._sock.recv_into, view)) :]

    def _receive_data(self, receive: Callable[[], T]) -> T:
        """Returns the result of `receive`, which is empty only at the end of the connection."""
        try:
            received = receive()
        except BlockingIOError as error:
            raise ConnectionBroken("timed out waiting for a message") from error
        except OSError as error:
            raise ConnectionBroken(f"the connection broke: {error}") from error
        if not received:
            raise ConnectionBroken("the peer closed the connection")
        self.received_at = time.monotonic()
        return received

    def close(self) -> None:
        """Closes the connection and wakes a receiving thread."""
        self._closed = True
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # already disconnected
        self._sock.close()


def configure_socket(sock: socket.socket) -> None:
    """Sends small frames at once. Detects a peer that does not read, or a lost host, within half a minute."""
    # `settimeout` would apply to both directions
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", _SEND_TIMEOUT_S, 0))
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", 30_000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


# `json.dumps` would create an encoder for each frame
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _frame(head: Mapping[str, Any], payload_size: int = 0) -> bytes:
    text = encode_head(head)
    return _FRAME_HEADER.pack(len(text), payload_size) + text


def encode_head(head: Mapping[str, Any]) -> bytes:
    """Raises ValueError if it is too long, TypeError if it is not JSON."""
    text = _encode(head).encode("utf-8", "surrogatepass")
    if len(text) > MAX_HEAD_BYTES:
        raise ValueError(f"a head of {len(text)} bytes; at most {MAX_HEAD_BYTES} can be sent")
    return text


def decode_head(text: bytes) -> dict[str, Any]:
    try:
        head = json.loads(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise ConnectionBroken(f"the received head is not JSON: {text[:40]!r}") from error
    if not isinstance(head, dict):
        raise ConnectionBroken(f"the received head is not a JSON object: {text[:40]!r}")
    return head


def split_address(address: str) -> tuple[str, int]:
    """Splits `host:port`; an IPv6 host is in brackets. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"`{address[:80]}` is not an address; expected host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
