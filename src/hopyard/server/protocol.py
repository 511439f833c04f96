"""HTTP connections with limits: uvicorn's protocol has none for headers, for clients that stall, or for who
fills it up.

Everything here happens before a request reaches the application, so that it costs an attacker more than the
server.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Iterable
from typing import Any

import httptools
from starlette.types import Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from hopyard.server.answers import JSON, encode_error, plain_error
from hopyard.server.audit import PEER
from hopyard.server.bodies import CLOSED, GIVE_UP
from hopyard.server.connections import RETRY_AFTER_S, Connections, Peer, PeerNames, unix_peer

URL_BYTES = 65_535  # httptools takes no more; long lists of cursors come close
HEADER_BYTES = 64 * 1024
HEADER_COUNT = 100
_SEPARATORS = 4  # bytes of a header beside name and value
_WINDOW_S = 20.0  # in which a body must go on by `_WINDOW_BYTES`
_WINDOW_BYTES = 64 * 1024
_STALLED_WRITE_S = 60.0  # the rest of an answer of which nothing was read for so long is given up
_LINGER_S, _LINGER_BYTES = 2.0, 4 * 1024 * 1024  # for what a refused client still sends
_PIPELINED = 16  # requests of one connection that may wait for the answer to an earlier one
# a body of more pieces than this must bring so many bytes in each, on average
_PIECES, _PIECE_BYTES = 4096, 64
_NEVER = float("inf")
_LOCAL = frozenset({b"localhost", b""})
_HOST = re.compile(rb"(?P<name>\[[0-9a-fA-F:.]+\]|[^\[\]:]*)(?::\d*)?")


class Hosts:
    """The names under which browsers may address the server: a page of another name that was made to lead
    here (DNS rebinding) gets nothing. Addresses in figures are always right, since no name was looked up."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = _LOCAL | {name.lower().encode() for name in names}
        self._known: set[bytes] = set()  # headers that were looked at and are right

    def allow(self, header: bytes) -> bool:
        if header in self._known:
            return True
        found = _HOST.fullmatch(header.strip().lower())
        if found is None:
            return False
        name = found["name"].rstrip(b".")
        if name in self._names or _is_address(name):
            if len(self._known) < 64:
                self._known.add(header)
            return True
        return False


def _is_address(name: bytes) -> bool:
    try:
        ipaddress.ip_address(name.strip(b"[]").decode("ascii"))
    except ValueError:
        return False
    return True


class LimitedProtocol(HttpToolsProtocol):
    """One connection. connections, local: what all of them share over TCP, and by the Unix socket of the
    home."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        connections: Connections,
        local: Connections,
        hosts: Hosts,
        names: PeerNames,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._all, self._local, self._hosts, self._names = connections, local, hosts, names
        self._peer: Peer | None = None
        self._counted = False  # among the refused
        self._from = ""  # a Unix user of this machine, or an address
        self._refused, self._thrown_away = False, 0
        self._in_head = self._in_body = False
        # of the head's headers; of what came of it; heads that began
        self._head_bytes = self._arrived = self._heads = 0
        self._body_bytes, self._body_since = 0, 0.0
        self._pieces = self._piece_bytes = 0  # of the body, as its sender cut it
        # of the body: what came beside it, such as sizes and extensions of chunks, and trailers
        self._framing_bytes = 0
        self._open: list[RequestResponseCycle] = []  # requests that are not answered yet, oldest first
        self._deadline = _NEVER
        self._unread, self._unread_since = 0, 0.0
        # since when the client has not read enough for more to be written
        self._full_since: float | None = None

    # -- the connection
    # ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.time() + self._all.limits.header_timeout_s
        if self.client is None:  # it came by the Unix socket, which only the owner's processes can open
            self._all, self._from = self._local, unix_peer(transport)
        else:
            self._from = self._names.of(self.client, self.server)
        self._peer = self._all.admit(self, self._from)
        if self._peer is None:
            if not self._all.refuse():
                transport.abort()
                return
            self._counted = True
            self.app = _too_many_connections
        self._all.watch(self, self.loop)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._end_requests()
        super().connection_lost(exc)

    def _end_requests(self) -> None:
        """Nothing can be answered any more."""
        for cycle in self._open:
            cycle.disconnected = True
            cycle.message_event.set()

    def _leave(self) -> None:
        self._all.unwatch(self)
        if self._peer is not None:
            self._all.leave(self, self._peer)
            self._peer = None
        if self._counted:
            self._counted = False
            self._all.refused_one_left()

    def evict(self) -> None:
        """Another connection takes the place of this one, which has no request in progress; it was uncounted
        already."""
        self._peer = None
        self._all.unwatch(self)
        self.transport.abort()

    def expire(self, now: float) -> None:
        """Close the connection if its client stalls."""
        if self._write_stalls(now):
            self.give_up()
        elif self._refused and now >= self._deadline:
            self.transport.abort()
        elif now >= self._deadline and not self.transport.is_closing():
            self._expire(now)

    def _expire(self, now: float) -> None:
        if self._in_body and self._goes_on(now):
            self._deadline, self._body_bytes = now + self._window_s, 0
        elif self._in_head or self._in_body:
            self._all.note_slow("sent a request", self._from)
            self._refuse(
                408,
                "timeout",
                "the request did not arrive in time",
                "send it again, over a faster connection",
            )
        else:
            self.transport.close()  # a connection on which nothing was ever asked

    @property
    def _window_s(self) -> float:
        return min(_WINDOW_S, self._all.limits.body_timeout_s)

    def _goes_on(self, now: float) -> bool:
        """Whether the body of the request arrives fast enough, or the server itself is what it waits for."""
        if self.flow.read_paused or self.cycle.waiting_for_100_continue:
            return True
        fast = self._body_bytes >= _WINDOW_BYTES
        return fast and now - self._body_since < self._all.limits.body_timeout_s

    def give_up(self) -> None:
        """The client reads the answer too slowly."""
        self._all.note_slow("read an answer", self._from)
        self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._full_since = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._full_since = None

    def _write_stalls(self, now: float) -> bool:
        """Whether the client read nothing for long, or less of an answer that waits than it must within a
        while."""
        if self._full_since is not None and now - self._full_since > self._window_s:
            return True
        unread = self.transport.get_write_buffer_size()
        if unread != self._unread or not unread:
            self._unread, self._unread_since = unread, now
        return bool(unread) and now - self._unread_since > _STALLED_WRITE_S

    # -- one request
    # -------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._refused:
            self._thrown_away += len(data)
            if self._thrown_away > _LINGER_BYTES:
                self.transport.abort()
            return
        idle, in_head, heads, body_bytes = not self._in_body, self._in_head, self._heads, self._piece_bytes
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the request was answered as any other
        except httptools.HttpParserError:  # not logged: a stranger would fill the log
            self._refuse(400, "usage", "the request is not written as HTTP")
        if self._in_head:  # also of a single header that does not end, which the parser keeps to itself
            # else some of it may belong to requests before
            if in_head or (idle and self._heads == heads + 1):
                self._arrived += len(data)
            if self._arrived > HEADER_BYTES + URL_BYTES + HEADER_COUNT * _SEPARATORS:
                self._refuse(431, "usage", f"the headers have more than {HEADER_BYTES >> 10} KiB")
        elif self._in_body and not idle and self._heads == heads:
            self._framing_bytes += len(data) - (self._piece_bytes - body_bytes)
            # the parser may keep it, and copy it again and again
            if self._framing_bytes > HEADER_BYTES + self._piece_bytes:
                self._refuse(
                    431,
                    "usage",
                    "the chunks of the body have longer extensions or trailers than bytes",
                    "leave them out",
                )

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"].update(
            {PEER: self._from, GIVE_UP: self.give_up, CLOSED: self.transport.is_closing}
        )
        self._in_head, self._in_body, self._head_bytes, self._arrived = True, False, 0, 0
        self._heads += 1
        self._deadline = self.loop.time() + self._all.limits.header_timeout_s

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > URL_BYTES:
            self._refuse(414, "usage", f"the address has more than {URL_BYTES} bytes", "ask for less at once")
            raise _Refused

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._head_bytes += len(name) + len(value)
        if len(self.headers) > HEADER_COUNT or self._head_bytes > HEADER_BYTES:
            self._refuse(
                431,
                "usage",
                f"there are more than {HEADER_COUNT} headers, or they have more than "
                f"{HEADER_BYTES >> 10} KiB",
            )
            raise _Refused

    def on_headers_complete(self) -> None:
        self._in_head, self._in_body = False, True
        self._body_bytes, self._body_since = 0, self.loop.time()
        self._pieces = self._piece_bytes = self._framing_bytes = 0
        if len(self.pipeline) >= _PIPELINED:
            self._refuse(
                400,
                "usage",
                f"more than {_PIPELINED} requests wait for earlier ones of this connection",
                "wait for answers",
            )
            raise _Refused
        self._deadline = self._body_since + self._window_s
        if self._peer is not None:
            self._peer.waiting.pop(self, None)
        if self.client is not None:
            hosts = [value for name, value in self.headers if name == b"host"]
            if len(hosts) > 1:
                self._refuse(400, "usage", "there is more than one `Host` header", "send one")
                raise _Refused
            host = hosts[0] if hosts else b""
            if not self._hosts.allow(host):
                self._refuse(
                    421,
                    "usage",
                    f"this server does not answer to the name `{host[:80].decode('latin-1')}`",
                    "add it to `server: {hosts: [NAME]}` in config.yaml, or use the server's address "
                    "in figures",
                )
                raise _Refused
        super().on_headers_complete()
        self._open.append(self.cycle)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._pieces += 1
        self._piece_bytes += len(body)
        # each costs as much as a large one
        if self._pieces > _PIECES and self._piece_bytes < self._pieces * _PIECE_BYTES:
            self._refuse(
                400,
                "usage",
                "the chunks of the body are too small",
                "send it in larger ones, or with its length",
            )
            raise _Refused
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body, self._deadline = False, _NEVER
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._open = [cycle for cycle in self._open if not cycle.response_complete]
        super().on_response_complete()
        if self._peer is not None and not self.pipeline and not self._in_head:
            self._peer.waiting[self] = None

    # -- refusing
    # ----------------------------------------------------------------------------------------------------

    def _refuse(self, status: int, code: str, message: str, *hints: str) -> None:
        """Answer and close; what the client still sends is thrown away for a moment, or the answer would be
        lost with it. Nothing is written into an answer that has begun."""
        if self._refused:
            return
        self._refused = True
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
        if not any(cycle.response_started and not cycle.response_complete for cycle in self._open):
            self.transport.write(b"".join(lines))
        self._end_requests()
        self.flow.resume_reading()
        self.transport.write_eof()
        self._deadline = self.loop.time() + _LINGER_S
        if self._peer is not None:
            self._peer.waiting[self] = None


class _Refused(Exception):
    """Stops the parser: the request was answered."""


async def _too_many_connections(scope: Scope, receive: Receive, send: Send) -> None:
    refused = plain_error(
        503,
        "server_unavailable",
        "the server has too many connections",
        headers={"Retry-After": str(RETRY_AFTER_S), "Connection": "close"},
    )
    await refused(scope, receive, send)


def protocol_factory(connections: Connections, local: Connections, hosts: Hosts) -> Any:
    """What uvicorn takes as its `http` class."""
    names = PeerNames()

    def make(
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
            names=names,
        )

    return make
