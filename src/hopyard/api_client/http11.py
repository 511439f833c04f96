"""The part of HTTP/1.1 that a client of the API needs: one connection, one request at a time.

It replaces `http.client`, whose import (with a mail parser) takes a tenth of the time of a short command.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from io import BufferedReader
from typing import cast

_MAX_LINE_BYTES = 64 * 1024
_MAX_HEADERS = 200
_READ_CHUNK_BYTES = 64 * 1024
_SWITCHING_PROTOCOLS = 101


class HttpConnectionError(ConnectionError):
    """The connection ended in the middle of a response, or the response is not HTTP."""


class ServerClosedConnection(HttpConnectionError):
    """The server closed the connection before its response began. The request may be sent again on a new
    connection."""


class Headers(dict[str, str]):
    """Headers of a response; names are case-insensitive."""

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        return super().get(name.lower(), default)

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())


class HttpConnection:
    """A connection to one server. `sock` is None while it is not connected. Errors are OSErrors.

    dial: connects; its argument is the timeout in seconds. authority: the value of the header `Host`.
    """

    def __init__(self, dial: Callable[[float], socket.socket], authority: str, *, timeout: float) -> None:
        self._dial, self._authority, self._timeout = dial, authority, timeout
        self.sock: socket.socket | None = None
        self._file: BufferedReader | None = None
        self.response_incomplete = False  # the last request was not sent completely

    def connect(self) -> None:
        self.sock = self._dial(self._timeout)
        self._file = cast(BufferedReader, self.sock.makefile("rb", _READ_CHUNK_BYTES))

    def detach(self) -> None:
        """Releases the socket without closing it."""
        file, self._file, self.sock = self._file, None, None
        if file is not None:
            file.close()

    def close(self) -> None:
        file, self._file = self._file, None
        sock, self.sock = self.sock, None
        if file is not None:
            file.close()
        if sock is not None:
            sock.close()

    def request(
        self, method: str, target: str, *, body: bytes | Iterable[bytes] | None, headers: Mapping[str, str]
    ) -> None:
        """Sends a request; the parts of an iterable body are sent as it yields them."""
        if self.sock is None:
            self.connect()
        assert self.sock is not None
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._authority}", "Accept-Encoding: identity"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a line break in an address or header")
        try:
            self._send(self.sock, lines, method, body)
            self.response_incomplete = False
        except (BrokenPipeError, ConnectionResetError):
            # the server may have rejected the request before it read all of it: its response has the reason
            self.response_incomplete = True

    def _send(
        self, sock: socket.socket, lines: list[str], method: str, body: bytes | Iterable[bytes] | None
    ) -> None:
        if body is not None and not isinstance(body, bytes):
            sock.sendall(_encode([*lines, "Transfer-Encoding: chunked"]))
            for part in body:
                if part:
                    sock.sendall(b"%x\r\n%b\r\n" % (len(part), part))
            sock.sendall(b"0\r\n\r\n")
            return
        if body or method not in ("GET", "HEAD"):
            lines.append(f"Content-Length: {len(body or b'')}")
        head = _encode(lines)
        if body is None or len(body) < _READ_CHUNK_BYTES:
            sock.sendall(head + (body or b""))
        else:
            sock.sendall(head)
            sock.sendall(body)

    def read_switch(self) -> HttpResponse | None:
        """Returns None when the server has switched the protocol, else its response. Nothing behind the head
        is read."""
        assert self.sock is not None
        file, self._file = self._file, cast(BufferedReader, self.sock.makefile("rb", 0))
        if file is not None:
            file.close()
        _, status, headers = _read_head(self._file)
        if status == _SWITCHING_PROTOCOLS:
            return None
        return HttpResponse(self, self._file, status, headers, close_after=True)

    def getresponse(self) -> HttpResponse:
        """Returns the response to the last request, with its body unread.

        Raises ServerClosedConnection, HttpConnectionError and other OSErrors.
        """
        file = self._file
        if file is None:
            raise ServerClosedConnection("not connected")
        while True:
            version, status, headers = _read_head(file)
            if status >= 200:
                break
        closes = (
            self.response_incomplete
            or version == "HTTP/1.0"
            or (headers.get("Connection") or "").lower() == "close"
        )
        return HttpResponse(self, file, status, headers, close_after=closes)


class HttpResponse:
    """A response whose body is read in parts. The connection can be reused when all of the body is read."""

    def __init__(
        self,
        connection: HttpConnection,
        file: BufferedReader,
        status: int,
        headers: Headers,
        *,
        close_after: bool,
    ) -> None:
        self.status, self.headers = status, headers
        self._connection, self._file, self._close_after = connection, file, close_after
        self._chunked = "chunked" in (headers.get("Transfer-Encoding") or "").lower()
        # of the body, or of the current chunk; None: until the connection ends
        self._remaining_bytes: int | None = 0
        self._first, self._is_finished = True, False
        length = headers.get("Content-Length")
        if self._chunked:
            return
        if status in (204, 304):
            self._finish()
        elif length is None:
            self._remaining_bytes, self._close_after = None, True
        elif not length.isdecimal():
            raise HttpConnectionError(f"the server gave the length {length[:40]!r}")
        else:
            self._remaining_bytes = int(length)
            if not self._remaining_bytes:
                self._finish()

    def isclosed(self) -> bool:
        """Returns whether the whole body was read."""
        return self._is_finished

    def read(self, size: int | None = None) -> bytes:
        """Returns at most `size` bytes, b"" at the end; without `size` the rest of the body."""
        if size is None:
            parts = []
            while part := self.read(1 << 20):
                parts.append(part)
            return b"".join(parts)
        if size <= 0 or not self._read_chunk():
            return b""
        limit = size if self._remaining_bytes is None else min(size, self._remaining_bytes)
        # A body of unknown size may be a live stream, so the available bytes are returned at once.
        data = (
            self._file.read(limit)
            if not self._chunked and self._remaining_bytes is not None
            else self._file.read1(limit)
        )
        self._consume(len(data), limit)
        return data

    def readline(self) -> bytes:
        """Returns the bytes up to and with the next line feed, or to the end of the body."""
        parts: list[bytes] = []
        while self._read_chunk():
            limit = (
                _READ_CHUNK_BYTES
                if self._remaining_bytes is None
                else min(_READ_CHUNK_BYTES, self._remaining_bytes)
            )
            part = self._file.readline(limit)
            self._consume(len(part), limit)
            parts.append(part)
            if part.endswith(b"\n") or not part:
                break
        return b"".join(parts)

    def _read_chunk(self) -> bool:
        """Returns whether there is more to read; begins the next chunk after the end of one."""
        if self._chunked and not self._is_finished and not self._remaining_bytes:
            self._next_chunk()
        return not self._is_finished

    def _consume(self, count: int, requested: int) -> None:
        if self._remaining_bytes is None:
            if not count:
                self._finish()
            return
        if not count and requested:
            raise HttpConnectionError("the server closed the connection in the middle of an answer")
        self._remaining_bytes -= count
        if not self._remaining_bytes and not self._chunked:
            if count < requested:
                raise HttpConnectionError("the server closed the connection in the middle of an answer")
            self._finish()

    def _next_chunk(self) -> None:
        if not self._first:
            _read_line(self._file)  # the line end after a chunk
        self._first = False
        text = _read_line(self._file).partition(b";")[0].strip()
        try:
            self._remaining_bytes = int(text, 16)
        except ValueError as error:
            raise HttpConnectionError("the server's answer is not HTTP") from error
        if not self._remaining_bytes:
            while _read_line(self._file):
                pass
            self._finish()

    def _finish(self) -> None:
        self._is_finished = True
        if self._close_after:
            self._connection.close()


def _encode(lines: list[str]) -> bytes:
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _read_head(file: BufferedReader) -> tuple[str, int, Headers]:
    first = file.readline(_MAX_LINE_BYTES)
    if not first:
        raise ServerClosedConnection("the server closed the connection")
    version, _, rest = first.decode("latin-1").partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not status.isdecimal() or len(status) != 3:
        raise HttpConnectionError("the server's answer is not HTTP")
    headers = Headers()
    for _ in range(_MAX_HEADERS):
        line = _read_line(file)
        if not line:
            return version, int(status), headers
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise HttpConnectionError("the server's answer is not HTTP")
        headers[name.strip().lower()] = value.strip()
    raise HttpConnectionError("the server sent too many headers")


def _read_line(file: BufferedReader) -> bytes:
    """Returns a line without its end. Raises HttpConnectionError for an incomplete or too long line."""
    line = file.readline(_MAX_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise HttpConnectionError("the server closed the connection in the middle of an answer")
    return line.rstrip(b"\r\n")
