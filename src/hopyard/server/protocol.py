"""HTTP connections with limits. uvicorn's protocol has none for headers, stalled clients, or clients that
open many connections.

Everything here happens before a request reaches the application, so that an attack costs the attacker more
than the server.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Callable, Iterable
from typing import Any

import httptools
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from hopyard.server.audit import PEER_SCOPE_KEY
from hopyard.server.body_memory import ABORT_KEY, CLOSED_KEY, GIVE_UP_KEY
from hopyard.server.connections import RETRY_AFTER_S, Connections, PeerConnections, PeerIdentifier, unix_peer
from hopyard.server.ports.port_address import PATH_PREFIX, split_port_host
from hopyard.server.ports.tunnel import STREAM_KEY, TRAILERS_KEY, TUNNEL_KEY
from hopyard.server.responses import JSON, encode_error, simple_error_response

MAX_URL_BYTES = 65_535  # the limit of httptools; long lists of cursors come close
MAX_HEADER_BYTES = 64 * 1024
MAX_HEADERS = 100
_SEPARATOR_BYTES = 4  # bytes of a header beside name and value
_WINDOW_S = 20.0  # in each window, at least `_WINDOW_BYTES` of a body must arrive
_WINDOW_BYTES = 64 * 1024
_STALLED_WRITE_S = 60.0  # a response is aborted if the client reads nothing for so long
_LINGER_S, _LINGER_BYTES = 2.0, 4 * 1024 * 1024  # a refused client may still send for so long and so much
_MAX_PIPELINED = 16  # pipelined requests that may wait on one connection
# a body of more chunks than this must have so many bytes per chunk on average
_MAX_SMALL_CHUNKS, _SMALL_CHUNK_BYTES = 4096, 64
_NEVER = float("inf")
_LOCAL_NAMES = frozenset({b"localhost", b""})
_HOST_HEADER = re.compile(rb"(?P<name>\[[0-9a-fA-F:.]+\]|[^\[\]:]*)(?::\d*)?")


class AllowedHosts:
    """The host names that the server accepts, as protection against DNS rebinding.

    A browser page of another name that resolves to this server gets no response. Numeric addresses are always
    accepted, since no name was resolved. The host name of a port of a run is accepted below an accepted name.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = _LOCAL_NAMES | {name.lower().encode() for name in names}
        self._accepted_headers: set[bytes] = set()  # cache of accepted headers

    def is_allowed(self, header: bytes) -> bool:
        if header in self._accepted_headers:
            return True
        match = _HOST_HEADER.fullmatch(header.strip().lower())
        if match is None:
            return False
        name = match["name"].rstrip(b".")
        _, parent = split_port_host(name.decode("latin-1"))
        if name in self._names or _is_address(name) or parent.encode("latin-1") in self._names:
            if len(self._accepted_headers) < 64:
                self._accepted_headers.add(header)
            return True
        return False


def _is_address(name: bytes) -> bool:
    try:
        ipaddress.ip_address(name.strip(b"[]").decode("ascii"))
    except ValueError:
        return False
    return True


class LimitedProtocol(HttpToolsProtocol):
    """One connection. connections, local: the counters of TCP connections, and of connections by the Unix
    socket of the home."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections: Connections,
        local: Connections,
        hosts: AllowedHosts,
        peer_identifier: PeerIdentifier,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._connections, self._local, self._hosts = connections, local, hosts
        self._peer_identifier = peer_identifier
        self._peer: PeerConnections | None = None
        self._is_refusal_counted = False  # whether it is counted as a refused connection
        self._peer_key = ""  # a Unix user of this machine, or an address
        self._is_refused, self._discarded_bytes = False, 0
        self._in_head = self._in_body = False
        # bytes of parsed headers; received bytes of the head; requests begun on this connection
        self._head_bytes = self._received_bytes = self._pipelined = 0
        self._body_bytes, self._body_since = 0, 0.0
        self._small_chunks = self._chunk_bytes = 0  # of the body
        # bytes received with the body beside its content: sizes and extensions of chunks, and trailers
        self._framing_bytes = 0
        self._open_cycles: list[RequestResponseCycle] = []  # without a complete response, oldest first
        self._deadline = _NEVER
        self._unread_bytes, self._unread_since = 0, 0.0
        self._passes_to_port = False  # whether the request is for a port of a run
        # after a request to switch the protocol: the bytes that the client sent behind it
        self._upgrade_rest: bytes | None = None
        self._is_half_closed, self._on_half_close = False, _do_nothing
        # since when the write buffer is full, because the client reads too slowly
        self._write_blocked_since: float | None = None

    # -- the connection --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.time() + self._connections.limits.header_timeout_s
        if self.client is None:  # a connection by the Unix socket, which only the owner's processes can open
            self._connections, self._peer_key = self._local, unix_peer(transport)
        else:
            self._peer_key = self._peer_identifier.identify(self.client, self.server)
        self._peer = self._connections.admit(self, self._peer_key)
        if self._peer is None:
            if not self._connections.start_refusal():
                transport.abort()
                return
            self._is_refusal_counted = True
            self.app = _too_many_connections
        self._connections.watch(self, self.loop)

    def connection_lost(self, exc: Exception | None) -> None:
        self._remove()
        self._end_requests()
        super().connection_lost(exc)

    def _end_requests(self) -> None:
        """Marks all requests as disconnected, since no response can be sent any more."""
        for cycle in self._open_cycles:
            cycle.disconnected = True
            cycle.message_event.set()

    def _remove(self) -> None:
        self._connections.unwatch(self)
        if self._peer is not None:
            self._connections.remove(self, self._peer)
            self._peer = None
        if self._is_refusal_counted:
            self._is_refusal_counted = False
            self._connections.end_refusal()

    def evict_for_newer(self) -> None:
        """Closes this idle connection in favour of a new one. It is no longer counted."""
        self._peer = None
        self._connections.unwatch(self)
        self.transport.abort()

    def close_if_stalled(self, now: float) -> None:
        """Closes the connection if its client stalls."""
        if self._is_write_stalled(now):
            self.abort_slow_reader()
        elif self._is_refused and now >= self._deadline:
            self.transport.abort()
        elif now >= self._deadline and not self.transport.is_closing():
            self._close_if_stalled(now)

    def _close_if_stalled(self, now: float) -> None:
        if self._in_body and self._is_body_in_time(now):
            self._deadline, self._body_bytes = now + self._window_s, 0
        elif self._in_head or self._in_body:
            self._connections.log_slow_client("sent a request", self._peer_key)
            self._refuse(
                408,
                "timeout",
                "the request did not arrive in time",
                "retry over a faster connection",
            )
        else:
            self.transport.close()  # a connection without any request

    @property
    def _window_s(self) -> float:
        return min(_WINDOW_S, self._connections.limits.body_timeout_s)

    def _is_body_in_time(self, now: float) -> bool:
        """Returns whether the body arrives fast enough, or whether it waits for the server itself. A body for
        a port of a run may take any time in all."""
        if self._streams_to_port and self._body_bytes:
            return True
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:
            return True
        is_fast = self._body_bytes >= _WINDOW_BYTES
        return is_fast and now - self._body_since < self._connections.limits.body_timeout_s

    @property
    def _streams_to_port(self) -> bool:
        """Whether a port of a run gets the body. Before the rights of the client are known, the body has the
        limits of any other."""
        cycle = self.cycle
        return STREAM_KEY in cycle.scope["state"] and not cycle.response_complete

    def abort_slow_reader(self) -> None:
        """Aborts the connection, because the client reads the response too slowly."""
        self._connections.log_slow_client("read a response", self._peer_key)
        self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_blocked_since = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._write_blocked_since = None

    def _is_write_stalled(self, now: float) -> bool:
        """Returns whether the client has read nothing for too long, or has read a waiting response too
        slowly."""
        if self._write_blocked_since is not None and now - self._write_blocked_since > self._window_s:
            return True
        unread = self.transport.get_write_buffer_size()
        if unread != self._unread_bytes or not unread:
            self._unread_bytes, self._unread_since = unread, now
        return bool(unread) and now - self._unread_since > _STALLED_WRITE_S

    # -- one request -----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > _LINGER_BYTES:
                self.transport.abort()
            return
        if self._upgrade_rest is not None:
            self._upgrade_rest += data
            return
        idle, in_head, heads, body_bytes = (
            not self._in_body,
            self._in_head,
            self._pipelined,
            self._chunk_bytes,
        )
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # otherwise the request is handled like any other
            if self._passes_to_port and not self._is_refused:
                self._upgrade_rest = data[upgrade.args[0] :]
                self.transport.pause_reading()
        except httptools.HttpParserError:  # not logged, since strangers could fill the log
            self._refuse(400, "usage", "the request is not valid HTTP")
        if self._in_head:  # also counts a single endless header, which the parser buffers without a callback
            # otherwise some of the data may belong to earlier requests
            if in_head or (idle and self._pipelined == heads + 1):
                self._received_bytes += len(data)
            if self._received_bytes > MAX_HEADER_BYTES + MAX_URL_BYTES + MAX_HEADERS * _SEPARATOR_BYTES:
                self._refuse(431, "usage", f"the headers have more than {MAX_HEADER_BYTES >> 10} KiB")
        elif self._in_body and not idle and self._pipelined == heads:
            content_bytes = self._chunk_bytes - body_bytes
            self._framing_bytes += len(data) - content_bytes
            if self._streams_to_port and content_bytes:
                self._framing_bytes = 0  # a stream may consist of small chunks
            # the parser may buffer it, and copy it repeatedly
            if self._framing_bytes > MAX_HEADER_BYTES + (0 if self._streams_to_port else self._chunk_bytes):
                self._refuse(
                    431,
                    "usage",
                    "the chunks of the body have longer extensions or trailers than bytes",
                    "remove them",
                )

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"].update(
            {
                PEER_SCOPE_KEY: self._peer_key,
                GIVE_UP_KEY: self.abort_slow_reader,
                ABORT_KEY: self.transport.abort,
                TUNNEL_KEY: self,
                CLOSED_KEY: self.transport.is_closing,
            }
        )
        self._in_head, self._in_body, self._head_bytes, self._received_bytes = True, False, 0, 0
        self._pipelined += 1
        self._deadline = self.loop.time() + self._connections.limits.header_timeout_s

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            self._refuse(
                414, "usage", f"the address has more than {MAX_URL_BYTES} bytes", "request less at once"
            )
            raise _RequestRefused

    def on_header(self, name: bytes, value: bytes) -> None:
        trailers: list[tuple[bytes, bytes]] = self.scope["state"].get(TRAILERS_KEY, [])
        if self._in_head:
            super().on_header(name, value)
        else:  # a trailer: among the headers, it could look as if it authenticated the client
            trailers.append((name.lower(), value))
            self.scope["state"][TRAILERS_KEY] = trailers
        self._head_bytes += len(name) + len(value)
        if len(self.headers) + len(trailers) > MAX_HEADERS or self._head_bytes > MAX_HEADER_BYTES:
            self._refuse(
                431,
                "usage",
                f"there are more than {MAX_HEADERS} headers, or they have more than "
                f"{MAX_HEADER_BYTES >> 10} KiB",
            )
            raise _RequestRefused

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body = False, True
        self._body_bytes, self._body_since = 0, self.loop.time()
        self._small_chunks = self._chunk_bytes = self._framing_bytes = 0
        if len(self.pipeline) >= _MAX_PIPELINED:
            self._refuse(
                400,
                "usage",
                f"more than {_MAX_PIPELINED} requests wait for earlier ones of this connection",
                "wait for responses",
            )
            raise _RequestRefused
        hosts = [value for name, value in self.headers if name == b"host"]
        self._deadline = self._body_since + self._window_s
        if self._peer is not None:
            self._peer.idle.pop(self, None)
        if self.client is not None:
            if len(hosts) > 1:
                self._refuse(400, "usage", "there is more than one `Host` header", "send one")
                raise _RequestRefused
            host = hosts[0] if hosts else b""
            if not self._hosts.is_allowed(host):
                self._refuse(
                    421,
                    "usage",
                    f"unknown host name `{host[:80].decode('latin-1')}`",
                    "add it to `server: {hosts: [NAME]}` in config.yaml, or use the server's address "
                    "in digits",
                )
                raise _RequestRefused
        codings = [
            coding.strip().lower()
            for name, value in self.headers
            if name == b"transfer-encoding"
            for coding in value.split(b",")
            if coding.strip().lower() != b"identity"
        ]
        if codings not in ([], [b"chunked"]):
            self._refuse(
                501,
                "usage",
                f"the transfer coding `{b', '.join(codings)[:80].decode('latin-1')}` is not supported",
                "send the body with `Transfer-Encoding: chunked`, or with Content-Length",
            )
            raise _RequestRefused
        super().on_headers_complete()
        # the path of the request, which may name it with the host: `GET http://HOST/runs/…`
        self._passes_to_port = self.scope["raw_path"].startswith(PATH_PREFIX.encode()) or (
            bool(hosts) and split_port_host(hosts[0].decode("latin-1"))[0] is not None
        )
        self._open_cycles.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._small_chunks += 1
        self._chunk_bytes += len(body)
        # a small chunk costs as much as a large one
        if (
            not self._streams_to_port
            and self._small_chunks > _MAX_SMALL_CHUNKS
            and self._chunk_bytes < self._small_chunks * _SMALL_CHUNK_BYTES
        ):
            self._refuse(
                400,
                "usage",
                "the chunks of the body are too small",
                "send larger chunks, or a body with Content-Length",
            )
            raise _RequestRefused
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body, self._deadline = False, _NEVER
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._open_cycles = [cycle for cycle in self._open_cycles if not cycle.response_complete]
        super().on_response_complete()
        if self._peer is not None and not self.pipeline and not self._in_head:
            self._peer.idle[self] = None

    # -- the end of what the client sends --------------------------------------------------------------------

    def eof_received(self) -> bool:  # type: ignore[override]
        """Returns whether the connection stays open. A client may shut down its side behind a request to a
        port of a run, and still read the response."""
        is_waiting = self._open_cycles and not (self._in_head or self._in_body or self.pipeline)
        if self._is_refused or not self._passes_to_port or not is_waiting:
            return False
        self.cycle.keep_alive = False
        self._is_half_closed = True
        self._on_half_close()
        return True

    def call_when_half_closed(self, callback: Callable[[], None]) -> None:
        """Implements `ClientTunnel`."""
        self._on_half_close = callback
        if self._is_half_closed:
            callback()

    # -- switching to another protocol ----------------------------------------------------------------------

    def take_over(self) -> tuple[asyncio.Transport, bytes]:
        """Implements `ClientTunnel`. The connection stays counted until `end_tunnel`."""
        rest, self._upgrade_rest = self._upgrade_rest or b"", None
        self._end_requests()
        return self.transport, rest

    def end_tunnel(self) -> None:
        self.connection_lost(None)

    def cut_response(self) -> None:
        self._end_requests()
        self.transport.close()

    # -- refusing --------------------------------------------------------------------------------------------

    def _refuse(self, status: int, code: str, message: str, *hints: str) -> None:
        """Sends an error and closes the connection. Data that the client still sends is discarded for a
        moment, since the error would be lost otherwise. Nothing is written if a response has begun."""
        if self._is_refused:
            return
        self._is_refused = True
        body = encode_error(code, message, hints)
        lines = [
            STATUS_LINE[status],
            *(b"%b: %b\r\n" % header for header in self.server_state.default_headers),
        ]
        lines += [
            b"content-type: %b\r\n" % JSON.encode(),
            b"content-length: %d\r\n" % len(body),
            b"connection: close\r\n\r\n",
            body,
        ]
        if not any(cycle.response_started and not cycle.response_complete for cycle in self._open_cycles):
            self.transport.write(b"".join(lines))
        self._end_requests()
        self.flow.resume_reading()
        self.transport.write_eof()
        self._deadline = self.loop.time() + _LINGER_S
        if self._peer is not None:
            self._peer.idle[self] = None


def _do_nothing() -> None:
    pass


class _RequestRefused(Exception):
    """Stops the parser, since the request was refused."""


async def _too_many_connections(scope: Scope, receive: Receive, send: Send) -> None:
    response = simple_error_response(
        503,
        "server_unavailable",
        "the server has too many connections",
        headers={"Retry-After": str(RETRY_AFTER_S), "Connection": "close"},
    )
    await response(scope, receive, send)


def protocol_factory(connections: Connections, local: Connections, hosts: AllowedHosts) -> Any:
    """Returns the factory for uvicorn's `http` option."""
    peer_identifier = PeerIdentifier()

    def create_protocol(
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> LimitedProtocol:
        return LimitedProtocol(
            config,
            server_state,
            app_state,
            _loop,
            connections=connections,
            local=local,
            hosts=hosts,
            peer_identifier=peer_identifier,
        )

    return create_protocol
