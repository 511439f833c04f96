"""Accepts connections on one port, and gives each that has proven the secret to a thread of its own."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from hopyard.errors import AuthError
from hopyard.studies.link.proof import PROOF_S, accept
from hopyard.studies.link.wire import PAYLOAD_BYTES, Wire

log = logging.getLogger("hopyard.studies.link")

# connections that have proven nothing yet: for one more the oldest is closed, since a worker proves itself
# within milliseconds
_UNPROVEN = 128
_TELL_EVERY_S = 30.0  # of connections that were refused
_REASONS = 16  # that are remembered


class Listener:
    """serve: called on a thread of its own for each proven connection, which is closed when it returns.
    host "" means all addresses, port 0 any free one. Raises OSError where the port is taken."""

    def __init__(
        self,
        secret: bytes,
        serve: Callable[[Wire], None],
        *,
        host: str = "",
        port: int = 0,
        payload_limit: int = PAYLOAD_BYTES,
        proof_s: float = PROOF_S,
    ) -> None:
        if not secret:
            raise ValueError("a link without a secret would let anybody in")
        self._secret, self._serve = secret, serve
        self._payload_limit, self._proof_s = payload_limit, proof_s
        self._sock = _listen(host, port)
        self.port = int(self._sock.getsockname()[1])
        self._unproven: dict[socket.socket, None] = {}  # the oldest first
        # of each reason: when it was logged last, how often it was not since
        self._told: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()
        self._wires: set[Wire] = set()
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
            self._expect_proof(sock, str(peer[0]))
            threading.Thread(
                target=self._run, args=(sock, str(peer[0])), name="link-serve", daemon=True
            ).start()

    def _expect_proof(self, sock: socket.socket, peer: str) -> None:
        """A stranger that holds connections open keeps no worker from coming (back)."""
        oldest = None
        with self._lock:
            if len(self._unproven) >= _UNPROVEN:
                oldest = next(iter(self._unproven))
                del self._unproven[oldest]
            self._unproven[sock] = None
        if oldest is not None:
            with suppress(OSError):
                oldest.shutdown(socket.SHUT_RDWR)  # its thread notices, and closes it
            self._tell(peer, "too many connections that have proven nothing; the oldest is closed")

    def _tell(self, peer: str, why: object) -> None:
        """Logs each reason once in a while: strangers decide how often they come, and one kind of them hides
        no other."""
        with self._lock:
            now, reason = time.monotonic(), str(why)
            if reason not in self._told and len(self._told) >= _REASONS:
                self._told.clear()
            told_at, untold = self._told.get(reason, (-_TELL_EVERY_S, 0))
            if now - told_at < _TELL_EVERY_S:
                self._told[reason] = told_at, untold + 1
                return
            count, self._told[reason] = untold + 1, (now, 0)
        log.warning(
            "refused %s: %s%s",
            peer,
            why,
            f" (and {count - 1} more since the last such line)" if count > 1 else "",
        )

    def _run(self, sock: socket.socket, peer: str) -> None:
        try:
            wire = accept(sock, self._secret, timeout_s=self._proof_s, payload_limit=self._payload_limit)
        except (AuthError, OSError) as refused:
            self._tell(peer, refused)
            return
        finally:
            with self._lock:
                self._unproven.pop(sock, None)
        with self._lock:
            self._wires.add(wire)
        try:
            if not self._closed.is_set():
                self._serve(wire)
        except OSError as lost:
            log.info("%s: %s", wire.peer, lost)
        finally:
            wire.close()
            with self._lock:
                self._wires.discard(wire)

    def close(self) -> None:
        """No new connections, and the end of all that there are."""
        self._closed.set()
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._sock.close()
        with self._lock:
            wires = list(self._wires)
        for wire in wires:
            wire.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(5)


def _listen(host: str, port: int) -> socket.socket:
    """Over IPv6 and IPv4 alike where the system can, since names may stand for either."""
    if not host and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=512)
