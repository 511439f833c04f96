"""What the server takes from the bytes that a script sends at its port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from hopyard.errors import PortUnreachable
from hopyard.server.ports.port_upstream import PortUpstream

BEHIND = b"HTTP/1.1 201 Created\r\nContent-Length: 4\r\nX-Other: 1\r\n\r\nEVIL"


def read_response(parts: Sequence[bytes], *, may_switch: bool = False) -> tuple[PortUpstream, bytes]:
    """Returns the upstream and the body after a script has sent these parts, and closed its connection."""

    async def read() -> tuple[PortUpstream, bytes]:
        reader = asyncio.StreamReader()
        upstream = PortUpstream(reader, None, is_head=False, may_switch=may_switch)  # type: ignore[arg-type]
        reader.feed_data(parts[0])
        await upstream.read_head()
        for part in parts[1:]:
            reader.feed_data(part)
        reader.feed_eof()
        return upstream, b"".join([data async for data in _body(upstream)])

    return asyncio.run(read())


async def _body(upstream: PortUpstream) -> AsyncIterator[bytes]:
    while data := await upstream.read_body():
        yield data


@pytest.mark.parametrize("behind", [BEHIND, b"no HTTP at all\r\n\r\n"])
@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_bytes_behind_response_change_nothing_of_it(response: bytes, behind: bytes, at_once: bool) -> None:
    upstream, body = read_response([response + behind] if at_once else [response, behind])
    assert (upstream.status, len(upstream.headers), body) == (200, 1, b"ok")


def test_trailers_are_no_headers() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    upstream, body = read_response([head + b"2\r\nok\r\n0\r\nSet-Cookie: a=1\r\n\r\n"])
    assert (upstream.headers, body) == ([(b"transfer-encoding", b"chunked")], b"ok")


@pytest.mark.parametrize("codings", [b"gzip, chunked", b"gzip\r\nTransfer-Encoding: chunked", b"gzip"])
def test_response_with_another_transfer_coding_is_refused(codings: bytes) -> None:
    with pytest.raises(PortUnreachable, match="transfer coding `gzip"):
        read_response([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + codings + b"\r\n\r\n2\r\nok\r\n0\r\n\r\n"])


def test_interim_responses_are_left_out() -> None:
    upstream, body = read_response(
        [b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"]
    )
    assert (upstream.status, upstream.headers, body) == (200, [(b"content-length", b"2")], b"ok")


def test_protocol_is_switched_at_request_only() -> None:
    switch = b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nbytes"
    with pytest.raises(PortUnreachable, match="did not ask for"):
        read_response([switch])
    upstream, _ = read_response([switch], may_switch=True)
    assert (upstream.switches_protocol, upstream.rest) == (True, b"bytes")
