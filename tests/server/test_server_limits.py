"""Limits of the server over real sockets: what clients and users may use, while others are still served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from hopyard.config.server_limits import LimitSettings
from hopyard.config.settings import ServerSettings
from hopyard.errors import ServerUnavailable, TooManyRequests
from hopyard.server.blob_frames import MAX_FRAMES
from hopyard.server.body_memory import CLOSED_KEY, BodyMemory
from hopyard.server.keyed_locks import KeyedLocks
from hopyard.server.protocol import MAX_HEADER_BYTES, MAX_HEADERS, MAX_URL_BYTES, AllowedHosts
from hopyard.server.rates import TokenBucket, UserRateLimits
from tests.server.api_server import TOKEN, ApiServer, run_scenario
from tests.server.test_stream_followers import listening_port

HEALTH = b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\n"
PUT = b"PUT /api/v1/blobs/%b HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n"
Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]
QUICK = LimitSettings(header_timeout_s=0.4, body_timeout_s=0.8)


def serve(
    folder: Path,
    scenario: Callable[[ApiServer, int], Awaitable[None]],
    limits: LimitSettings | None = None,
    hosts: tuple[str, ...] = (),
) -> None:
    async def whole(api: ApiServer) -> None:
        async with listening_port(api, ServerSettings(hosts=hosts, limits=limits or LimitSettings())) as port:
            await scenario(api, port)

    run_scenario(folder, whole, loops=False, limits=limits)


async def connect(port: int) -> Link:
    return await asyncio.open_connection("127.0.0.1", port)


async def send_request(port: int, request: bytes) -> tuple[int, dict[str, str], Any]:
    """Sends a request and returns status, headers and JSON of the response."""
    reader, writer = await connect(port)
    try:
        writer.write(request)
        return await read_response(reader)
    finally:
        writer.close()


async def read_response(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], Any]:
    async with asyncio.timeout(30):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
    return int(first.split()[1]), headers, json.loads(body)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Whether the server closes the connection, within a deadline."""
    async with asyncio.timeout(30):
        try:
            return await reader.read() == b""
        except ConnectionError:
            return True


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"a" * (MAX_URL_BYTES + 1)), 414),
        (b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n" % (b"a" * (MAX_URL_BYTES * 4)), 414),
        (HEALTH + b"X-A: %b\r\n\r\n" % (b"a" * MAX_HEADER_BYTES), 431),
        (HEALTH + b"X-A: a\r\n" * (MAX_HEADERS + 1) + b"\r\n", 431),
        (HEALTH.replace(b"localhost", b"evil.example:80") + b"\r\n", 421),
        (HEALTH.replace(b"localhost", b"127.0.0.1.evil.example") + b"\r\n", 421),
        (b"\x16\x03\x01 no http\r\n\r\n", 400),
    ],
)
def test_request_over_a_limit_is_refused_in_json_and_closed(
    tmp_path: Path, request_head: bytes, status: int
) -> None:
    async def scenario(_stage: ApiServer, port: int) -> None:
        reader, writer = await connect(port)
        writer.write(request_head)
        got, headers, body = await read_response(reader)
        assert (got, headers["content-type"], headers["x-content-type-options"]) == (
            status,
            "application/json",
            "nosniff",
        )
        assert body["error"]["message"]
        assert await is_closed(reader)
        writer.close()
        assert (await send_request(port, HEALTH + b"\r\n"))[0] == 200

    serve(tmp_path, scenario)


def test_endless_header_is_cut_off_before_it_fills_memory(tmp_path: Path) -> None:
    async def scenario(_stage: ApiServer, port: int) -> None:
        reader, writer = await connect(port)
        sent = 0
        writer.write(HEALTH + b"X-A: ")
        with pytest.raises(ConnectionError):
            while sent < 2**30:
                writer.write(b"a" * 2**20)
                sent += 2**20
                await asyncio.wait_for(writer.drain(), 30)
                if reader.at_eof():
                    raise ConnectionResetError
        assert sent < 2**28
        writer.close()

    serve(tmp_path, scenario, QUICK)


def test_stalled_connection_is_closed(tmp_path: Path) -> None:
    """Stalled connections (at the start, in the headers, in the body) are closed; a regular one is served."""

    async def scenario(api: ApiServer, port: int) -> None:
        silent, half, body = await connect(port), await connect(port), await connect(port)
        half[1].write(HEALTH)
        body[1].write(PUT % (b"0" * 64) + b"Content-Length: 200000\r\n\r\n" + b"x" * 150_000)
        follower = await connect(port)
        run = await api.submit(plan=0)
        follower[1].write(
            (
                f"GET /api/v1/runs/{run['id']}/follow HTTP/1.1\r\nHost: localhost\r\n"
                f"Authorization: Bearer {TOKEN}\r\n\r\n"
            ).encode()
        )
        await follower[0].readuntil(b'"kind":"state"')
        assert await is_closed(silent[0])
        assert (await read_response(half[0]))[0] == 408
        assert (await read_response(body[0]))[0] == 408
        assert await is_closed(half[0])
        assert await is_closed(body[0])
        assert not follower[0].at_eof()
        assert (await send_request(port, HEALTH + b"\r\n"))[0] == 200
        for _, writer in (silent, half, body, follower):
            writer.close()

    serve(tmp_path, scenario, QUICK)


def test_idle_connections_are_closed_for_new_ones(tmp_path: Path) -> None:
    """With more half-open connections than the limit, every new connection is served."""

    async def scenario(_stage: ApiServer, port: int) -> None:
        attack = [await connect(port) for _ in range(200)]
        for _, writer in attack:
            writer.write(HEALTH)
        for _ in range(20):
            assert (await send_request(port, HEALTH + b"\r\n"))[0] == 200
        for _, writer in attack:
            writer.close()

    serve(tmp_path, scenario, LimitSettings(connections=16, connections_per_peer=16))


def test_excess_connection_gets_retry_after(tmp_path: Path) -> None:
    async def scenario(api: ApiServer, port: int) -> None:
        run = await api.submit(plan=0)
        head = (
            f"GET /api/v1/runs/{run['id']}/follow HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {TOKEN}\r\n\r\n"
        ).encode()
        busy = [await connect(port) for _ in range(16)]
        for reader, writer in busy:
            writer.write(head)
            await reader.readuntil(b'"kind":"state"')
        status, headers, body = await send_request(port, HEALTH + b"\r\n")
        assert (status, headers["retry-after"], body["error"]["code"]) == (503, "1", "server_unavailable")
        busy.pop()[1].close()

        async def served() -> bool:
            return (await send_request(port, HEALTH + b"\r\n"))[0] == 200

        await api.wait_until(served)
        for _, writer in busy:
            writer.close()

    serve(tmp_path, scenario, LimitSettings(connections=4096, connections_per_peer=16))


def test_configured_hosts_and_ip_addresses_are_allowed() -> None:
    hosts = AllowedHosts(["Hop.Example.org"])
    for good in (
        b"localhost",
        b"LOCALHOST:8765",
        b"127.0.0.1:1",
        b"[::1]:80",
        b"10.1.2.3",
        b"hop.example.org:443",
        b"hop.example.org.",
        b"",
    ):
        assert hosts.is_allowed(good), good
    for host in (
        b"evil.org",
        b"xhop.example.org",
        b"localhost.evil.org",
        b"127.0.0.1.nip.io",
        b"a b",
        b"localhost:80@evil.org",
        b"localhost\x00",
    ):
        assert not hosts.is_allowed(host), host


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
def test_header_of_200_kb_in_one_write_is_refused(tmp_path: Path, end: bytes) -> None:
    async def scenario(_stage: ApiServer, port: int) -> None:
        assert (await send_request(port, HEALTH + b"X-A: " + b"a" * 200_000 + end))[0] == 431

    serve(tmp_path, scenario)


def test_body_memory_waits_and_leaves_a_share_for_other_users() -> None:
    async def scenario() -> None:
        memory = BodyMemory(1000_000, timeout_s=0.05)
        first, second, other = memory.lease("bob"), memory.lease("bob"), memory.lease("alice")
        await first.announce_size(450_000)
        with pytest.raises(ServerUnavailable) as refused:
            await second.announce_size(100_000)  # more than half of the memory for one user
        assert refused.value.retry_after_s
        await other.announce_size(500_000)
        waiting = asyncio.create_task(BodyMemory.acquire(memory, "carol", 100_000))
        await asyncio.sleep(0)
        first.release()
        await waiting
        other.release()
        memory.release("carol", 100_000)
        assert memory.used_bytes == 0

    asyncio.run(scenario())


def test_two_users_cannot_use_all_body_memory() -> None:
    async def scenario() -> None:
        memory = BodyMemory(1000_000, timeout_s=0)
        for user in ("bob", "carol"):
            with pytest.raises(ServerUnavailable):
                for _ in range(100):
                    await memory.acquire(user, 100_000)
        assert memory.used_bytes <= 800_000
        await memory.acquire("alice", 100_000)

    asyncio.run(scenario())


def test_heavy_requests_of_a_user_run_one_at_a_time() -> None:
    async def scenario() -> None:
        turns, log, go_on = KeyedLocks(), [], asyncio.Event()

        async def request(user: str, name: str) -> None:
            async with turns.hold(user):
                log.append(name)
                await go_on.wait()

        tasks = [
            asyncio.create_task(request(*one))
            for one in (("bob", "b1"), ("bob", "b2"), ("alice", "a1"), ("bob", "b3"))
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert log == ["b1", "a1"]
        tasks[1].cancel()
        go_on.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert log == ["b1", "a1", "b3"]
        assert not turns._locks

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "request_text",
    [
        b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"1\r\na\r\n" * 20_000,
        (HEALTH + b"\r\n") * 1000,
    ],
)
def test_tiny_chunks_and_pipelined_requests_are_refused(tmp_path: Path, request_text: bytes) -> None:
    async def scenario(_stage: ApiServer, port: int) -> None:
        reader, writer = await connect(port)
        writer.write(request_text)
        async with asyncio.timeout(30):
            data = b""
            with suppress(ConnectionError):
                while part := await reader.read(65536):
                    data += part
        assert data.count(b"HTTP/1.1 200") < 50
        assert b"HTTP/1.1 40" in data
        writer.close()
        assert (await send_request(port, HEALTH + b"\r\n"))[0] == 200

    serve(tmp_path, scenario)


@pytest.mark.parametrize(
    ("begin", "chunk"),
    [
        (b"0\r\nX: ", b"a" * 50_000),
        (b"0\r\n", b"X: " + b"a" * 1000 + b"\r\n"),
        (b"4;x=", b"a" * 50_000),
        (b"", b"0" * 50_000),
    ],
    ids=["a trailer", "trailers", "an extension", "a size"],
)
def test_chunked_body_with_too_much_framing_is_refused(tmp_path: Path, begin: bytes, chunk: bytes) -> None:
    async def scenario(_stage: ApiServer, port: int) -> None:
        reader, writer = await connect(port)
        head = (
            b"POST /api/v1/blobs/missing HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        writer.write(head % TOKEN.encode() + begin)
        sent, refused = 0, asyncio.create_task(reader.readuntil(b"\r\n"))
        async with asyncio.timeout(30):
            while not refused.done() and sent < 20 * 2**20:
                writer.write(chunk)
                sent += len(chunk)
                await asyncio.sleep(0)
            assert (await refused).startswith(b"HTTP/1.1 431")
        writer.close()
        assert (await send_request(port, HEALTH + b"\r\n"))[0] == 200

    serve(tmp_path, scenario)


def test_unauthorized_body_for_a_port_is_limited_as_any_other(tmp_path: Path) -> None:
    async def scenario(_stage: ApiServer, port: int) -> None:
        reader, writer = await connect(port)
        writer.write(
            b"POST /runs/1m8d4nt4d0dxycj62rp1/ports/1/ HTTP/1.1\r\nHost: localhost\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n"
        )
        async with asyncio.timeout(60):
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 401")
            writer.write(b"0\r\nX: ")
            sent, refused = 0, asyncio.create_task(reader.readuntil(b"HTTP/1.1 431"))
            while not refused.done() and sent < 20 * 2**20:
                writer.write(b"a" * 50_000)
                sent += 50_000
                await asyncio.sleep(0)
            await refused
        writer.close()

    serve(tmp_path, scenario)


def test_chunked_body_with_an_extension_and_a_trailer_is_accepted(tmp_path: Path) -> None:
    async def scenario(_stage: ApiServer, port: int) -> None:
        head = (
            b"POST /api/v1/blobs/missing HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        ) % TOKEN.encode()
        status, _, told = await send_request(port, head + b'e;a=b\r\n{"digests":[]}\r\n0\r\nX-Sum: 1\r\n\r\n')
        assert (status, told) == (200, {"missing": []})

    serve(tmp_path, scenario)


def test_trailer_authenticates_no_client(tmp_path: Path) -> None:
    async def scenario(_stage: ApiServer, port: int) -> None:
        head = b"POST /api/v1/blobs/missing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        body = b'e\r\n{"digests":[]}\r\n0\r\nAuthorization: Bearer %b\r\n\r\n' % TOKEN.encode()
        assert (await send_request(port, head + body))[0] == 401

    serve(tmp_path, scenario)


@pytest.mark.parametrize("codings", [b"gzip, chunked", b"gzip\r\nTransfer-Encoding: chunked"])
def test_body_with_another_transfer_coding_is_refused(tmp_path: Path, codings: bytes) -> None:
    async def scenario(_stage: ApiServer, port: int) -> None:
        head = (
            b"POST /api/v1/blobs/missing HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n"
            b"Transfer-Encoding: %b\r\n\r\n"
        ) % (TOKEN.encode(), codings)
        assert (await send_request(port, head + b'e\r\n{"digests":[]}\r\n0\r\n\r\n'))[0] == 501

    serve(tmp_path, scenario)


def test_request_with_two_hosts_is_refused(tmp_path: Path) -> None:
    async def scenario(_stage: ApiServer, port: int) -> None:
        assert (await send_request(port, HEALTH + b"Host: evil.example\r\n\r\n"))[0] == 400

    serve(tmp_path, scenario)


def test_pipelined_requests_after_a_refusal_log_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(_stage: ApiServer, port: int) -> None:
        for _ in range(5):
            reader, writer = await connect(port)
            writer.write((HEALTH + b"\r\n") * 200)
            with suppress(ConnectionError):
                await reader.read()
            writer.close()
        assert (await send_request(port, HEALTH + b"\r\n"))[0] == 200
        assert not [record for record in caplog.records if record.levelname == "ERROR"]

    serve(tmp_path, scenario)


def test_stalled_uploads_of_one_user_leave_memory_for_others(tmp_path: Path) -> None:
    async def scenario(api: ApiServer, port: int) -> None:
        size = 40 * 2**20
        opened = [await connect(port) for _ in range(4)]
        for _, writer in opened:
            writer.write(PUT % (b"0" * 64) + b"Content-Length: %d\r\n\r\n" % size)
            writer.write(b"x" * 100_000)
        assert (await send_request(port, HEALTH + b"\r\n"))[0] == 200
        # small bodies pass
        await api.request(
            "PUT", "/blobs/af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262", b""
        )
        for _, writer in opened:
            writer.close()

    serve(tmp_path, scenario, LimitSettings(body_memory_bytes=64 * 2**20))


def test_unread_responses_use_bounded_memory(tmp_path: Path) -> None:
    async def scenario(api: ApiServer, port: int) -> None:
        data = b"z" * (11 * 2**20)
        digest = blake3(data).hexdigest()
        await api.request("PUT", f"/blobs/{digest}", data)
        body = json.dumps({"manifest": digest, "digests": [digest]}).encode()
        fetch = (
            b"POST /api/v1/blobs/fetch HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n"
            b"Content-Length: %d\r\n\r\n%b"
        )
        opened = [await connect(port) for _ in range(6)]
        for _, writer in opened:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(fetch % (TOKEN.encode(), len(body), body))
        memory = api.body_memory
        memory._timeout_s = 300  # a loaded machine may take longer than requests usually wait
        await api.wait_until(lambda: len(memory._waiters) == 4)
        assert memory.used_bytes <= 32 * 2**20

        async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            assert (await reader.readexactly(40 + len(data)))[40:] == data
            writer.close()

        # all at once: any two of them have the memory, and the others wait for these
        await asyncio.gather(*(read(reader, writer) for reader, writer in opened))
        await api.wait_until(lambda: memory.used_bytes == 0)

    serve(tmp_path, scenario, LimitSettings(body_memory_bytes=64 * 2**20, body_timeout_s=300))


@pytest.mark.parametrize("path", ["/health", "/runs/0"])
def test_client_disconnect_at_the_response_start_is_no_error(tmp_path: Path, path: str) -> None:
    async def scenario(api: ApiServer) -> None:
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/v1" + path,
            "query_string": b"",
            "headers": [],
            "root_path": "",
        }

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(_message: Any) -> None:
            # like uvloop
            raise RuntimeError(
                "unable to perform operation on <TCPTransport closed=True reading=False>; the handler "
                "is closed"
            )

        await api.app({**scope, "state": {CLOSED_KEY: lambda: True}}, receive, send)
        with pytest.raises(RuntimeError):
            await api.app({**scope, "state": {CLOSED_KEY: lambda: False}}, receive, send)

    run_scenario(tmp_path, scenario, loops=False)


def test_slowly_read_responses_are_aborted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One client reads nothing; one reads steadily, but would need a minute for a response allowed 0.8 s."""

    async def scenario(api: ApiServer, port: int) -> None:
        data = b"z" * (11 * 2**20)
        digest = blake3(data).hexdigest()
        await api.request("PUT", f"/blobs/{digest}", data)
        body = json.dumps({"manifest": digest, "digests": [digest]}).encode()
        fetch = (
            b"POST /api/v1/blobs/fetch HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n"
            b"Content-Length: %d\r\n\r\n%b"
        )
        silent, slow = [await connect(port) for _ in range(2)]
        silent[1].transport.pause_reading()  # type: ignore[attr-defined]
        for _, writer in (silent, slow):
            writer.write(fetch % (TOKEN.encode(), len(body), body))
        memory = api.body_memory
        await api.wait_until(lambda: memory.used_bytes)
        got = 0
        with suppress(ConnectionError):
            while piece := await slow[0].read(16 * 1024):
                got += len(piece)
                await asyncio.sleep(0.05)
        assert got < len(data)
        await api.wait_until(lambda: memory.used_bytes == 0)
        assert (await send_request(port, HEALTH + b"\r\n"))[0] == 200
        for _, writer in (silent, slow):
            writer.transport.abort()

    with caplog.at_level("WARNING", "hopyard.server"):
        serve(tmp_path, scenario, QUICK)
    assert next(record.message for record in caplog.records if "too slow" in record.message).endswith(
        "read a response too slowly"
    )
    assert "ASGI" not in caplog.text


def test_large_response_without_memory_is_refused_except_for_changes() -> None:
    memory = BodyMemory(1000_000)
    first, second = memory.lease("bob"), memory.lease("bob")
    first.set_response_size(450_000, required=True)
    with pytest.raises(ServerUnavailable):
        second.set_response_size(100_000, required=True)
    second.set_response_size(100_000, required=False)
    first.release()
    second.release()
    assert memory.used_bytes == 0


def test_token_bucket_grants_its_rate_and_returns_the_wait() -> None:
    bucket = TokenBucket(10, 20, now=0.0)
    assert [bucket.take_or_wait_s(1, 0.0) for _ in range(20)] == [0.0] * 20
    wait_s = bucket.take_or_wait_s(1, 0.0)
    assert 0 < wait_s <= 0.1
    assert bucket.take_or_wait_s(1, wait_s) == 0.0
    assert bucket.take_or_wait_s(1000, 10.0) == 0.0, "a request larger than the burst passes once"
    assert bucket.take_or_wait_s(1, 11.0) > 90


def test_only_the_user_over_the_rate_limit_is_refused(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        refused = await api.send("GET", "/datasets")
        assert refused.status_code == 200
        while refused.status_code == 200:
            refused = await api.send("GET", "/datasets")
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "too_many_requests"
        assert "requests_per_s" in refused.json()["error"]["hints"][0]

    run_scenario(tmp_path, scenario, loops=False, limits=LimitSettings(requests_per_s=1))
    rates = UserRateLimits(LimitSettings(submissions_per_s=1), now=lambda: 0.0)
    for _ in range(5):
        rates.take_or_raise("bob", "submissions")
    with pytest.raises(TooManyRequests):
        rates.take_or_raise("bob", "submissions")
    rates.take_or_raise("alice", "submissions")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"spec":{"priority":50.0,"project":"m","roles":[]', "not JSON"),
        (b'{"spec":{"priority":50.0,"project":"\xff"}}', ""),
        (b'{"spec":{"priority":50.0,"project":' + b"[" * 100_000, ""),
    ],
)
def test_float_for_an_integer_is_refused_with_a_message(tmp_path: Path, body: bytes, message: str) -> None:
    async def scenario(api: ApiServer) -> None:
        refused = await api.send("POST", "/runs", body)
        assert refused.status_code == 422
        assert message in refused.text

    run_scenario(tmp_path, scenario, loops=False)


def test_pack_without_blobs_or_with_too_many_is_refused(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        # an empty blob
        frame = bytes.fromhex("af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262") + bytes(8)
        for count, status in ((0, 422), (MAX_FRAMES, 200), (MAX_FRAMES + 1, 422)):
            assert (await api.send("POST", "/blobs/pack", frame * count)).status_code == status

    run_scenario(tmp_path, scenario, loops=False)


def test_listing_of_large_runs_is_small_and_a_single_run_is_complete(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        large = {
            "roles": [{"command": ["python", "x" * 60_000]}],
            "env": {f"K{i}": "v" * 60_000 for i in range(3)},
            "environment": {"packages": {"torch": "2"}},
        }
        created = [await api.submit(plan=0, tags={"team": "a"}, **large) for _ in range(5)]
        page = await api.send("GET", "/runs")
        assert len(page.content) < 64 * 1024
        rows = page.json()["runs"]
        assert [row["id"] for row in rows] == [run["id"] for run in reversed(created)]
        assert {"tags", "roles", "label", "queue", "datasets", "env", "environment", "study"} <= set(
            rows[0]["spec"]
        )
        assert (rows[0]["spec"]["tags"], rows[0]["spec"]["environment"]["packages"]) == ({"team": "a"}, {})
        single = await api.request("GET", f"/runs/{created[0]['id']}")
        assert single["spec"]["environment"]["packages"] == {"torch": "2"}
        assert len(single["spec"]["roles"][0]["command"][1]) == 60_000

    run_scenario(tmp_path, scenario, loops=False)


def test_invalid_manifest_is_refused_again_without_a_read(tmp_path: Path) -> None:
    async def scenario(api: ApiServer) -> None:
        data = b'{"files":[' + b"[]," * 200_000 + b"[]]}"
        digest = blake3(data).hexdigest()
        await api.request("PUT", f"/blobs/{digest}", data)
        for _ in range(2):
            refused = await api.request("POST", "/datasets/x/versions", {"manifest": digest}, status=400)
            assert "is not a manifest" in refused["error"]["message"]

    run_scenario(tmp_path, scenario, loops=False)
