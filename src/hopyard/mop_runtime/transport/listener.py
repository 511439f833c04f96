"""Accepts connections on one port, and gives each that has proven the secret to a thread of its own."""

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

# connections that have proven nothing yet: for one more the oldest is closed, since a worker proves itself
# within milliseconds
_MAX_UNAUTHENTICATED = 128
_LOG_INTERVAL_S = 30.0  # of connections that were refused
_MAX_LOGGED_REASONS = 16  # that are remembered


class ConnectionListener:
    """serve: called on a thread of its own for each proven connection, which is closed when it returns.
    host "" means all addresses, port 0 any free one. Raises OSError where the port is taken."""

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
        self._unauthenticated: dict[socket.socket, None] = {}  # the oldest first
        # of each reason: when it was logged last, how often it was not since
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
            except OSError as failed:
                if self._closed.is_set():
                    return
                # too many open files, most likely
                log.warning("a connection could not be accepted: %s", failed)
                self._closed.wait(0.1)
                continue
            self._authenticate(sock, str(peer[0]))
            threading.Thread(
                target=self._run, args=(sock, str(peer[0])), name="link-serve", daemon=True
            ).start()

    def _authenticate(self, sock: socket.socket, peer: str) -> None:
        """A stranger that holds connections open keeps no worker from coming (back)."""
        oldest = None
        with self._lock:
            if len(self._unauthenticated) >= _MAX_UNAUTHENTICATED:
                oldest = next(iter(self._unauthenticated))
                del self._unauthenticated[oldest]
            self._unauthenticated[sock] = None
        if oldest is not None:
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread notices, and closes it
            self._log_rejection(peer, "too many unauthenticated connections; closing the oldest")

    def _log_rejection(self, peer: str, cause: object) -> None:
        """Logs each reason once in a while: strangers decide how often they come, and one kind of them hides
        no other."""
        with self._lock:
            now, reason = time.monotonic(), str(cause)
            if reason not in self._logged_at and len(self._logged_at) >= _MAX_LOGGED_REASONS:
                self._logged_at.clear()
            told_at, untold = self._logged_at.get(reason, (-_LOG_INTERVAL_S, 0))
            if now - told_at < _LOG_INTERVAL_S:
                self._logged_at[reason] = told_at, untold + 1
                return
            count, self._logged_at[reason] = untold + 1, (now, 0)
        log.warning(
            "refused %s: %s%s",
            peer,
            cause,
            f" (and {count - 1} more since the last such line)" if count > 1 else "",
        )

    def _run(self, sock: socket.socket, peer: str) -> None:
        try:
            wire = accept(
                sock, self._secret, timeout_s=self._handshake_timeout_s, payload_limit=self._payload_limit
            )
        except (AuthError, OSError) as refused:
            self._log_rejection(peer, refused)
            return
        finally:
            with self._lock:
                self._unauthenticated.pop(sock, None)
        with self._lock:
            self._connections.add(wire)
        try:
            if not self._closed.is_set():
                self._serve(wire)
        except OSError as lost:
            log.info("%s: %s", wire.peer, lost)
        finally:
            wire.close()
            with self._lock:
                self._connections.discard(wire)

    def close(self) -> None:
        """No new connections, and the end of all that there are."""
        self._closed.set()
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._sock.close()
        with self._lock:
            wires = list(self._connections)
        for wire in wires:
            wire.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(5)


def _bind(host: str, port: int) -> socket.socket:
    """Over IPv6 and IPv4 alike where the system can, since names may stand for either."""
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=512)
