"""One connection from the server to a port of a run: sends a request, and parses the response as it comes."""

from __future__ import annotations

from asyncio import StreamReader, StreamWriter
from collections import deque

import httptools

from hopyard.errors import PortUnreachable

_READ_BYTES = 64 * 1024
_MAX_HEAD_BYTES = 256 * 1024
_SWITCHING, _FIRST_FINAL = 101, 200


class PortUpstream:
    """A connection to the script. Its response is read with `read_head`, then with `read_body`. What the
    script sends behind its response is ignored, and so are the trailers of a body: no request announces that
    its client accepts them.

    is_head: whether the request is HEAD. may_switch: whether it requests to switch the protocol.
    status, headers: of the response, after `read_head`. rest: after a switch of protocols, the bytes that
    follow the head. has_length: whether the end of the body is marked; otherwise the end of the connection
    is the end of the body.
    """

    def __init__(
        self, reader: StreamReader, writer: StreamWriter, *, is_head: bool, may_switch: bool
    ) -> None:
        self.reader, self.writer = reader, writer
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.rest = b""
        self.has_length = False
        self._coding = b""  # of the body of the response, for its transfer
        self._is_head_request, self._may_switch = is_head, may_switch
        self._parser = httptools.HttpResponseParser(self)
        self._parts: deque[bytes] = deque()
        self._has_head = self._is_complete = False

    @property
    def switches_protocol(self) -> bool:
        """Whether the response switches to the protocol that the client requested."""
        return self.status == _SWITCHING

    async def read_head(self) -> None:
        """Reads until the head of the response is complete. Raises PortUnreachable if the script closes the
        connection before, or its response is not HTTP."""
        received = 0
        while not self._has_head:
            data = await self.reader.read(_READ_BYTES)
            received += len(data)
            if not data or received > _MAX_HEAD_BYTES + _READ_BYTES:
                raise PortUnreachable(
                    "the script closed the connection without a response",
                    hints=("see its output with `hop logs`",),
                )
            self._feed(data)
        if self._coding not in (b"", b"chunked"):  # its removal would leave an unreadable body
            coding = self._coding[:80].decode("latin-1")
            raise PortUnreachable(
                f"the response of the script has the transfer coding `{coding}`, "
                "which the request did not accept",
                hints=("let the script send `Content-Encoding`",),
            )
        if self.switches_protocol and not self._may_switch:
            raise PortUnreachable(
                "the script switched the protocol, which the request did not ask for",
                hints=("reach other protocols with `hop port`",),
            )

    async def read_body(self) -> bytes:
        """Returns the next part of the body; nothing at its end. Raises PortUnreachable if the connection
        ended too early."""
        while not self._parts:
            if self._is_complete or self._is_head_request or self.status in (204, 304):
                return b""
            data = await self.reader.read(_READ_BYTES)
            if not data:
                if self.has_length:
                    raise PortUnreachable("the script closed the connection within its response")
                return b""
            self._feed(data)
        return self._parts.popleft()

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self.rest = data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            if self._is_complete:
                return  # of bytes behind the response
            raise PortUnreachable(
                "the response of the script is not HTTP",
                hints=("reach other protocols with `hop port`",),
            ) from error

    # -- callbacks of the parser -----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if not self._has_head:
            self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._has_head:
            return  # of another response behind this one
        status = self._parser.get_status_code()
        if status < _FIRST_FINAL and status != _SWITCHING:
            return  # an interim response, such as 103; another one follows
        self.status, self._has_head = status, True
        codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        self._coding = b", ".join(codings)
        self.has_length = bool(codings) or any(name == b"content-length" for name, _ in self.headers)

    def on_body(self, body: bytes) -> None:
        if not self._is_complete:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        self._is_complete = self._has_head
