"""The heads of requests and responses that pass between a client and a port of a run.

Headers that concern one connection are removed (RFC 9110, section 7.6.1), and so is everything by which the
client authenticates to this server. The script sees itself at `localhost`, because servers that are made for
one machine refuse other names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hopyard.domain.replica import RUN_TOKEN_PREFIX

Headers = Sequence[tuple[bytes, bytes]]
COOKIE_NAME = "hopyard_port"
# of all cookies of this server: also of sessions of browsers
_OWN_COOKIE_PREFIXES = (b"hopyard_", b"__host-hopyard_")
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_FORWARDED = frozenset(
    {b"x-forwarded-prefix", b"x-forwarded-host", b"x-forwarded-proto", b"x-forwarded-for", b"forwarded"}
)
# the script may take a trailer for a header (RFC 9110, section 6.5.1)
_NOT_IN_TRAILERS = frozenset(
    {b"authorization", b"cookie", b"expect", b"host", b"origin", b"range", b"referer"}
)
_TOKEN_PREFIXES = ("bearer hop_", f"bearer {RUN_TOKEN_PREFIX}")


@dataclass(frozen=True, slots=True)
class PublicAddress:
    """Where the client sees the port. origin: `http://HOST`, without a path. prefix: the path before that of
    the script. port: the number that the run names. client: the address of the client, "" if unknown."""

    scheme: str
    host: str
    prefix: str
    port: int
    client: str = ""

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.host}"

    @property
    def inner_origin(self) -> str:
        """The origin that the script sees."""
        return f"http://localhost:{self.port}"


def find_header(headers: Headers, name: bytes) -> bytes:
    """Returns the first value of a header; nothing if it is missing."""
    return next((value for key, value in headers if key == name), b"")


def request_head(
    method: str, path: bytes, headers: Headers, public: PublicAddress, *, upgrade: bytes, chunked: bool
) -> bytes:
    """Returns the head of the request to the script.

    path: with the query. upgrade: the protocol that the client requests, nothing for plain HTTP. chunked:
    whether the body has no announced length.
    """
    origin, inner = public.origin.encode(), public.inner_origin.encode()
    kept: list[tuple[bytes, bytes]] = [(b"host", f"localhost:{public.port}".encode())]
    for name, value in _end_to_end(headers):
        if name in (b"host", b"content-length") or name in _FORWARDED:
            if name == b"content-length" and not chunked:
                kept.append((name, value))
        elif name == b"authorization" and _has_token(value):
            continue
        elif name == b"cookie":
            if others := _without_own_cookie(value):
                kept.append((name, others))
        elif name in (b"origin", b"referer") and (value == origin or value.startswith(origin + b"/")):
            kept.append((name, inner + value[len(origin) :]))
        else:
            kept.append((name, value))
    kept += [
        (b"x-forwarded-host", public.host.encode()),
        (b"x-forwarded-proto", public.scheme.encode()),
        (b"x-forwarded-prefix", public.prefix.encode()),
    ]
    if public.client:
        kept.append((b"x-forwarded-for", public.client.encode()))
    if chunked:
        kept += [header for header in headers if header[0] == b"trailer"]
        kept.append((b"transfer-encoding", b"chunked"))
    kept += [(b"connection", b"Upgrade"), (b"upgrade", upgrade)] if upgrade else [(b"connection", b"close")]
    return _encode(b"%b %b HTTP/1.1" % (method.encode(), path), kept)


def trailer_lines(trailers: Headers) -> bytes:
    """Returns the lines of the trailers for the script, without those that would matter as headers."""
    refused = _NOT_IN_TRAILERS | _FORWARDED
    return b"".join(
        b"%b: %b\r\n" % (name, value)
        for name, value in _end_to_end(trailers)
        if name not in refused and not name.startswith(b"content-")
    )


def response_headers(headers: Headers, public: PublicAddress) -> list[tuple[bytes, bytes]]:
    """Returns the headers of the response to the client."""
    kept: list[tuple[bytes, bytes]] = []
    for name, value in _end_to_end(headers):
        if name in (b"location", b"content-location"):
            kept.append((name, _public_location(value, public)))
        elif name == b"set-cookie":
            if not _is_own_cookie(value):
                kept.append((name, _without_domain(value)))
        else:
            kept.append((name, value))
    return kept


def switch_head(headers: Headers, public: PublicAddress, upgrade: bytes) -> bytes:
    """Returns the head of the response that switches the connection to another protocol."""
    kept = [*response_headers(headers, public), (b"connection", b"Upgrade"), (b"upgrade", upgrade)]
    return _encode(b"HTTP/1.1 101 Switching Protocols", kept)


def cookie_value(headers: Headers) -> str:
    """Returns the value of the cookie of this server; "" if the request has none."""
    for name, value in headers:
        if name == b"cookie":
            for part in value.split(b";"):
                key, _, text = part.strip().partition(b"=")
                if key == COOKIE_NAME.encode():
                    return text.decode("latin-1")
    return ""


def _encode(first: bytes, headers: Headers) -> bytes:
    return b"\r\n".join([first, *(b"%b: %b" % header for header in headers), b"", b""])


def _end_to_end(headers: Headers) -> Iterable[tuple[bytes, bytes]]:
    """Returns the headers that do not concern one connection."""
    named = {
        word.strip().lower() for name, value in headers if name == b"connection" for word in value.split(b",")
    }
    named.discard(b"content-length")  # without it, the body would look like another request
    return [(name, value) for name, value in headers if name not in _HOP_BY_HOP and name not in named]


def _has_token(value: bytes) -> bool:
    """Returns whether a header authenticates to this server. As there, all white space counts."""
    return " ".join(value.decode("latin-1").lower().split()).startswith(_TOKEN_PREFIXES)


def is_chunked(headers: Headers) -> bool:
    """Returns whether the body of a request has chunks. The server accepts no other body with this header."""
    return any(name == b"transfer-encoding" for name, _ in headers)


def _without_own_cookie(value: bytes) -> bytes:
    parts = [part.strip() for part in value.split(b";")]
    return b"; ".join(part for part in parts if not _is_own_cookie(part))


def _is_own_cookie(value: bytes) -> bool:
    return value.strip().lower().startswith(_OWN_COOKIE_PREFIXES)


def _without_domain(value: bytes) -> bytes:
    """Returns a cookie that stays on its own host."""
    first, *attributes = value.split(b";")
    kept = [each for each in attributes if each.partition(b"=")[0].strip().lower() != b"domain"]
    return b";".join([first, *kept])


def _public_location(value: bytes, public: PublicAddress) -> bytes:
    inner, prefix = public.inner_origin.encode(), public.prefix.encode()
    if value.startswith((inner + b"/", inner + b"?")) or value == inner:
        return public.origin.encode() + prefix + value[len(inner) :]
    is_path = value.startswith(b"/") and not value.startswith(b"//")
    return prefix + value if prefix and is_path and not value.startswith(prefix + b"/") else value
