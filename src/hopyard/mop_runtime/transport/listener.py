"""Accepts connections on one port, and runs each authenticated one in its own thread."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from hopyard.errors import AuthError
from hopyard.mop_runtime.transport.framing import MAX_PAYLOAD_BYTES, FramedConnection
from hopyard.mop_runtime.transport.handshake import HANDSHAKE_TIMEOUT_S, accept

log = logging.getLogger("hopyard.mop_runtime.transport")

# unauthenticated connections: for one more the oldest is closed, since a worker authenticates within
# milliseconds
_MAX_UNAUTHENTICATED = 128
_LOG_INTERVAL_S = 30.0  # between log lines about one reason of rejection
_MAX_LOGGED_REASONS = 16  # reasons that are tracked


class ConnectionListener:
    """serve: called in a separate thread for each authenticated connection, which is closed when it returns.
    host "" means all addresses, port 0 any free one. Raises OSError if the port is in use."""

    def __init__(
        self,
        secret: bytes,
        serve: Callable[[FramedConnection], None],
        *,
        host: str = "",
        port: int = 0,
        payload_limit: int = MAX_PAYLOAD_BYTES,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
    ) -> None:
        if not secret:
            raise ValueError("a listener needs a secret: without one it would accept any client")
        self._secret, self._serve = secret, serve
        self._payload_limit, self._handshake_timeout_s = payload_limit, handshake_timeout_s
        self._sock = _bind(host, port)
        self.port = int(self._sock.getsockname()[1])
        self._unauthenticated: dict[socket.socket, None] = {}  # oldest first
        # by reason: when it was last logged, and how many rejections were not logged since
        self._logged_at: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()
        self._connections: set[FramedConnection] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="link-accept", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                sock, peer = self._sock.accept()
            except OSError as error:
                if self._closed.is_set():
                    return
                # most likely too many open files
                log.warning("a connection could not be accepted: %s", error)
                self._closed.wait(0.1)
                continue
            self._authenticate(sock, str(peer[0]))
            threading.Thread(
                target=self._run, args=(sock, str(peer[0])), name="link-serve", daemon=True
            ).start()

    def _authenticate(self, sock: socket.socket, peer: str) -> None:
        """Registers an unauthenticated connection. A client that holds many connections open must not block
        workers."""
        oldest = None
        with self._lock:
            if len(self._unauthenticated) >= _MAX_UNAUTHENTICATED:
                oldest = next(iter(self._unauthenticated))
                del self._unauthenticated[oldest]
            self._unauthenticated[sock] = None
        if oldest is not None:
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread notices and closes it
            self._log_rejection(peer, "too many unauthenticated connections; closing the oldest")

    def _log_rejection(self, peer: str, cause: object) -> None:
        """Logs each reason at a limited rate, because clients decide how often they connect. One reason must
        not hide another."""
        with self._lock:
            now, reason = time.monotonic(), str(cause)
            if reason not in self._logged_at and len(self._logged_at) >= _MAX_LOGGED_REASONS:
                self._logged_at.clear()
            logged_at, suppressed = self._logged_at.get(reason, (-_LOG_INTERVAL_S, 0))
            if now - logged_at < _LOG_INTERVAL_S:
                self._logged_at[reason] = logged_at, suppressed + 1
                return
            count, self._logged_at[reason] = suppressed + 1, (now, 0)
        log.warning(
            "refused %s: %s%s",
            peer,
            cause,
            f" (and {count - 1} more since the last such line)" if count > 1 else "",
        )

    def _run(self, sock: socket.socket, peer: str) -> None:
        try:
            connection = accept(
                sock, self._secret, timeout_s=self._handshake_timeout_s, payload_limit=self._payload_limit
            )
        except (AuthError, OSError) as error:
            self._log_rejection(peer, error)
            return
        finally:
            with self._lock:
                self._unauthenticated.pop(sock, None)
        with self._lock:
            self._connections.add(connection)
        try:
            if not self._closed.is_set():
                self._serve(connection)
        except OSError as error:
            log.info("%s: %s", connection.peer, error)
        finally:
            connection.close()
            with self._lock:
                self._connections.discard(connection)

    def close(self) -> None:
        """Stops accepting and closes all connections."""
        self._closed.set()
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._sock.close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(5)


def _bind(host: str, port: int) -> socket.socket:
    """Binds to IPv6 and IPv4 if the system supports it, since names may resolve to either."""
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=512)
