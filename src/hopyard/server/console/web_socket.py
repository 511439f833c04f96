"""A WebSocket of a browser as a stream of bytes: the payloads of its binary messages, one after another."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections import deque
from contextlib import suppress

from starlette.types import Scope
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import ProtocolError, RemoteProtocolError

from hopyard.errors import UsageError


class WebSocket:
    """The server's end of a WebSocket. Its methods are those of `StreamReader` and `StreamWriter` that a
    relay uses."""

    def __init__(self, connection: WSConnection, reader: StreamReader, writer: StreamWriter) -> None:
        self._connection, self._reader, self._writer = connection, reader, writer
        self._payloads: deque[bytes] = deque()
        self._is_ended = False

    @property
    def transport(self) -> asyncio.WriteTransport:
        return self._writer.transport

    async def read(self, n: int, /) -> bytes:
        """Returns the next payload, of at most the `n` bytes that are read at once; b"" at the end. Replies
        to pings meanwhile. Raises OSError when the connection breaks."""
        while not self._payloads:
            if self._is_ended:
                return b""
            data = await self._reader.read(n)
            try:
                self._connection.receive_data(data or None)
                for event in self._connection.events():
                    self._handle(event)
            except RemoteProtocolError as error:
                hint = error.event_hint
                self._end(hint.code if isinstance(hint, CloseConnection) else CloseReason.PROTOCOL_ERROR)
                self._is_ended = True
            await self._writer.drain()
        return self._payloads.popleft()

    def write(self, data: bytes, /) -> None:
        """Sends a binary message. Raises OSError once the browser has closed the WebSocket."""
        try:
            self._writer.write(self._connection.send(BytesMessage(data)))
        except ProtocolError as error:
            raise ConnectionResetError("the WebSocket is closed") from error

    async def drain(self) -> None:
        await self._writer.drain()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Says that nothing more is sent. The browser then closes the WebSocket."""
        self._end(CloseReason.NORMAL_CLOSURE)

    def close(self) -> None:
        self._end(CloseReason.GOING_AWAY)
        self._writer.close()

    def _handle(self, event: Event) -> None:
        if isinstance(event, BytesMessage):
            if event.data:
                self._payloads.append(bytes(event.data))
        elif isinstance(event, Ping):
            self._writer.write(self._connection.send(event.response()))
        elif isinstance(event, CloseConnection):
            self._is_ended = True
            if self._connection.state is ConnectionState.REMOTE_CLOSING:
                self._writer.write(self._connection.send(event.response()))
        elif isinstance(event, TextMessage):
            self._end(CloseReason.UNSUPPORTED_DATA)
            self._is_ended = True

    def _end(self, code: int) -> None:
        if self._connection.state is ConnectionState.OPEN and not self._writer.is_closing():
            with suppress(ProtocolError, OSError, RuntimeError):
                self._writer.write(self._connection.send(CloseConnection(code)))


def open_web_socket(scope: Scope) -> tuple[WSConnection, bytes]:
    """Returns the connection for a request to switch to a WebSocket, and the response that accepts it.
    Raises UsageError for a request that is none of RFC 6455."""
    connection = WSConnection(ConnectionType.SERVER)
    try:
        connection.initiate_upgrade_connection(list(scope["headers"]), scope["path"])
        next(connection.events())
        return connection, connection.send(AcceptConnection())
    except ProtocolError as error:
        raise UsageError(
            f"the request is no valid request for a WebSocket: {error}", hints=("use `hop exec`",)
        ) from error
