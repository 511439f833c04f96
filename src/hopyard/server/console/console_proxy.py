"""Connects users to the consoles that they have opened: bytes in both directions, kept nowhere."""

from __future__ import annotations

import re
import socket
from asyncio import StreamWriter
from collections import Counter
from contextlib import suppress

from starlette.types import ASGIApp, Receive, Scope, Send

from hopyard.api_client.tcp_relay import relay
from hopyard.domain import console_frames as frames
from hopyard.domain.ids import RUN_ID_PATTERN, RunId
from hopyard.errors import HopyardError, ServerUnavailable, UsageError
from hopyard.server.console.console_access import ConsoleAccess, OpenConsole
from hopyard.server.ports.port_headers import find_header
from hopyard.server.ports.tunnel import TUNNEL_KEY, take_over_stream
from hopyard.server.responses import error_response
from hopyard.server.services import Services

PROTOCOL = b"tcp"  # the value of `Upgrade`
MAX_CONSOLES_PER_RUN = 32
IDLE_S = 24 * 3600.0  # a console without a byte for so long is closed
_HEAD = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: tcp\r\n\r\n"
_PATH = re.compile(rf"/runs/(?P<run>{RUN_ID_PATTERN})/consoles/(?P<ticket>[\w-]{{1,64}})")
_RETRY_AFTER_S = 1
# a client that vanished without a word is noticed after three minutes
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 20), (socket.TCP_KEEPCNT, 6))


class ConsoleProxy:
    """The ASGI application around the API."""

    def __init__(self, api: ASGIApp, services: Services, access: ConsoleAccess) -> None:
        self._api, self._services, self._access = api, services, access
        self._open: Counter[RunId] = Counter()
        self._writers: set[StreamWriter] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        found = _PATH.fullmatch(path) if path.startswith("/runs/") else None
        if found is None:
            await self._api(scope, receive, send)
            return
        try:
            if find_header(scope["headers"], b"upgrade").strip().lower() != PROTOCOL:
                raise UsageError("a console needs the header `Upgrade: tcp`", hints=("use `hop exec`",))
            token = find_header(scope["headers"], b"authorization").decode("latin-1")
            caller = await self._services.tokens.authenticate(token or None)
            console = self._access.use(RunId(found["run"]), found["ticket"], caller)
            await self._connect(scope, console)
        except HopyardError as error:
            response = error_response(error)
            response.headers["Connection"] = "close"  # what follows this request is not HTTP
            await response(scope, receive, send)

    def close(self) -> None:
        """Ends all consoles, because the server ends. The runs continue."""
        for writer in self._writers:
            writer.transport.abort()

    async def _connect(self, scope: Scope, console: OpenConsole) -> None:
        run = console.run
        if self._open[run] >= MAX_CONSOLES_PER_RUN:
            raise ServerUnavailable(
                f"the run has {MAX_CONSOLES_PER_RUN} open consoles already", retry_after_s=_RETRY_AFTER_S
            )
        self._open[run] += 1
        try:
            reader, writer = await self._services.connect_console(console.attempt, console.rank)
            client = take_over_stream(scope["state"][TUNNEL_KEY])
            _keep_alive(client[1])
            own = {client[1], writer}
            self._writers |= own
            try:
                client[1].write(_HEAD)
                writer.write(frames.json_frame(frames.START, console.start))
                with (
                    self._services.connections.connected(run),
                    self._services.token_connections.opened(console.caller, client[1].transport.abort),
                    self._services.token_connections.opened(console.caller, writer.transport.abort),
                ):
                    await relay(client, (reader, writer), idle_s=IDLE_S)
            finally:
                self._writers -= own
                writer.close()
        finally:
            self._open[run] -= 1
            if not self._open[run]:
                del self._open[run]


def _keep_alive(writer: StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is None or sock.family == socket.AF_UNIX:
        return
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
