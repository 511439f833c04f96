"""Forwards a port of this machine to a port of a run: each connection is one more to the server."""

from __future__ import annotations

import asyncio
import socket
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable

from hopyard.api_client.client import Client
from hopyard.api_client.tcp_relay import STREAM_BYTES, relay
from hopyard.errors import Conflict, HopyardError, ServerUnavailable, UsageError

LOCAL_HOST = "127.0.0.1"
IDLE_S = 24 * 3600.0  # the server's limit is shorter
_RETRY_S = 60.0  # a connection waits so long for a server that restarts
_RETRY_INTERVAL_S = 0.5


def listen_locally(port: int, *, is_required: bool) -> socket.socket:
    """Returns a socket that listens on this port of the loopback interface; on a free one if the port is
    taken and not required. Raises UsageError."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            sock.bind((LOCAL_HOST, port))
        except OSError:
            if is_required:
                raise
            sock.bind((LOCAL_HOST, 0))
        sock.listen()
    except OSError as error:
        sock.close()
        raise UsageError(
            f"--local: port {port} of this machine cannot be used: {error.strerror}",
            hints=("give a free port with `--local`",),
        ) from error
    return sock


class PortForward:
    """Forwards connections until it is cancelled or the run has ended.

    client: of the server. path: `path` of `OpenPortOut`. notify: shows a message to the user.
    """

    def __init__(self, client: Client, path: str, *, notify: Callable[[str], None]) -> None:
        self._client, self._path, self._notify = client, path, notify
        self._last_message = ""
        self._end: asyncio.Future[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def run(self, listener: socket.socket) -> None:
        """Serves the socket. Raises the error of the server once the port can no longer be opened, because
        the run has ended or the caller lost the right."""
        self._end = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(self._accept, sock=listener, limit=STREAM_BYTES)
        async with server:
            try:
                await self._end
            finally:  # the server waits for its connections
                for connection in self._connections:
                    connection.cancel()
                await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        connection = asyncio.create_task(self._forward(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _forward(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            sock = await self._connect()
            sock.setblocking(False)
            port = await asyncio.open_connection(sock=sock, limit=STREAM_BYTES)
        except HopyardError as error:
            writer.transport.abort()
            self._show(error)
            return
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        self._last_message = ""
        await relay((reader, writer), port, idle_s=IDLE_S)

    async def _connect(self) -> socket.socket:
        """Connects through the server. Waits for a server that restarts, and not in a thread: Ctrl-C would
        wait for it, too."""
        give_up_at = time.monotonic() + _RETRY_S
        while True:
            try:
                return await asyncio.to_thread(self._client.open_tcp, self._path)
            except ServerUnavailable:
                if time.monotonic() > give_up_at:
                    raise
            await asyncio.sleep(_RETRY_INTERVAL_S)

    def _show(self, error: HopyardError) -> None:
        """Shows an error once, until a connection succeeds again. An error that stays ends the forwarding."""
        if isinstance(error, (Conflict, UsageError)):
            assert self._end is not None
            if not self._end.done():
                self._end.set_exception(error)
        elif error.message != self._last_message:
            self._last_message = error.message
            self._notify(error.message)
