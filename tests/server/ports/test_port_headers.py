"""Heads of requests and responses that pass through the server."""

from __future__ import annotations

from hopyard.server.ports.port_headers import (
    PublicAddress,
    cookie_value,
    is_chunked,
    request_head,
    response_headers,
    switch_head,
    trailer_lines,
)

OWN = PublicAddress("http", "p1-abcdef.localhost:81", "", 8888, "10.0.0.1")
BELOW_PATH = PublicAddress("https", "hop.example.org", "/runs/abcdef/ports/8888", 8888)


def _lines(head: bytes) -> list[bytes]:
    assert head.endswith(b"\r\n\r\n")
    return head[:-4].split(b"\r\n")


def test_tokens_cookies_and_headers_of_the_connection_stay_at_the_server() -> None:
    headers = [
        (b"host", b"p1-abcdef.localhost:81"),
        (b"authorization", b"Bearer hop_secret"),
        (b"authorization", b"Bearer hopr_secret"),
        (b"authorization", b"token of the script"),
        (b"cookie", b"a=1; hopyard_port=secret; hopyard_session_8765=secret; b=2"),
        (b"cookie", b"__Host-hopyard_session=secret"),
        (b"connection", b"keep-alive, X-Private"),
        (b"x-private", b"1"),
        (b"te", b"trailers"),
        (b"transfer-encoding", b"chunked"),
        (b"content-length", b"5"),
        (b"x-forwarded-for", b"forged"),
        (b"origin", b"http://p1-abcdef.localhost:81"),
        (b"referer", b"http://p1-abcdef.localhost:81/page"),
        (b"accept", b"*/*"),
    ]
    head = request_head("POST", b"/x?y=1", headers, OWN, upgrade=b"", chunked=True)
    assert _lines(head) == [
        b"POST /x?y=1 HTTP/1.1",
        b"host: localhost:8888",
        b"authorization: token of the script",
        b"cookie: a=1; b=2",
        b"origin: http://localhost:8888",
        b"referer: http://localhost:8888/page",
        b"accept: */*",
        b"x-forwarded-host: p1-abcdef.localhost:81",
        b"x-forwarded-proto: http",
        b"x-forwarded-prefix: ",
        b"x-forwarded-for: 10.0.0.1",
        b"transfer-encoding: chunked",
        b"connection: close",
    ]


def test_trailers_that_would_matter_as_headers_are_removed() -> None:
    forged = [
        b"authorization",
        b"cookie",
        b"content-length",
        b"host",
        b"transfer-encoding",
        b"x-forwarded-for",
    ]
    assert trailer_lines([(name, b"1") for name in [*forged, b"x-sum"]]) == b"x-sum: 1\r\n"


def test_no_spelling_of_a_token_reaches_the_script() -> None:
    def names(value: bytes) -> list[bytes]:
        head = request_head("GET", b"/", [(b"authorization", value)], OWN, upgrade=b"", chunked=False)
        return [line.partition(b":")[0] for line in _lines(head)]

    for token in (
        b"Bearer  hop_secret",
        b"bearer\thop_secret",
        b"BEARER hopr_secret",
        b"Bearer \xa0hop_secret",
        b"Bearer \x85\x1fhop_secret",
    ):
        assert b"authorization" not in names(token)
    assert b"authorization" in names(b"Bearer of_the_script")


def test_the_length_of_a_body_is_kept() -> None:
    headers = [(b"connection", b"content-length, close"), (b"content-length", b"5")]
    lines = _lines(request_head("POST", b"/", headers, OWN, upgrade=b"", chunked=is_chunked(headers)))
    assert b"content-length: 5" in lines
    headers = [(b"transfer-encoding", b"identity"), (b"transfer-encoding", b"chunked")]
    lines = _lines(request_head("POST", b"/", headers, OWN, upgrade=b"", chunked=is_chunked(headers)))
    assert [line for line in lines if line.startswith(b"transfer-encoding")] == [
        b"transfer-encoding: chunked"
    ]


def test_a_foreign_origin_is_kept() -> None:
    headers = [(b"origin", b"http://evil.org"), (b"content-length", b"5")]
    lines = _lines(request_head("POST", b"/", headers, OWN, upgrade=b"websocket", chunked=False))
    assert b"origin: http://evil.org" in lines
    assert b"content-length: 5" in lines
    assert lines[-2:] == [b"connection: Upgrade", b"upgrade: websocket"]


def test_redirects_lead_to_the_address_of_the_client() -> None:
    locations = {
        b"http://localhost:8888/lab?x": b"https://hop.example.org/runs/abcdef/ports/8888/lab?x",
        b"/login": b"/runs/abcdef/ports/8888/login",
        b"/runs/abcdef/ports/8888/login": b"/runs/abcdef/ports/8888/login",
        b"page": b"page",
        b"https://example.org/": b"https://example.org/",
        b"//example.org/": b"//example.org/",
    }
    for inner, outer in locations.items():
        assert response_headers([(b"location", inner)], BELOW_PATH) == [(b"location", outer)]
    assert response_headers([(b"location", b"/login")], OWN) == [(b"location", b"/login")]


def test_cookies_of_the_script_stay_on_its_host() -> None:
    headers = [
        (b"set-cookie", b"a=1; Domain=localhost; Path=/; HttpOnly"),
        (b"set-cookie", b"hopyard_port=forged"),
        (b"set-cookie", b"Hopyard_session_8765=forged; Path=/"),
        (b"connection", b"close"),
    ]
    assert response_headers(headers, OWN) == [(b"set-cookie", b"a=1; Path=/; HttpOnly")]


def test_a_switch_names_the_protocol() -> None:
    head = switch_head([(b"sec-websocket-accept", b"x"), (b"upgrade", b"websocket")], OWN, b"websocket")
    assert _lines(head) == [
        b"HTTP/1.1 101 Switching Protocols",
        b"sec-websocket-accept: x",
        b"connection: Upgrade",
        b"upgrade: websocket",
    ]


def test_own_cookie_is_found_among_others() -> None:
    assert cookie_value([(b"cookie", b"a=1; hopyard_port=x.y"), (b"cookie", b"b=2")]) == "x.y"
    assert cookie_value([(b"cookie", b"hopyard_port2=1")]) == ""
