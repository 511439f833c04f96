"""Passes HTTP, WebSocket and plain TCP connections through to the ports of runs.

Requests to `/runs/ID/ports/8888/` need a user's token, requests to the host name of a port need its cookie.
All other requests are those of the API. Bodies stream in both directions and are never kept as a whole.
"""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from html import escape as escape_html
from urllib.parse import parse_qs, quote

from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from hopyard.api_client.tcp_relay import relay
from hopyard.domain.ids import RunId
from hopyard.errors import Forbidden, HopyardError, PortUnreachable, ServerUnavailable
from hopyard.server.audit import PEER_SCOPE_KEY
from hopyard.server.ports.port_access import COOKIE_LIFETIME, OpenPort, PortAccess
from hopyard.server.ports.port_address import PATH_PREFIX, PortAddress, split_port_host, split_port_path
from hopyard.server.ports.port_headers import (
    COOKIE_NAME,
    Headers,
    PublicAddress,
    cookie_value,
    find_header,
    is_chunked,
    request_head,
    response_headers,
    switch_head,
    trailer_lines,
)
from hopyard.server.ports.port_upstream import PortUpstream
from hopyard.server.ports.tunnel import STREAM_KEY, TRAILERS_KEY, TUNNEL_KEY, take_over_stream
from hopyard.server.responses import error_response, log
from hopyard.server.services import Services

LINK_PATH = "/.hopyard/open"  # on the host name of a port
TCP_PROTOCOL = b"tcp"  # the value of `Upgrade` that requests the bytes of the port
TCP_HEAD = b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: tcp\r\n\r\n"
MAX_CONNECTIONS_PER_RUN = 128
IDLE_S = 3600.0  # a connection without a byte for so long is closed
UPGRADE_S = 60.0  # for the response to a request to switch the protocol
_RETRY_AFTER_S = 1
_SAFE_METHODS = ("GET", "HEAD")
_WITHOUT_BODY = (204, 304)


class PortProxy:
    """The ASGI application around the API. on_close: called when the server ends."""

    def __init__(
        self, api: ASGIApp, services: Services, access: PortAccess, *, on_close: Callable[[], None]
    ) -> None:
        self._api, self._services, self._access, self._on_close = api, services, access, on_close
        self._open: Counter[RunId] = Counter()
        self._writers: set[StreamWriter] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = find_header(scope["headers"], b"host").decode("latin-1")
        address, _ = split_port_host(host)
        raw_path, prefix = _raw_path(scope).decode("latin-1"), ""
        if address is None:
            found = split_port_path(raw_path) if raw_path.startswith(PATH_PREFIX) else None
            if found is None:
                await self._api(scope, receive, send)
                return
            address, prefix = found
        response: Response | None = None
        try:
            if not prefix and raw_path == LINK_PATH:
                response = self._use_link(scope, address)
            elif raw_path == prefix:
                query = scope["query_string"].decode("latin-1")
                response = RedirectResponse(f"{prefix}/{f'?{query}' if query else ''}", 308)
            else:
                await self._pass(scope, receive, send, address, prefix)
        except HopyardError as error:
            response = _error_page(scope, error)
        if response is not None:
            if _requested_upgrade(
                scope["headers"]
            ):  # what follows this request on the connection is not HTTP
                response.headers["Connection"] = "close"
            await response(scope, receive, send)

    def close(self) -> None:
        """Ends all connections to ports, because the server ends."""
        self._on_close()
        for writer in self._writers:
            writer.transport.abort()

    # -- rights ----------------------------------------------------------------------------------------------

    def _use_link(self, scope: Scope, address: PortAddress) -> Response:
        secret = parse_qs(scope["query_string"].decode("latin-1")).get("ticket", [""])[0]
        cookie = self._access.use_link(secret, address)
        response = RedirectResponse("/", 303, headers={"Referrer-Policy": "no-referrer"})
        response.set_cookie(
            COOKIE_NAME,
            cookie,
            max_age=int(COOKIE_LIFETIME.total_seconds()),
            httponly=True,
            samesite="lax",
            secure=_scheme(scope) == "https",
        )
        return response

    async def _authorize(self, scope: Scope, address: PortAddress, prefix: str) -> OpenPort:
        headers: Headers = scope["headers"]
        if not prefix:
            _check_same_origin(scope)
            caller = await self._access.cookie_caller(cookie_value(headers), address)
        else:
            token = find_header(headers, b"authorization").decode("latin-1")
            caller = await self._services.tokens.authenticate(token or None)
        check = self._access.check if caller.run is None else self._access.check_visdom
        try:
            port = await check(address, caller)
        except Forbidden as error:
            await self._access.record_refusal(address, caller, error, _origin(scope))
            raise
        await self._access.record(port, _origin(scope))
        return port

    # -- one request -----------------------------------------------------------------------------------------

    async def _pass(
        self, scope: Scope, receive: Receive, send: Send, address: PortAddress, prefix: str
    ) -> None:
        port = await self._authorize(scope, address, prefix)
        scope["state"][STREAM_KEY] = True
        upgrade = _requested_upgrade(scope["headers"])
        async with self._connection(port) as (reader, writer):
            if upgrade == TCP_PROTOCOL:
                await self._tunnel(scope, port, (reader, writer), TCP_HEAD)
                return
            upstream = PortUpstream(
                reader, writer, is_head=scope["method"] == "HEAD", may_switch=bool(upgrade)
            )
            public = PublicAddress(
                _scheme(scope),
                find_header(scope["headers"], b"host").decode("latin-1"),
                prefix,
                port.number,
                scope["client"][0] if scope["client"] else "",
            )
            writer.write(_head(scope, public, upgrade))
            if upgrade:
                await _read_head(upstream, UPGRADE_S)
                if upstream.switches_protocol:
                    head = switch_head(upstream.headers, public, upgrade)
                    await self._tunnel(scope, port, (reader, writer), head + upstream.rest)
                    return
                await _send_response(scope, upstream, public, send, closes=True)
                return
            body = asyncio.create_task(_send_body(scope, receive, writer))
            try:
                await _read_head(upstream, IDLE_S)
                await _send_response(scope, upstream, public, send)
            finally:
                body.cancel()
                with suppress(asyncio.CancelledError):
                    await body

    async def _tunnel(
        self, scope: Scope, port: OpenPort, stream: tuple[StreamReader, StreamWriter], head: bytes
    ) -> None:
        """Sends the client the head of the response, and then passes bytes in both directions."""
        client = take_over_stream(scope["state"][TUNNEL_KEY])
        self._writers.add(client[1])
        try:
            client[1].write(head)
            with self._services.token_connections.opened(port.caller, client[1].transport.abort):
                await relay(client, stream, idle_s=IDLE_S)
        finally:
            self._writers.discard(client[1])

    @asynccontextmanager
    async def _connection(self, port: OpenPort) -> AsyncIterator[tuple[StreamReader, StreamWriter]]:
        """Connects to the port; the number of connections to each run is limited. Raises PortUnreachable,
        ServerUnavailable."""
        run = port.run.id
        if self._open[run] >= MAX_CONNECTIONS_PER_RUN:
            raise ServerUnavailable(
                f"run {port.run.name} has {MAX_CONNECTIONS_PER_RUN} open connections already",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._open[run] += 1
        try:
            reader, writer = await self._services.connect_port(port.attempt, port.address.rank, port.number)
            self._writers.add(writer)
            try:
                with (
                    self._services.connections.connected(run),
                    self._services.token_connections.opened(port.caller, writer.transport.abort),
                ):
                    yield reader, writer
            finally:
                self._writers.discard(writer)
                writer.close()
        finally:
            self._open[run] -= 1
            if not self._open[run]:
                del self._open[run]


def _check_same_origin(scope: Scope) -> None:
    """Raises Forbidden for a request that the page of another origin sends with the cookie of this one."""
    headers: Headers = scope["headers"]
    origin = find_header(headers, b"origin")
    host = find_header(headers, b"host")
    site = find_header(headers, b"sec-fetch-site")
    is_foreign = origin and origin not in (b"http://" + host, b"https://" + host)
    is_link = (
        scope["method"] in _SAFE_METHODS
        and find_header(headers, b"sec-fetch-mode") == b"navigate"
        and find_header(headers, b"sec-fetch-dest") == b"document"
    )
    if is_foreign or (site in (b"cross-site", b"same-site") and not is_link):
        raise Forbidden(
            "a page of another address may not use this port", hints=("open the page in a window of its own",)
        )


def _requested_upgrade(headers: Headers) -> bytes:
    """Returns the protocol to which the client wants to switch; nothing for plain HTTP."""
    words = find_header(headers, b"connection").lower().split(b",")
    protocol = find_header(headers, b"upgrade").strip()
    return protocol.lower() if b"upgrade" in [word.strip() for word in words] else b""


def _raw_path(scope: Scope) -> bytes:
    """Returns the path as sent. It is optional in ASGI."""
    return scope.get("raw_path") or quote(scope["path"]).encode()


def _scheme(scope: Scope) -> str:
    """Returns `https` behind a proxy that ends TLS."""
    return "https" if find_header(scope["headers"], b"x-forwarded-proto") == b"https" else "http"


def _origin(scope: Scope) -> str:
    return scope.get("state", {}).get(PEER_SCOPE_KEY) or (scope["client"][0] if scope["client"] else "")


def _head(scope: Scope, public: PublicAddress, upgrade: bytes) -> bytes:
    path = _raw_path(scope)[len(public.prefix) :]
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    chunked = is_chunked(scope["headers"])
    return request_head(
        scope["method"], path + query, scope["headers"], public, upgrade=upgrade, chunked=chunked
    )


async def _send_body(scope: Scope, receive: Receive, writer: StreamWriter) -> None:
    """Sends the body of the request to the script, then waits for the end of the client's connection, with
    which the script's connection ends."""
    chunked = is_chunked(scope["headers"])
    has_more = True
    with suppress(OSError, RuntimeError):  # the script closed the connection: its response has the reason
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                writer.transport.abort()
                return
            data = message.get("body", b"")
            if data:
                writer.write(b"%x\r\n%b\r\n" % (len(data), data) if chunked else data)
                await writer.drain()
            if has_more and not message.get("more_body", False):
                has_more = False
                if chunked:
                    writer.write(b"0\r\n%b\r\n" % trailer_lines(scope["state"].get(TRAILERS_KEY, ())))
                # some servers then give up, others respond: as if the client were connected to them
                scope["state"][TUNNEL_KEY].call_when_half_closed(partial(_end_sending, writer))


def _end_sending(writer: StreamWriter) -> None:
    if writer.can_write_eof() and not writer.is_closing():
        writer.write_eof()


async def _read_head(upstream: PortUpstream, limit_s: float) -> None:
    """Raises PortUnreachable if there is no response in time."""
    try:
        async with asyncio.timeout(limit_s):
            await upstream.read_head()
    except (TimeoutError, OSError) as error:
        raise PortUnreachable(
            "the script did not respond", hints=("see its output with `hop logs`",)
        ) from error


async def _send_response(
    scope: Scope, upstream: PortUpstream, public: PublicAddress, send: Send, *, closes: bool = False
) -> None:
    headers = response_headers(upstream.headers, public)
    if upstream.status in _WITHOUT_BODY:  # it may name the length of the body that it leaves out
        headers = [(name, value) for name, value in headers if name != b"content-length"]
    if public.prefix:  # a browser may run nothing of it in the origin of the server
        headers.append((b"content-security-policy", b"sandbox"))
    if closes:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": upstream.status, "headers": headers})
    try:
        async with asyncio.timeout(IDLE_S) as idle:
            while data := await upstream.read_body():
                await send({"type": "http.response.body", "body": data, "more_body": True})
                idle.reschedule(asyncio.get_running_loop().time() + IDLE_S)
    except (PortUnreachable, TimeoutError, OSError) as error:
        log.info("a response of port %d was cut short: %s", public.port, error)
        scope["state"][TUNNEL_KEY].cut_response()
        return
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _error_page(scope: Scope, error: HopyardError) -> Response:
    """Returns an error as a page for a browser, or as JSON for a program."""
    response = error_response(error)
    if b"text/html" not in find_header(scope["headers"], b"accept"):
        return response
    hints = "".join(f"<p>{escape_html(hint)}</p>" for hint in error.hints)
    page = f"<!doctype html><title>Hopyard</title><h1>{escape_html(error.message)}</h1>{hints}"
    return HTMLResponse(page, response.status_code, headers={"Content-Security-Policy": "sandbox"})
