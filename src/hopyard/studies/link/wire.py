"""One proven connection, and the frames on it: a JSON object each, and raw bytes with it where there are any.

    4 bytes  length of the head     (big-endian)
    8 bytes  length of the payload
    head     a JSON object in UTF-8; NaN and infinities as Python's `json` writes them
    payload  raw

Lengths are checked before anything is read or kept. What is no frame ends the connection: after it nothing could be understood.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

_LENGTHS = struct.Struct("!IQ")
HEAD_BYTES = 8 << 20  # the longest head
PAYLOAD_BYTES = 1 << 40  # the longest payload, where a connection does not say less
_PART_BYTES = 4 << 20  # of a payload are given to the system at a time
_SEND_S = 30  # nothing could be sent for so long: the other side no longer reads


class Broken(ConnectionError):
    """The connection ended, or what came over it is no frame."""


class Wire:
    """A connected socket whose other side has proven the secret. Any thread may send, one at a time receives.

    heard_at: `time.monotonic()` when bytes last came.
    """

    def __init__(self, sock: socket.socket, *, peer: str = "", payload_limit: int = PAYLOAD_BYTES) -> None:
        self.peer = peer
        self.heard_at = time.monotonic()
        self._sock = sock
        self._payload_limit = payload_limit
        self._sending = threading.Lock()
        self._closed = False
        prepare(sock)

    @property
    def local_host(self) -> str:
        """The address of this host as the other side reaches it."""
        return str(self._sock.getsockname()[0])

    def send(self, head: Mapping[str, Any], *payload: Buffer) -> None:
        """One frame, whole. Raises OSError (Broken and others) where the connection is gone or the other side does not read."""
        text = encode_head(head)
        views = [memoryview(part).cast("B") for part in payload if len(part)]
        parts: list[Buffer] = [_LENGTHS.pack(len(text), sum(map(len, views))) + text, *views]
        with self._sending:
            if self._closed:
                raise Broken("the connection is closed")
            try:
                for part in parts:
                    self._send_all(memoryview(part))
            except OSError:
                self.close()  # a part of a frame may be out: nothing can follow it
                raise

    def _send_all(self, view: memoryview) -> None:
        while view:
            try:
                view = view[self._sock.send(view[:_PART_BYTES]) :]
            except BlockingIOError as stuck:
                raise Broken(f"the other side read nothing for {_SEND_S} s") from stuck

    def limit_silence(self, seconds: float) -> None:
        """From now on, receiving raises Broken where nothing comes for so long."""
        whole = int(seconds)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", whole, int((seconds - whole) * 1e6)))

    def limit_payload(self, size: int) -> None:
        """From now on, of what is received."""
        self._payload_limit = size

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """The next frame, with its payload. Waits as long as it takes. Raises Broken at the end of the connection."""
        head, size = self.receive_head()
        payload = bytearray(size)
        self.receive_into(memoryview(payload))
        return head, bytes(payload)

    def receive_head(self) -> tuple[dict[str, Any], int]:
        """The next frame's head, and the length of its payload, which must be received next."""
        lengths = bytearray(_LENGTHS.size)
        self.receive_into(memoryview(lengths))
        head_size, payload_size = _LENGTHS.unpack(lengths)
        if head_size > HEAD_BYTES or payload_size > self._payload_limit:
            raise Broken(
                f"a frame of {head_size} + {payload_size} bytes came; at most {HEAD_BYTES} + {self._payload_limit} are taken"
            )
        text = bytearray(head_size)
        self.receive_into(memoryview(text))
        return decode_head(bytes(text)), payload_size

    def receive_into(self, view: memoryview) -> None:
        """Fill `view`, whatever pieces it comes in."""
        while view:
            try:
                got = self._sock.recv_into(view)
            except BlockingIOError as silent:
                raise Broken("nothing came for too long") from silent
            except OSError as lost:
                raise Broken(f"the connection broke: {lost}") from lost
            if not got:
                raise Broken("the other side closed the connection")
            self.heard_at = time.monotonic()
            view = view[got:]

    def close(self) -> None:
        """Also wakes whoever is receiving."""
        self._closed = True
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it was not connected any more
        self._sock.close()


def prepare(sock: socket.socket) -> None:
    """Small frames leave at once; who does not read, and a host that is gone without a word, are noticed within half a minute."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", _SEND_S, 0))  # `settimeout` is for both directions
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def encode_head(head: Mapping[str, Any]) -> bytes:
    """Raises ValueError where it is too long, TypeError where it is no JSON."""
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if len(text) > HEAD_BYTES:
        raise ValueError(f"a head of {len(text)} bytes; at most {HEAD_BYTES} can be sent")
    return text


def decode_head(text: bytes) -> dict[str, Any]:
    try:
        head = json.loads(text.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as bad:
        raise Broken(f"a head came that is no JSON: {text[:40]!r}") from bad
    if not isinstance(head, dict):
        raise Broken(f"a head came that is no JSON object: {text[:40]!r}")
    return head


def split_address(address: str) -> tuple[str, int]:
    """`host:port`, an IPv6 host in brackets. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"`{address[:80]}` is no address; one is written host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
