"""Frames and the proof of the secret: an invalid frame ends only its connection."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.errors import AuthError
from hopyard.mop_runtime.transport.driver_server import (
    ConnectionClosed,
    ConnectionOpened,
    DriverServer,
    MessageReceived,
)
from hopyard.mop_runtime.transport.framing import (
    MAX_HEAD_BYTES,
    ConnectionBroken,
    FramedConnection,
    join_address,
    split_address,
)
from hopyard.mop_runtime.transport.handshake import connect
from hopyard.mop_runtime.transport.listener import ConnectionListener

SECRET = b"s" * 32


def connection_pair(**options: Any) -> tuple[FramedConnection, socket.socket]:
    connection, peer = socket.socketpair()
    return FramedConnection(connection, **options), peer


json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), json, max_size=5), st.lists(st.binary(max_size=3000), max_size=3))
def test_sent_frames_are_received(head: dict[str, Any], payload: list[bytes]) -> None:
    connection, peer = connection_pair()
    other = FramedConnection(peer)
    sender = threading.Thread(target=connection.send, args=(head, *payload))
    sender.start()
    assert other.receive() == (head, b"".join(payload))
    sender.join()
    connection.close()
    other.close()


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=4), st.sampled_from([1, 3, 7, 100, 1000]))
def test_frames_may_arrive_in_any_pieces(payloads: list[bytes], step: int) -> None:
    """Pieces of one frame, or of several at once."""
    connection, peer = connection_pair()
    data = b"".join(struct.pack("!IQ", 8, len(payload)) + b'{"a": 1}' + payload for payload in payloads)

    def drip() -> None:
        for begin in range(0, len(data), step):
            peer.sendall(data[begin : begin + step])

    sender = threading.Thread(target=drip)
    sender.start()
    assert [connection.receive() for _ in payloads] == [({"a": 1}, payload) for payload in payloads]
    sender.join()
    connection.close()
    peer.close()


@given(st.binary(max_size=400))
@settings(max_examples=300)
def test_invalid_bytes_raise_connection_broken(noise: bytes) -> None:
    connection, peer = connection_pair(payload_limit=1000)
    peer.sendall(noise)
    peer.close()
    with pytest.raises(ConnectionBroken):
        while True:
            connection.receive()
    connection.close()


@pytest.mark.parametrize(
    ("bytes_", "expected"),
    [
        (struct.pack("!IQ", 0xFFFFFFFF, 0), "at most"),
        (struct.pack("!IQ", 2, 1 << 63) + b"{}", "at most"),
        (struct.pack("!IQ", 3, 0) + b"[1]", "not a JSON object"),
        (struct.pack("!IQ", 4, 0) + b"\xff\xfe{}", "not JSON"),
        (struct.pack("!IQ", 200_000, 0) + b"[" * 200_000, "not JSON"),
        (struct.pack("!IQ", 10_000, 0) + b'{"a": ' + b"9" * 9993 + b"}", "not JSON"),
        (struct.pack("!IQ", 10, 0) + b"{", "closed"),
    ],
    ids=["huge head", "huge payload", "a list", "not UTF-8", "deep", "long number", "cut short"],
)
def test_invalid_frames_are_refused_with_reason(bytes_: bytes, expected: str) -> None:
    connection, peer = connection_pair()
    sender = threading.Thread(target=lambda: (peer.sendall(bytes_), peer.close()))
    sender.start()
    with pytest.raises(ConnectionBroken, match=expected):
        connection.receive()
    connection.close()
    sender.join()


def test_head_that_is_too_long_is_not_sent() -> None:
    connection, peer = connection_pair()
    with pytest.raises(ValueError, match="at most"):
        connection.send({"a": "x" * MAX_HEAD_BYTES})
    connection.send({})  # and nothing of it went out
    assert peer.recv(100) == struct.pack("!IQ", 2, 0) + b"{}"
    connection.close()
    peer.close()


def test_addresses_are_parsed() -> None:
    assert split_address("host:80") == ("host", 80) and split_address("[::1]:80") == ("::1", 80)
    assert join_address("::1", 80) == "[::1]:80" and join_address("a", 1) == "a:1"
    for bad in ("", "host", "host:", ":80", "host:0", "host:99999", "host:x"):
        with pytest.raises(ValueError, match="not an address"):
            split_address(bad)


# -- proof ---------------------------------------------------------------------------------------------------


@pytest.fixture
def hub() -> Iterator[DriverServer]:
    server = DriverServer(SECRET, host="127.0.0.1")
    yield server
    server.close()


def wait_for_events(hub: DriverServer, until: Callable[[list[Any]], bool]) -> list[Any]:
    seen: list[Any] = []
    for _ in range(200):
        seen += hub.wait(0.1)
        if until(seen):
            return seen
    raise AssertionError(seen)


def test_peer_with_secret_is_accepted(hub: DriverServer) -> None:
    wire = connect(f"127.0.0.1:{hub.port}", SECRET)
    wire.send({"kind": "hello"}, b"payload")
    opened, came = wait_for_events(hub, lambda seen: len(seen) == 2)
    assert isinstance(opened, ConnectionOpened) and came == MessageReceived(
        opened.connection, {"kind": "hello"}, b"payload"
    )
    assert hub.seconds_since_message(opened.connection) < 60
    assert hub.send(opened.connection, {"kind": "open"}, {"kind": "train"})
    assert [wire.receive(), wire.receive()] == [({"kind": "open"}, b""), ({"kind": "train"}, b"")]
    wire.close()
    assert wait_for_events(hub, bool) == [
        ConnectionClosed(opened.connection, "the peer closed the connection")
    ]
    assert not hub.send(opened.connection, {}) and hub.seconds_since_message(opened.connection) == float(
        "inf"
    )


def test_peer_without_secret_is_refused_by_both_sides(
    hub: DriverServer, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(AuthError, match="does not know the secret"):  # the server proves itself first
        connect(f"127.0.0.1:{hub.port}", b"another")
    # A client that answers the server with a proof of an empty secret.
    sock = socket.create_connection(("127.0.0.1", hub.port))
    sock.sendall(b"HOPLINK1" + bytes(32))
    assert sock.recv(100)
    sock.sendall(bytes(32))
    sock.settimeout(10)
    while sock.recv(100):
        pass
    batches = [hub.wait(0.1) for _ in range(50) if "does not know the secret" not in caplog.text]
    assert not any(batches) and "does not know the secret" in caplog.text
    sock.close()


def test_handshake_proof_cannot_be_replayed(hub: DriverServer) -> None:
    """The server's proof for one client cannot be used by this client as its own proof."""
    sock = socket.create_connection(("127.0.0.1", hub.port))
    sock.sendall(b"HOPLINK1" + bytes(32))
    answer = b""
    while len(answer) < 72:
        answer += sock.recv(72 - len(answer))
    sock.sendall(answer[-32:])
    sock.settimeout(10)
    assert sock.recv(1) == b""
    sock.close()


@given(st.binary(max_size=200))
@settings(max_examples=50, deadline=None)
def test_invalid_bytes_on_port_affect_no_connection(noise: bytes) -> None:
    hub = _shared_hub()
    sock = socket.create_connection(("127.0.0.1", hub.port))
    sock.sendall(noise)
    sock.close()
    wire = connect(f"127.0.0.1:{hub.port}", SECRET)
    wire.send({"still": "there"})
    wait_for_events(hub, lambda seen: any(isinstance(event, MessageReceived) for event in seen))
    wire.close()


_hubs: list[DriverServer] = []


def _shared_hub() -> DriverServer:
    if not _hubs:
        _hubs.append(DriverServer(SECRET, host="127.0.0.1"))
    return _hubs[0]


def teardown_module() -> None:
    for hub in _hubs:
        hub.close()


def test_unauthenticated_connection_times_out() -> None:
    listener = ConnectionListener(SECRET, lambda _: None, host="127.0.0.1", handshake_timeout_s=0.1)
    sock = socket.create_connection(("127.0.0.1", listener.port))
    sock.settimeout(10)
    assert sock.recv(1) == b""
    sock.close()
    listener.close()


def test_oversized_frame_ends_only_its_connection(hub: DriverServer) -> None:
    big, small = (connect(f"127.0.0.1:{hub.port}", SECRET) for _ in range(2))
    big._sock.sendall(struct.pack("!IQ", 2, 1 << 40) + b"{}")
    seen = wait_for_events(hub, lambda seen: any(isinstance(event, ConnectionClosed) for event in seen))
    assert "at most" in next(event for event in seen if isinstance(event, ConnectionClosed)).reason
    small.send({"a": 1})
    wait_for_events(hub, lambda seen: any(isinstance(event, MessageReceived) for event in seen))
    big.close()
    small.close()


def test_server_wakes_and_port_is_reused_at_once(hub: DriverServer) -> None:
    hub.wake()
    assert hub.wait(60) == []
    wire = connect(f"127.0.0.1:{hub.port}", SECRET)
    wait_for_events(hub, bool)
    hub.close()
    with pytest.raises(ConnectionBroken):
        wire.receive()
    second_server = DriverServer(SECRET, host="127.0.0.1", port=hub.port)
    second_server.close()


def test_connection_needs_secret() -> None:
    with pytest.raises(ValueError, match="secret"):
        DriverServer(b"")
