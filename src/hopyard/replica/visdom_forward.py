"""Forwards a port of the loopback interface to the Visdom server of the run's user, which may be on any node.

All users of the machine can connect to the port. So its address has a secret path, which each connection must
begin with. The server finds the Visdom server: that of the user now, also after it was started again.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
from typing import TYPE_CHECKING

from hopyard.domain.ids import RunId
from hopyard.domain.launch import ReplicaLaunch
from hopyard.domain.run_port import VISDOM_PATH, VISDOM_PORT
from hopyard.errors import HopyardError
from hopyard.replica.replica_log import log
from hopyard.replica.server_connection import ServerConnection

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

_HOST = "127.0.0.1"
_BACKLOG = 64
_MAX_CONNECTIONS = 32  # of one replica
_HEAD_S = 10.0  # for the first line of a connection
_IDLE_S = 24 * 3600.0  # the server's limit is shorter
_REFUSAL = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def open_visdom_forward(launch: ReplicaLaunch, server: ServerConnection) -> VisdomForward | None:
    """Returns the forwarding for a run, if its user has a Visdom server. A container has a network of its
    own, so it gets none."""
    if not launch.visdom or launch.image:
        return None
    try:
        return VisdomForward(launch.run, server)
    except OSError as error:
        log(f"Visdom is not forwarded: {error}")
        return None


class VisdomForward:
    """address: of Visdom, for the processes of the run. run: its id. Raises OSError without a free port."""

    def __init__(self, run: RunId, server: ServerConnection) -> None:
        self._path, self._server = f"/runs/{run}/ports/{VISDOM_PORT[0]}/", server
        self._prefix = VISDOM_PATH + secrets.token_urlsafe(32)
        self._listener = socket.create_server((_HOST, 0), backlog=_BACKLOG)
        self.address = f"http://{_HOST}:{self._listener.getsockname()[1]}{self._prefix}"
        self._open = 0
        self._last_failure = ""

    def start(self) -> None:
        """Forwards in a thread until the replica ends. Connections before this call wait."""
        threading.Thread(target=self._run, name="visdom", daemon=True).start()

    def _run(self) -> None:
        import asyncio  # late: few runs need it

        async def serve() -> None:
            self._listener.setblocking(False)
            async with await asyncio.start_server(self._accept, sock=self._listener) as server:
                await server.serve_forever()

        asyncio.run(serve())

    async def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        if self._open >= _MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._open += 1
        try:
            await self._forward(reader, writer)
        except (OSError, RuntimeError):  # the process has closed its connection
            writer.transport.abort()
        finally:
            self._open -= 1

    async def _forward(self, reader: StreamReader, writer: StreamWriter) -> None:
        import asyncio

        from hopyard.api_client.tcp_relay import STREAM_BYTES, relay

        try:
            line = await asyncio.wait_for(reader.readuntil(b"\n"), _HEAD_S)
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            line = b""
        if not self._has_secret(line):
            writer.write(_REFUSAL)
            await writer.drain()
            writer.close()
            return
        try:
            sock = await asyncio.to_thread(self._connect)
        except HopyardError as error:
            self._log_failure(error.message)
            writer.transport.abort()
            return
        self._last_failure = ""
        sock.setblocking(False)
        port = await asyncio.open_connection(sock=sock, limit=STREAM_BYTES)
        port[1].write(line)
        await relay((reader, writer), port, idle_s=_IDLE_S)

    def _has_secret(self, line: bytes) -> bool:
        """Returns whether the first line of a request names the secret path, or one below it."""
        words = line.split(b" ")
        target = words[1] if len(words) == 3 else b""
        prefix = self._prefix.encode()
        begin, rest = target[: len(prefix)], target[len(prefix) :]
        return hmac.compare_digest(begin, prefix) and rest[:1] in (b"", b"/", b"?")

    def _connect(self) -> socket.socket:
        try:
            return self._server.client.open_tcp(self._path)
        except HopyardError:
            if not self._server.rediscover():
                raise
            return self._server.client.open_tcp(self._path)

    def _log_failure(self, message: str) -> None:
        if message != self._last_failure:
            self._last_failure = message
            log(f"Visdom is not reached: {message}")
