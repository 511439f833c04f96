"""A worker's end of the link: what matters is told until it is acknowledged, over as many connections as it
takes."""

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
Starts = Callable[..., "tuple[DriverConnection, Ear]"]


class Ear:
    def __init__(self) -> None:
        self.heard: list[Mapping[str, Any]] = []
        self.why = ""
        self.changed = threading.Condition()

    def make_hello(self, local_host: str) -> Mapping[str, Any]:
        return {"kind": "hello", "host": local_host}

    def make_heartbeat(self) -> Mapping[str, Any]:
        return {"kind": "beat"}

    def on_message(self, head: Mapping[str, Any]) -> None:
        with self.changed:
            self.heard.append(head)
            self.changed.notify_all()

    def on_driver_lost(self, reason: str) -> None:
        with self.changed:
            self.why = reason
            self.changed.notify_all()

    def wait(self, what: Callable[[], Any]) -> None:
        with self.changed:
            assert self.changed.wait_for(what, 20)


class Heard:
    """What a hub hears but for beats, with the connection it came over."""

    def __init__(self, hub: DriverServer) -> None:
        self.hub, self.said, self.connection, self.beats = hub, [], 0, 0  # type: ignore[var-annotated]

    def wait(self, what: Callable[[], Any]) -> None:
        for _ in range(200):
            if what():
                return
            for event in self.hub.wait(0.1):
                if isinstance(event, ConnectionOpened):
                    self.connection = event.connection
                elif isinstance(event, MessageReceived) and event.head["kind"] == "beat":
                    self.beats += 1
                elif isinstance(event, MessageReceived):
                    self.said.append(event.head.get("n", event.head["kind"]))
                elif isinstance(event, ConnectionClosed):
                    self.said.append("closed")
        raise AssertionError(self.said)


@pytest.fixture
def start() -> Iterator[Starts]:
    lines: list[DriverConnection] = []

    def begin(port: int, **said: Any) -> tuple[DriverConnection, Ear]:
        ear = Ear()
        line = DriverConnection(
            f"127.0.0.1:{port}",
            said.pop("secret", SECRET),
            ear,
            **{"reconnect_timeout_s": 30.0, "heartbeat_interval_s": 0.05, **said},
        )
        lines.append(line)
        line.start()
        return line, ear

    yield begin
    for line in lines:
        line.close()


def test_unacknowledged_messages_are_resent_to_next_driver(start: Starts) -> None:
    first = DriverServer(SECRET, host="127.0.0.1")
    line, _ = start(first.port)
    heard = Heard(first)
    for n in range(3):
        line.send({"kind": "finished", "n": n}, key=n)
    line.send({"kind": "progress"})
    heard.wait(lambda: {0, 1, 2} <= set(heard.said))
    assert heard.said[0] == "hello"
    line.acknowledge([1])
    first.close()
    line.send({"kind": "finished", "n": 3}, key=3)
    line.send({"kind": "progress"})  # said once, and nobody was there

    second = DriverServer(SECRET, host="127.0.0.1", port=first.port)
    heard = Heard(second)
    heard.wait(lambda: heard.beats > 0)  # which say that nothing is told again any more
    assert heard.said == ["hello", 0, 2, 3]
    assert line.unacknowledged() == [0, 2, 3] and not line.wait_until_acknowledged(0)
    second.send(heard.connection, {"kind": "acknowledge"})
    line.acknowledge([0, 2, 3])
    assert line.wait_until_acknowledged(0)
    second.close()


def test_heartbeats_are_automatic_and_messages_arrive_in_order(start: Starts) -> None:
    hub = DriverServer(SECRET, host="127.0.0.1")
    _, ear = start(hub.port)
    heard = Heard(hub)
    heard.wait(lambda: heard.beats >= 3)
    for n in range(100):
        hub.send(heard.connection, {"n": n})
    ear.wait(lambda: len(ear.heard) == 100)
    assert [head["n"] for head in ear.heard] == list(range(100))
    hub.close()


def test_connection_gives_up_without_driver(start: Starts) -> None:
    hub = DriverServer(SECRET, host="127.0.0.1")
    hub.close()
    _, ear = start(hub.port, reconnect_timeout_s=0.2)
    ear.wait(lambda: ear.why)
    assert "no driver answered" in ear.why


def test_driver_with_wrong_secret_is_refused(start: Starts) -> None:
    hub = DriverServer(SECRET, host="127.0.0.1")
    _, ear = start(hub.port, reconnect_timeout_s=0.2, secret=b"another")
    ear.wait(lambda: ear.why)
    assert "does not know the secret" in ear.why and hub.wait(0) == []
    hub.close()


def test_restarted_drivers_lose_no_message(start: Starts) -> None:
    """Restarted again and again while news comes: what each driver acknowledged, and no more, is not told to
    the next."""
    hub = DriverServer(SECRET, host="127.0.0.1")
    port = hub.port
    line, _ = start(port)
    acknowledged: set[int] = set()
    for n in range(8):
        line.send({"kind": "finished", "n": n}, key=n)
        heard = Heard(hub)
        heard.wait(lambda said=heard.said, n=n: n in said)  # type: ignore[misc]
        told = [one for one in heard.said if isinstance(one, int)]
        assert not acknowledged & set(told) and told == sorted(set(told))
        if n % 3 == 0:
            line.acknowledge(told)
            acknowledged |= set(told)
        hub.close()
        hub = DriverServer(SECRET, host="127.0.0.1", port=port)
    assert acknowledged | set(line.unacknowledged()) == set(range(8))  # type: ignore[arg-type]
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
        for one in strangers:
            one.close()
        listening.close()
