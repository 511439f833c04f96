"""Bytes in both directions between a client and a port of a run, after a switch of protocols."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamReaderProtocol, StreamWriter
from collections.abc import Callable
from typing import Protocol

from hopyard.api_client.tcp_relay import STREAM_BYTES

TUNNEL_KEY = "tunnel"  # in the state of a request: the `ClientTunnel` of its connection
TRAILERS_KEY = "trailers"  # in the state of a request, once its body is complete
STREAM_KEY = "streams"  # in the state of a request to a port, once the rights of its client are known


class ClientTunnel(Protocol):
    """The connection of a client, which a response may take over or end."""

    def take_over(self) -> tuple[asyncio.Transport, bytes]:
        """Returns the transport, and the bytes that the client sent behind its request."""
        ...

    def end_tunnel(self) -> None:
        """Is called once, when a transport that was taken over is closed."""
        ...

    def call_when_half_closed(self, callback: Callable[[], None], /) -> None:
        """Calls the function when the client has shut down its side of the connection, or at once."""
        ...

    def cut_response(self) -> None:
        """Closes the connection within a response, which then looks incomplete to the client."""
        ...


class _TunnelProtocol(StreamReaderProtocol):
    """Reads the connection of a client, and reports its end."""

    def __init__(self, reader: StreamReader, on_end: Callable[[], None]) -> None:
        super().__init__(reader)
        self._on_end = on_end

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._on_end()


def take_over_stream(client: ClientTunnel) -> tuple[StreamReader, StreamWriter]:
    """Returns the stream of a client, as its connection switches to another protocol."""
    loop = asyncio.get_running_loop()
    transport, rest = client.take_over()
    reader = StreamReader(limit=STREAM_BYTES, loop=loop)
    protocol = _TunnelProtocol(reader, client.end_tunnel)
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    if rest:
        reader.feed_data(rest)
    if transport.is_closing():
        reader.feed_eof()
    else:
        transport.resume_reading()
    return reader, StreamWriter(transport, protocol, reader, loop)
