"""The connection of a worker to its driver: important messages are resent over any number of connections
until acknowledged."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from hopyard.mop_runtime.transport import handshake, listener
from hopyard.mop_runtime.transport.driver_connection import DriverConnection
from hopyard.mop_runtime.transport.driver_server import (
    ConnectionClosed,
    ConnectionOpened,
    DriverServer,
    MessageReceived,
)

SECRET = b"s" * 32
Starts = Callable[..., "tuple[DriverConnection, RecordingListener]"]


class RecordingListener:
    def __init__(self) -> None:
        self.messages: list[Mapping[str, Any]] = []
        self.reason = ""
        self.changed = threading.Condition()

    def make_hello(self, local_host: str) -> Mapping[str, Any]:
        return {"kind": "hello", "host": local_host}

    def make_heartbeat(self) -> Mapping[str, Any]:
        return {"kind": "beat"}

    def on_message(self, head: Mapping[str, Any]) -> None:
        with self.changed:
            self.messages.append(head)
            self.changed.notify_all()

    def on_driver_lost(self, reason: str) -> None:
        with self.changed:
            self.reason = reason
            self.changed.notify_all()

    def wait(self, condition: Callable[[], Any]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, 20)


class ReceivedMessages:
    """Collects the messages of a server except heartbeats, with their connection."""

    def __init__(self, hub: DriverServer) -> None:
        self.hub, self.received, self.connection, self.heartbeats = hub, [], 0, 0  # type: ignore[var-annotated]

    def wait(self, condition: Callable[[], Any]) -> None:
        for _ in range(200):
            if condition():
                return
            for event in self.hub.wait(0.1):
                if isinstance(event, ConnectionOpened):
                    self.connection = event.connection
                elif isinstance(event, MessageReceived) and event.head["kind"] == "beat":
                    self.heartbeats += 1
                elif isinstance(event, MessageReceived):
                    self.received.append(event.head.get("n", event.head["kind"]))
                elif isinstance(event, ConnectionClosed):
                    self.received.append("closed")
        raise AssertionError(self.received)


@pytest.fixture
def start_connection() -> Iterator[Starts]:
    connections: list[DriverConnection] = []

    def start(port: int, **options: Any) -> tuple[DriverConnection, RecordingListener]:
        recorder = RecordingListener()
        connection = DriverConnection(
            f"127.0.0.1:{port}",
            options.pop("secret", SECRET),
            recorder,
            **{"reconnect_timeout_s": 30.0, "heartbeat_interval_s": 0.05, **options},
        )
        connections.append(connection)
        connection.start()
        return connection, recorder

    yield start
    for connection in connections:
        connection.close()


def test_unacknowledged_messages_are_resent_to_next_driver(start_connection: Starts) -> None:
    first = DriverServer(SECRET, host="127.0.0.1")
    connection, _ = start_connection(first.port)
    received = ReceivedMessages(first)
    for n in range(3):
        connection.send({"kind": "finished", "n": n}, key=n)
    connection.send({"kind": "progress"})
    received.wait(lambda: {0, 1, 2} <= set(received.received))
    assert received.received[0] == "hello"
    connection.acknowledge([1])
    first.close()
    connection.send({"kind": "finished", "n": 3}, key=3)
    connection.send({"kind": "progress"})  # sent once, without a driver

    second = DriverServer(SECRET, host="127.0.0.1", port=first.port)
    received = ReceivedMessages(second)
    received.wait(lambda: received.heartbeats > 0)  # the acknowledgements that end all resends
    assert received.received == ["hello", 0, 2, 3]
    assert connection.unacknowledged() == [0, 2, 3] and not connection.wait_until_acknowledged(0)
    second.send(received.connection, {"kind": "acknowledge"})
    connection.acknowledge([0, 2, 3])
    assert connection.wait_until_acknowledged(0)
    second.close()


def test_heartbeats_are_automatic_and_messages_arrive_in_order(start_connection: Starts) -> None:
    hub = DriverServer(SECRET, host="127.0.0.1")
    _, recorder = start_connection(hub.port)
    received = ReceivedMessages(hub)
    received.wait(lambda: received.heartbeats >= 3)
    for n in range(100):
        hub.send(received.connection, {"n": n})
    recorder.wait(lambda: len(recorder.messages) == 100)
    assert [head["n"] for head in recorder.messages] == list(range(100))
    hub.close()


def test_connection_gives_up_without_driver(start_connection: Starts) -> None:
    hub = DriverServer(SECRET, host="127.0.0.1")
    hub.close()
    _, recorder = start_connection(hub.port, reconnect_timeout_s=0.2)
    recorder.wait(lambda: recorder.reason)
    assert "no driver answered" in recorder.reason


def test_driver_with_wrong_secret_is_refused(start_connection: Starts) -> None:
    hub = DriverServer(SECRET, host="127.0.0.1")
    _, recorder = start_connection(hub.port, reconnect_timeout_s=0.2, secret=b"another")
    recorder.wait(lambda: recorder.reason)
    assert "does not know the secret" in recorder.reason and hub.wait(0) == []
    hub.close()


def test_restarted_drivers_lose_no_message(start_connection: Starts) -> None:
    """The driver restarts repeatedly while messages arrive: the next driver receives exactly the
    unacknowledged messages."""
    hub = DriverServer(SECRET, host="127.0.0.1")
    port = hub.port
    connection, _ = start_connection(port)
    acknowledged: set[int] = set()
    for n in range(8):
        connection.send({"kind": "finished", "n": n}, key=n)
        received = ReceivedMessages(hub)
        received.wait(lambda options=received.received, n=n: n in options)  # type: ignore[misc]
        numbers = [number for number in received.received if isinstance(number, int)]
        assert not acknowledged & set(numbers) and numbers == sorted(set(numbers))
        if n % 3 == 0:
            connection.acknowledge(numbers)
            acknowledged |= set(numbers)
        hub.close()
        hub = DriverServer(SECRET, host="127.0.0.1", port=port)
    assert acknowledged | set(connection.unacknowledged()) == set(range(8))  # type: ignore[arg-type]
    hub.close()


def test_foreign_open_connections_do_not_block_workers(caplog: pytest.LogCaptureFixture) -> None:
    served = threading.Event()
    listening = listener.ConnectionListener(
        b"secret", lambda _wire: served.set(), host="127.0.0.1", handshake_timeout_s=60.0
    )
    strangers = [
        socket.create_connection(("127.0.0.1", listening.port))
        for _ in range(listener._MAX_UNAUTHENTICATED + 50)
    ]
    try:
        handshake.connect(f"127.0.0.1:{listening.port}", b"secret").close()
        assert served.wait(10)
        reasons = [
            str(record.args[1])
            for record in caplog.records
            if "refused" in record.getMessage() and isinstance(record.args, tuple)
        ]
        assert len(reasons) == len(set(reasons)) <= 3, (
            "each reason is logged once in a while, however many come"
        )
    finally:
        for connection in strangers:
            connection.close()
        listening.close()
