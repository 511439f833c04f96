"""The driver's end of the connections: many workers, one queue of their messages."""

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

MAX_MESSAGE_BYTES = 64 << 20  # except for states
_TRANSFER_KINDS = ("fetch", "lend")  # the first message of a connection that transfers states


@dataclass(frozen=True, slots=True)
class ConnectionOpened:
    """An authenticated connection; its first frame identifies the worker. connection: a number that is never
    reused."""

    connection: int
    peer: str


@dataclass(frozen=True, slots=True)
class MessageReceived:
    connection: int
    head: Mapping[str, Any]
    payload: bytes


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """No more messages come from this connection. reason: for users."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class StateRequested:
    """A worker waits for this state in the driver's store."""

    state: str


@dataclass(frozen=True, slots=True)
class StateReceived:
    """The state arrived, or its transfer failed.

    error: why it could not be fetched from the worker that has it. missing: that worker does not have it.
    damaged: the received bytes do not have the state's digest.
    """

    state: str
    error: str = ""
    missing: bool = False
    damaged: bool = False


DriverServerEvent = ConnectionOpened | MessageReceived | ConnectionClosed | StateRequested | StateReceived


class DriverServer:
    """Listens on host:port (port 0: any free one) until `close`.

    serve: handles connections that transfer states, on their threads. `wait`, `send` and `close_connection`
    are thread-safe and never block for long on a worker: a worker that does not read its messages is
    disconnected. A driver that was killed can listen on the same port again at once.
    """

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
        """Returns all events since the last call, in order; waits up to `timeout_s` for the first one, or
        until `wake`."""
        events: list[DriverServerEvent] = []
        try:
            first = (
                self._events.get(timeout=max(timeout_s, 0.0)) if timeout_s > 0 else self._events.get_nowait()
            )
            if first is not None:
                events.append(first)
            while True:
                event = self._events.get_nowait()
                if event is not None:
                    events.append(event)
        except queue.Empty:
            return events

    def wake(self) -> None:
        self._events.put(None)

    def post(self, event: DriverServerEvent) -> None:
        """Adds an event as if it had come over a connection."""
        self._events.put(event)

    def send(self, connection: int, *heads: Mapping[str, Any]) -> bool:
        """Sends one frame per head and returns whether that worked. If not, a `ConnectionClosed` for this
        connection follows or preceded."""
        with self._lock:
            framed = self._connections.get(connection)
        if framed is None:
            return False
        try:
            framed.send_heads(heads)
        except OSError:
            return False
        return True

    def seconds_since_message(self, connection: int) -> float:
        """Returns the seconds since the last message; infinity if it is closed."""
        with self._lock:
            framed = self._connections.get(connection)
        return time.monotonic() - framed.received_at if framed is not None else float("inf")

    def close_connection(self, connection: int) -> None:
        """Closes it; its `ConnectionClosed` event follows."""
        with self._lock:
            framed = self._connections.get(connection)
        if framed is not None:
            framed.close()

    def _read(self, connection: FramedConnection) -> None:
        with self._lock:
            number = next(self._connection_ids)
            self._connections[number] = connection
        self._events.put(ConnectionOpened(number, connection.peer))
        reason = ""
        try:
            while True:
                head, payload = connection.receive()
                if self._serve is not None and head.get("kind") in _TRANSFER_KINDS:
                    self._serve(connection, head)
                    return
                self._events.put(MessageReceived(number, head, payload))
        except ConnectionBroken as error:
            reason = str(error)
        finally:
            connection.close()
            with self._lock:
                del self._connections[number]
            self._events.put(ConnectionClosed(number, reason))

    def close(self) -> None:
        self._listener.close()
