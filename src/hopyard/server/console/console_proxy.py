"""Connects users to the consoles that they have opened: bytes in both directions, kept nowhere.

A terminal switches its connection to plain TCP, a browser to a WebSocket. Both carry the same messages.
"""

from __future__ import annotations

import re
import socket
from asyncio import StreamWriter
from collections import Counter
from contextlib import suppress

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from hopyard.api_client.tcp_relay import Stream, relay
from hopyard.domain import console_frames as frames
from hopyard.domain.ids import RUN_ID_PATTERN, RunId
from hopyard.errors import Forbidden, HopyardError, ServerUnavailable, UsageError
from hopyard.server.console.console_access import ConsoleAccess, OpenConsole
from hopyard.server.ports.port_headers import find_header
from hopyard.server.ports.tunnel import TUNNEL_KEY, take_over_stream
from hopyard.server.responses import error_response
from hopyard.server.services import Services
from hopyard.server.web.session_access import SessionAccess
from hopyard.server.web.session_cookie import check_same_origin

PROTOCOL, WEB_SOCKET = b"tcp", b"websocket"  # the values of `Upgrade`
MAX_CONSOLES_PER_RUN = 32
IDLE_S = 24 * 3600.0  # a console without a byte for so long is closed
_HEAD = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: tcp\r\n\r\n"
_PATH = re.compile(rf"/runs/(?P<run>{RUN_ID_PATTERN})/consoles/(?P<ticket>[\w-]{{1,64}})")
_RETRY_AFTER_S = 1
# a client that vanished without a word is noticed after three minutes
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 20), (socket.TCP_KEEPCNT, 6))


class ConsoleProxy:
    """The ASGI application around the API."""

    def __init__(
        self, api: ASGIApp, services: Services, access: ConsoleAccess, sessions: SessionAccess
    ) -> None:
        self._api, self._services, self._access, self._sessions = api, services, access, sessions
        self._open: Counter[RunId] = Counter()
        self._writers: set[StreamWriter] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        found = _PATH.fullmatch(path) if path.startswith("/runs/") else None
        if found is None:
            await self._api(scope, receive, send)
            return
        try:
            protocol = find_header(scope["headers"], b"upgrade").strip().lower()
            if protocol not in (PROTOCOL, WEB_SOCKET):
                raise UsageError("a console needs the header `Upgrade: tcp`", hints=("use `hop exec`",))
            request = Request(scope)
            if protocol == WEB_SOCKET:
                _check_web_socket(request)
                caller = await self._sessions.authenticate(request)
            else:  # a cookie opens none without the checks of a page
                caller = await self._services.tokens.authenticate(
                    request.headers.get("authorization") or None
                )
            console = self._access.use(RunId(found["run"]), found["ticket"], caller)
            await self._connect(request, console, protocol)
        except HopyardError as error:
            response = error_response(error)
            response.headers["Connection"] = "close"  # what follows this request is not HTTP
            await response(scope, receive, send)

    def close(self) -> None:
        """Ends all consoles, because the server ends. The runs continue."""
        for writer in self._writers:
            writer.transport.abort()

    async def _connect(self, request: Request, console: OpenConsole, protocol: bytes) -> None:
        from hopyard.server.console.web_socket import WebSocket, open_web_socket  # few servers need it

        run, scope = console.run, request.scope
        if self._open[run] >= MAX_CONSOLES_PER_RUN:
            raise ServerUnavailable(
                f"the run has {MAX_CONSOLES_PER_RUN} open consoles already", retry_after_s=_RETRY_AFTER_S
            )
        self._open[run] += 1
        try:
            connection, head = open_web_socket(scope) if protocol == WEB_SOCKET else (None, _HEAD)
            reader, writer = await self._services.connect_console(console.attempt, console.rank)
            client = take_over_stream(scope["state"][TUNNEL_KEY])
            _keep_alive(client[1])
            own = {client[1], writer}
            self._writers |= own
            try:
                client[1].write(head)
                writer.write(frames.json_frame(frames.START, console.start))
                ends: Stream = client
                if connection is not None:
                    stream = WebSocket(connection, *client)
                    ends = stream, stream
                with (
                    self._services.connections.connected(run),
                    self._services.token_connections.opened(console.caller, client[1].transport.abort),
                    self._services.token_connections.opened(console.caller, writer.transport.abort),
                ):
                    await relay(ends, (reader, writer), idle_s=IDLE_S)
            finally:
                self._writers -= own
                writer.close()
        finally:
            self._open[run] -= 1
            if not self._open[run]:
                del self._open[run]


def _check_web_socket(request: Request) -> None:
    """A browser lets any page open a WebSocket with the cookies of this server; only its own page may."""
    check_same_origin(request)
    if "cookie" in request.headers and request.headers.get("origin") is None:
        raise Forbidden(
            "a WebSocket with a cookie needs the header `Origin`", hints=("send a token instead",)
        )


def _keep_alive(writer: StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if sock is None or sock.family == socket.AF_UNIX:
        return
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
