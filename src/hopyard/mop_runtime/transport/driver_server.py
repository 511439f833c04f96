"""The driver's end: many workers, one queue of what they say."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hopyard.mop_runtime.transport.framing import ConnectionBroken, FramedConnection
from hopyard.mop_runtime.transport.listener import ConnectionListener

MAX_MESSAGE_BYTES = 64 << 20  # where it is not of a state
_TRANSFER_KINDS = ("fetch", "lend")  # first words of a connection that is about states


@dataclass(frozen=True, slots=True)
class ConnectionOpened:
    """A connection that has proven the secret; who it is, it says in its first frame.
    connection: a number never used again."""

    connection: int
    peer: str


@dataclass(frozen=True, slots=True)
class MessageReceived:
    connection: int
    head: Mapping[str, Any]
    payload: bytes


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """After this nothing comes from it. reason: for people."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class StateRequested:
    """Somebody waits for this state to lie on the driver's shelf."""

    state: str


@dataclass(frozen=True, slots=True)
class StateReceived:
    """It does now; error: it could not be had from who was to lend it; missing: who does not have it;
    damaged: what was lent does not have the state's digest."""

    state: str
    error: str = ""
    missing: bool = False
    damaged: bool = False


DriverServerEvent = ConnectionOpened | MessageReceived | ConnectionClosed | StateRequested | StateReceived


class DriverServer:
    """Listens on host:port (port 0: any free one) until `close`. serve: takes connections that begin with a
    word about states, on their threads. `wait`, `send` and `close_connection` are for any thread and never
    wait for a worker for long: one that does not read what it is told is cut off. A driver that was killed
    listens on the same port again at once."""

    def __init__(
        self,
        secret: bytes,
        *,
        host: str = "",
        port: int = 0,
        serve: Callable[[FramedConnection, Mapping[str, Any]], None] | None = None,
    ) -> None:
        self._serve = serve
        self._events: queue.SimpleQueue[DriverServerEvent | None] = queue.SimpleQueue()
        self._connections: dict[int, FramedConnection] = {}
        self._connection_ids = itertools.count(1)
        self._lock = threading.Lock()
        self._listener = ConnectionListener(
            secret, self._read, host=host, port=port, payload_limit=MAX_MESSAGE_BYTES
        )
        self.port = self._listener.port

    def wait(self, timeout_s: float) -> list[DriverServerEvent]:
        """All that happened since, in order; waits for the first up to `timeout_s`.
        Also ends early after `wake`."""
        events: list[DriverServerEvent] = []
        try:
            first = (
                self._events.get(timeout=max(timeout_s, 0.0)) if timeout_s > 0 else self._events.get_nowait()
            )
            if first is not None:
                events.append(first)
            while True:
                more = self._events.get_nowait()
                if more is not None:
                    events.append(more)
        except queue.Empty:
            return events

    def wake(self) -> None:
        self._events.put(None)

    def post(self, event: DriverServerEvent) -> None:
        """For who waits, as if it had come over a connection."""
        self._events.put(event)

    def send(self, connection: int, *heads: Mapping[str, Any]) -> bool:
        """Whether they could be sent, a frame each; if not, a `ConnectionClosed` of this connection comes or
        came."""
        with self._lock:
            wire = self._connections.get(connection)
        if wire is None:
            return False
        try:
            wire.send_heads(heads)
        except OSError:
            return False
        return True

    def seconds_since_message(self, connection: int) -> float:
        """Seconds since anything came from it; infinity where it is closed."""
        with self._lock:
            wire = self._connections.get(connection)
        return time.monotonic() - wire.received_at if wire is not None else float("inf")

    def close_connection(self, connection: int) -> None:
        """Close it; its `ConnectionClosed` comes as of any other."""
        with self._lock:
            wire = self._connections.get(connection)
        if wire is not None:
            wire.close()

    def _read(self, connection: FramedConnection) -> None:
        with self._lock:
            number = next(self._connection_ids)
            self._connections[number] = connection
        self._events.put(ConnectionOpened(number, connection.peer))
        why = ""
        try:
            while True:
                head, payload = connection.receive()
                if self._serve is not None and head.get("kind") in _TRANSFER_KINDS:
                    self._serve(connection, head)
                    return
                self._events.put(MessageReceived(number, head, payload))
        except ConnectionBroken as broken:
            why = str(broken)
        finally:
            connection.close()
            with self._lock:
                del self._connections[number]
            self._events.put(ConnectionClosed(number, why))

    def close(self) -> None:
        self._listener.close()
