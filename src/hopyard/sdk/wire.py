"""HTTP/1.1 as far as a client of our API needs it: one connection, one request at a time.

In place of `http.client`, whose import alone (mail parser and all) takes a tenth of what a short command
takes.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from io import BufferedReader
from typing import cast

_LINE_BYTES = 64 * 1024
_HEADERS = 200
_READ_BYTES = 64 * 1024


class Broken(ConnectionError):
    """The connection ended in the middle of something, or what came over is not HTTP."""


class Gone(Broken):
    """The server had closed the connection before it answered at all: the request may be sent again on a new
    one."""


class Headers(dict[str, str]):
    """Names in any case."""

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        return super().get(name.lower(), default)

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.lower())


class Connection:
    """To one server. `sock` is None while it is not connected. Errors are OSErrors.

    dial: connects, within so many seconds. authority: what the header `Host` says.
    """

    def __init__(self, dial: Callable[[float], socket.socket], authority: str, *, timeout: float) -> None:
        self._dial, self._authority, self._timeout = dial, authority, timeout
        self.sock: socket.socket | None = None
        self._file: BufferedReader | None = None
        self.cut_short = False  # the last request was not sent whole

    def connect(self) -> None:
        self.sock = self._dial(self._timeout)
        self._file = cast(BufferedReader, self.sock.makefile("rb", _READ_BYTES))

    def let_go(self) -> None:
        """Forget the socket without closing it."""
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
        """Send a request; parts of an iterable body are sent as they come."""
        if self.sock is None:
            self.connect()
        assert self.sock is not None
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._authority}", "Accept-Encoding: identity"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if any("\r" in line or "\n" in line for line in lines):
            raise ValueError("a line break in an address or header")
        try:
            self._send(self.sock, lines, method, body)
            self.cut_short = False
        except (BrokenPipeError, ConnectionResetError):
            # the server may have refused before it had read everything: its answer says why
            self.cut_short = True

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
        if body is None or len(body) < _READ_BYTES:
            sock.sendall(head + (body or b""))
        else:
            sock.sendall(head)
            sock.sendall(body)

    def getresponse(self) -> Answer:
        """The answer to the request that was sent last, its body unread.
        Raises Gone, Broken and other OSErrors."""
        file = self._file
        if file is None:
            raise Gone("not connected")
        while True:
            version, status, headers = _read_head(file)
            if status >= 200:
                break
        closes = (
            self.cut_short or version == "HTTP/1.0" or (headers.get("Connection") or "").lower() == "close"
        )
        return Answer(self, file, status, headers, closes=closes)


class Answer:
    """An answer whose body is read bit by bit. Once all of it is read the connection can be used again."""

    def __init__(
        self, connection: Connection, file: BufferedReader, status: int, headers: Headers, *, closes: bool
    ) -> None:
        self.status, self.headers = status, headers
        self._connection, self._file, self._closes = connection, file, closes
        self._chunked = "chunked" in (headers.get("Transfer-Encoding") or "").lower()
        # bytes of the body, or of the current chunk; None: until the connection ends
        self._left: int | None = 0
        self._first, self._ended = True, False
        length = headers.get("Content-Length")
        if self._chunked:
            return
        if status in (204, 304):
            self._end()
        elif length is None:
            self._left, self._closes = None, True
        elif not length.isdecimal():
            raise Broken(f"the server gave the length {length[:40]!r}")
        else:
            self._left = int(length)
            if not self._left:
                self._end()

    def isclosed(self) -> bool:
        """Whether everything was read."""
        return self._ended

    def read(self, size: int | None = None) -> bytes:
        """At most `size` bytes, empty at the end; everything that is left without `size`."""
        if size is None:
            parts = []
            while part := self.read(1 << 20):
                parts.append(part)
            return b"".join(parts)
        if size <= 0 or not self._more():
            return b""
        wanted = size if self._left is None else min(size, self._left)
        # Of a body without a known size whatever is there comes at once: it may be a live stream.
        data = (
            self._file.read(wanted)
            if not self._chunked and self._left is not None
            else self._file.read1(wanted)
        )
        self._took(len(data), wanted)
        return data

    def readline(self) -> bytes:
        """Up to the next line feed, with it; what is left at the end."""
        parts: list[bytes] = []
        while self._more():
            limit = _READ_BYTES if self._left is None else min(_READ_BYTES, self._left)
            part = self._file.readline(limit)
            self._took(len(part), limit)
            parts.append(part)
            if part.endswith(b"\n") or not part:
                break
        return b"".join(parts)

    def _more(self) -> bool:
        """Whether there is more to read; goes on to the next chunk where one is over."""
        if self._chunked and not self._ended and not self._left:
            self._next_chunk()
        return not self._ended

    def _took(self, got: int, wanted: int) -> None:
        if self._left is None:
            if not got:
                self._end()
            return
        if not got and wanted:
            raise Broken("the server broke off in the middle of an answer")
        self._left -= got
        if not self._left and not self._chunked:
            if got < wanted:
                raise Broken("the server broke off in the middle of an answer")
            self._end()

    def _next_chunk(self) -> None:
        if not self._first:
            _read_line(self._file)  # the end of the line after a chunk
        self._first = False
        text = _read_line(self._file).partition(b";")[0].strip()
        try:
            self._left = int(text, 16)
        except ValueError as bad:
            raise Broken("the server sent something that is not HTTP") from bad
        if not self._left:
            while _read_line(self._file):
                pass
            self._end()

    def _end(self) -> None:
        self._ended = True
        if self._closes:
            self._connection.close()


def _encode(lines: list[str]) -> bytes:
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _read_head(file: BufferedReader) -> tuple[str, int, Headers]:
    first = file.readline(_LINE_BYTES)
    if not first:
        raise Gone("the server closed the connection")
    version, _, rest = first.decode("latin-1").partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not status.isdecimal() or len(status) != 3:
        raise Broken("the server sent something that is not HTTP")
    headers = Headers()
    for _ in range(_HEADERS):
        line = _read_line(file)
        if not line:
            return version, int(status), headers
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise Broken("the server sent something that is not HTTP")
        headers[name.strip().lower()] = value.strip()
    raise Broken("the server sent too many headers")


def _read_line(file: BufferedReader) -> bytes:
    """A line without its end. Raises Broken where the connection ends within, or the line does not end."""
    line = file.readline(_LINE_BYTES)
    if not line.endswith(b"\n"):
        raise Broken("the server broke off in the middle of an answer")
    return line.rstrip(b"\r\n")
