"""The small HTTP client against servers that answer in every way there is, and in some that there should not
be."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from hopyard.api_client.client import Client
from hopyard.errors import HopyardError, ServerUnavailable, SpecError

OK = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def serve_connections(*connections: Callable[[socket.socket], None]) -> Iterator[Client]:
    """A server that handles its connections with these handlers in order, and closes each at the end."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for handle in connections:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            with accepted:
                accepted.settimeout(30)
                with suppress(ConnectionError):  # a client may disconnect before its response is sent
                    handle(accepted)

    thread = threading.Thread(target=serve)
    thread.start()
    client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", "hop_token", timeout_s=30)
    try:
        yield client
    finally:
        client.close()
        listener.shutdown(socket.SHUT_RDWR)  # wakes a thread that accepts
        listener.close()
        thread.join()


def request(connection: socket.socket) -> bytes:
    """Reads one complete request."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            return data
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b": ")
        if name == b"Content-Length":
            while len(body) < int(value):
                body += connection.recv(65536)
        elif name == b"Transfer-Encoding":
            while not body.endswith(b"0\r\n\r\n"):
                body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def respond_with(*answers: bytes) -> Callable[[socket.socket], None]:
    """Returns a handler that sends one response per request, short ones byte by byte to test every
    boundary."""

    def handle(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for answer in answers:
            request(connection)
            if len(answer) < 500:
                for byte in answer:
                    connection.sendall(bytes([byte]))
            else:
                connection.sendall(answer)

    return handle


CHUNKED = (
    OK + b'transfer-encoding: chunked\r\n\r\n3\r\n{"a\r\n4;x=y\r\n": 1\r\n1\r\n}\r\n0\r\ntrailer: x\r\n\r\n'
)


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (OK + b'Content-Length: 8\r\n\r\n{"a": 1}', {"a": 1}),
        (CHUNKED, {"a": 1}),
        (OK + b"content-length: 0\r\n\r\n", None),
        (b"HTTP/1.1 204 No Content\r\n\r\n", None),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 4\r\n\r\nnull", None),
        (b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\n7", 7),
    ],
)
def test_connection_is_reused_after_every_kind_of_response(answer: bytes, value: object) -> None:
    with serve_connections(respond_with(answer, answer)) as client:
        assert client.get("/x") == value
        assert client.get("/x") == value


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"\r\n[1]",
        b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n[1]",
        OK + b"Connection: close\r\nContent-Length: 3\r\n\r\n[1]",
    ],
)
def test_closed_connection_is_reopened(answer: bytes) -> None:
    with serve_connections(respond_with(answer), respond_with(answer)) as client:
        assert client.get("/x") == [1]
        assert client.get("/x") == [1]


def test_lines_and_exact_parts_across_chunks() -> None:
    body = (
        b"".join(
            b"%x\r\n%b\r\n" % (len(part), part) for part in (b'{"k"', b":1}\nab", b"cdef", b"\n", b"gh\nrest")
        )
        + b"0\r\n\r\n"
    )
    with (
        serve_connections(
            respond_with(OK + b"Transfer-Encoding: chunked\r\nX-Length: 5\r\n\r\n" + body)
        ) as client,
        client.open("GET", "/x") as response,
    ):
        assert response.headers.get("x-length") == response.headers["X-Length"] == "5"
        assert response.readline() == b'{"k":1}\n'
        assert response.read_exactly(6) == b"abcdef"
        assert response.readline() == b"\n"
        assert response.readline() == b"gh\n"
        assert response.read() == b"rest"
        assert response.readline() == b"" and response.read() == b""


def test_available_bytes_are_read_at_once() -> None:
    """A live stream is read as it arrives, not when a buffer is full."""
    go_on = threading.Event()

    def handle(connection: socket.socket) -> None:
        request(connection)
        connection.sendall(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        assert go_on.wait(30)
        connection.sendall(b"6\r\nsecond\r\n0\r\n\r\n")

    with serve_connections(handle) as client, client.open("GET", "/x") as response:
        assert response.read(1000) == b"first"
        go_on.set()
        assert response.read(1000) == b"second"
        assert response.read(1000) == b""


def test_unread_response_does_not_mix_with_the_next() -> None:
    with serve_connections(
        respond_with(OK + b"Content-Length: 3\r\n\r\n[1]"), respond_with(OK + b"Content-Length: 3\r\n\r\n[2]")
    ) as client:
        with client.open("GET", "/x"):
            pass
        assert client.get("/x") == [2]


def test_connection_closed_by_the_server_is_reopened() -> None:
    answer = OK + b"Content-Length: 3\r\n\r\n[1]"
    with serve_connections(respond_with(answer), respond_with(answer)) as client:
        assert client.get("/x") == [1]
        assert client.post("/x", {"a": 1}) == [1]
    with serve_connections(respond_with(answer), respond_with(answer)) as client:
        assert client.get("/x") == [1]
        with pytest.raises(ServerUnavailable), client.open("POST", "/x", body=b"once", retry=False):
            pass


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 2",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        OK + b"Content-Length: 5\r\n\r\n[1",
        OK + b"Content-Length: x\r\n\r\n",
        OK + b"no colon\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\n[1",
        OK + b"a: " + b"x" * 70_000,
        OK + b"".join(b"h%d: x\r\n" % n for n in range(1000)) + b"\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\n[1]\r\n",
    ],
)
def test_malformed_response_raises_server_unavailable(answer: bytes) -> None:
    with (
        serve_connections(respond_with(answer), respond_with(answer)) as client,
        pytest.raises(ServerUnavailable),
    ):
        client.get("/x")


def test_broken_new_connection_is_retried_for_idempotent_requests_only() -> None:
    def close_early(connection: socket.socket) -> None:
        request(connection)

    answer = respond_with(OK + b"Content-Length: 3\r\n\r\n[1]")
    with serve_connections(close_early, close_early, answer) as client:
        assert client.get("/x") == [1]
    with serve_connections(close_early, answer) as client, pytest.raises(ServerUnavailable):
        client.post("/x", {"a": 1})
    with serve_connections(*[close_early] * 7) as client, pytest.raises(ServerUnavailable):
        client.get("/x")


def test_refusal_before_the_body_was_read_is_raised() -> None:
    def refuse(connection: socket.socket) -> None:
        connection.recv(1024)
        body = b'{"error": {"code": "storage_full", "message": "no space", "hints": []}}'
        connection.sendall(b"HTTP/1.1 507 Full\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 20):  # a close with bytes unread would throw the answer away
            pass

    with serve_connections(refuse) as client, pytest.raises(HopyardError, match="no space"):
        client.put_blob("0" * 64, b"x" * (8 << 20))


def test_body_in_chunks() -> None:
    requests: list[bytes] = []

    def handle(connection: socket.socket) -> None:
        requests.append(request(connection))
        connection.sendall(OK + b"Content-Length: 0\r\n\r\n")

    with (
        serve_connections(handle) as client,
        client.open("POST", "/x", body=iter([b"one", b"", b"three"])) as response,
    ):
        assert response.read() == b""
    assert requests[0].endswith(b"\r\n\r\n3\r\none\r\n5\r\nthree\r\n0\r\n\r\n")
    assert b"Authorization: Bearer hop_token\r\n" in requests[0]


def test_connection_refused_raises_server_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = Client(f"http://127.0.0.1:{port}", "t")
    with pytest.raises(ServerUnavailable, match="no server answers"):
        client.get("/x")


def test_request_with_retry_after_is_retried_and_others_are_not() -> None:
    requests: list[bytes] = []

    def ask_to_retry(connection: socket.socket) -> None:
        requests.append(request(connection))
        connection.sendall(
            b"HTTP/1.1 429 Too Many\r\nRetry-After: 0\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
        )

    def answer(connection: socket.socket) -> None:
        requests.append(request(connection))
        connection.sendall(OK + b"Content-Length: 2\r\n\r\n{}")

    def unavailable(connection: socket.socket) -> None:
        request(connection)
        connection.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")

    with serve_connections(ask_to_retry, ask_to_retry, answer, unavailable) as client:
        assert client.post("/runs", {"a": 1}) == {}
        assert len(requests) == 3
        assert len(set(requests)) == 1
        client.close()
        with pytest.raises(HopyardError):
            client.get("/runs")


def test_non_idempotent_request_is_not_retried_after_a_lost_response() -> None:
    requests: list[bytes] = []

    def answer_one(connection: socket.socket) -> None:
        requests.append(request(connection))
        connection.sendall(OK + b"Content-Length: 2\r\n\r\n{}")
        requests.append(request(connection))  # and ends without an answer

    def answer(connection: socket.socket) -> None:
        requests.append(request(connection))
        connection.sendall(OK + b"Content-Length: 2\r\n\r\n{}")

    with serve_connections(answer_one, answer_one, answer) as client:
        client.get("/health")
        with pytest.raises(ServerUnavailable, match="closed the connection"):
            client.call("POST", "/tokens", json_body={"name": "a"}, send_once=True)
        client.get("/health")
        assert client.post("/blobs/missing", {"digests": []}) == {}
    assert [line.split(b" HTTP")[0].split(b"/")[-1] for line in requests] == [
        b"health",
        b"tokens",
        b"health",
        b"missing",
        b"missing",
    ]


@pytest.mark.parametrize(
    "url",
    [
        "http://x:99999",
        "http://x:abc",
        "http://x:0",
        "http://x:-1",
        "http://[::1",
        "https://x",
        "http://",
        "x:80",
        "",
    ],
)
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(SpecError, match="is not the address of a server"):
        Client(url, "hop_token")
