"""A small HTTP client of the API: one open connection per thread; errors are raised as `hopyard.errors`.

It uses only the standard library, because it also runs inside users' processes and its import must be cheap.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import hopyard.errors as errors
from hopyard.api_client.http11 import HttpConnection, HttpResponse, ServerClosedConnection
from hopyard.domain.text_decoding import escape_bytes
from hopyard.errors import HopyardError, IntegrityError, MissingBlobs, ServerFault, ServerUnavailable

API = "/api/v1"
PAGE_SIZE = 1000  # maximum number of rows per page
_UNKNOWN_FIELD = "there is no field `"  # in the message of a server that does not know a field
_LOCAL_VERSION_HINT = (
    "the server is of an earlier version than this command; run `hop down --keep-runs` and `hop up` to "
    "update it; its runs continue"
)
_REMOTE_VERSION_HINT = "the server is of an earlier version than this command; use the version of the server"
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_FRAME_HEADER = struct.Struct("<32sQ")
_RETRY_TIMEOUT_S = 60.0  # of requests that an overloaded server rejects
_CONNECT_RETRIES, _CONNECT_RETRY_INTERVAL_S = 6, 0.02  # of a new connection that breaks; the interval doubles
_IDEMPOTENT = frozenset({"GET", "HEAD", "PUT"})
_STALE_CONNECTION_ERRORS = (ServerClosedConnection, BrokenPipeError, ConnectionResetError)
_ERROR_BY_CODE: dict[str, type[HopyardError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, HopyardError)
}

Value = str | int | float | Sequence[str] | None
Query = Mapping[str, Value]  # a sequence repeats its parameter


class StreamedResponse:
    """A response with an unread body. Reading raises ServerUnavailable when the connection breaks."""

    def __init__(self, raw: HttpResponse, url: str) -> None:
        self._raw, self._url = raw, url
        self.status = raw.status
        self.headers = raw.headers

    def read(self, size: int | None = None) -> bytes:
        try:
            return self._raw.read(size)
        except OSError as error:
            raise self._connection_error(error) from error

    def read_exactly(self, size: int) -> bytes:
        """Returns exactly `size` bytes. Raises ServerUnavailable when the stream ends earlier."""
        parts: list[bytes] = []
        while size:
            part = self.read(size)
            if not part:
                raise ServerUnavailable("the server closed the connection in the middle of an answer")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def readline(self) -> bytes:
        try:
            return self._raw.readline()
        except OSError as error:
            raise self._connection_error(error) from error

    def _connection_error(self, error: OSError) -> ServerUnavailable:
        return ServerUnavailable(f"the connection to {self._url} broke: {error}")


class HttpClient:
    """Sends requests to one server, from any thread.

    url: the address of the server without `/api/v1`. hint: the hint of the error when no server answers.
    dial: connects to a server of this machine in place of the address (see `home_socket`).
    """

    def __init__(
        self,
        url: str,
        token: str,
        *,
        timeout_s: float = 60.0,
        hint: str = "run `hop status` to check for a server; run `hop up` to start one",
        dial: Callable[[float], socket.socket] | None = None,
    ) -> None:
        self._unavailable_hint = hint
        self._version_hint = _REMOTE_VERSION_HINT if dial is None else _LOCAL_VERSION_HINT
        host, port = _host_and_port(url)
        if not (token.isascii() and token.isprintable()):
            raise errors.AuthError(
                "the token contains characters that are not allowed in a token",
                hints=("copy it again: a token is `hop_` followed by letters, digits, `-` and `_`",),
            )
        self.url, self.token = url.rstrip("/"), token
        self._authority, self._timeout = f"[{host}]:{port}" if ":" in host else f"{host}:{port}", timeout_s
        self._dial = dial or partial(_dial, host, port)
        self._is_loopback = dial is not None or host in _LOOPBACK
        self._local = threading.local()

    # -- one request -----------------------------------------------------------------------------------------

    @contextmanager
    def open(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | Iterable[bytes] | None = None,
        content_type: str = "application/octet-stream",
        timeout_s: float | None = None,
        retry: bool = True,
        send_once: bool = False,
    ) -> Iterator[StreamedResponse]:
        """Sends a request and yields the response with its body unread. Raises the server's error, or
        ServerUnavailable.

        retry: reconnects once if the server has closed the connection. An overloaded server is retried after
        the time that it names, for at most a minute. send_once: the request is not idempotent, so it is sent
        again only if the server cannot have processed it.
        """
        try:
            target = API + (
                path
                if path.isascii() and path.isprintable() and " " not in path
                else quote(path, safe="/?&=%")
            )
            if query:
                pairs = {k: v for k, v in query.items() if v is not None}
                target += "?" + urlencode(pairs, quote_via=quote, doseq=True) if pairs else ""
        except UnicodeEncodeError as error:
            raise _encoding_error(error) from error
        headers = {"Authorization": f"Bearer {self.token}"}
        if body is not None:
            headers["Content-Type"] = content_type
        connection, raw = self._send_with_retry(
            method, target, body, headers, timeout_s or self._timeout, retry, send_once
        )
        try:
            response = StreamedResponse(raw, self.url)
            if raw.status >= 400:
                raise error_from_response(raw.status, response.read(), version_hint=self._version_hint)
            # an error of the caller, such as a full disk, is not an error of the connection
            yield response
        except BaseException:
            connection.close()
            raise
        if not raw.isclosed():
            connection.close()  # the body was not read to its end, so the connection cannot be reused

    def _send_with_retry(
        self,
        method: str,
        target: str,
        body: bytes | Iterable[bytes] | None,
        headers: dict[str, str],
        timeout_s: float,
        retry: bool,
        send_once: bool,
    ) -> tuple[HttpConnection, HttpResponse]:
        """As `_send`; retries a request that the server rejected unprocessed (429 or 503 with
        `Retry-After`)."""
        give_up_at = time.monotonic() + _RETRY_TIMEOUT_S
        while True:
            connection, raw = self._send(method, target, body, headers, timeout_s, retry, send_once)
            pause_s = (
                _retry_after_s(raw)
                if raw.status in (429, 503) and (body is None or isinstance(body, bytes))
                else None
            )
            if pause_s is None or time.monotonic() + pause_s > give_up_at:
                return connection, raw
            try:
                raw.read()
            except OSError:
                connection.close()
            time.sleep(pause_s)

    def _send(
        self,
        method: str,
        target: str,
        body: bytes | Iterable[bytes] | None,
        headers: dict[str, str],
        timeout_s: float,
        retry: bool,
        send_once: bool,
    ) -> tuple[HttpConnection, HttpResponse]:
        fresh, refusals = False, 0
        while True:
            connection: HttpConnection | None = getattr(self._local, "connection", None)
            if connection is None or connection.sock is None:
                connection, fresh = HttpConnection(self._dial, self._authority, timeout=timeout_s), True
                self._local.connection = connection
            else:
                connection.sock.settimeout(timeout_s)
            try:
                connection.request(method, target, body=body, headers=headers)
                return connection, connection.getresponse()
            except _STALE_CONNECTION_ERRORS as error:
                # otherwise the server may have processed it
                harmless = connection.sock is not None and (
                    connection.response_incomplete or method in _IDEMPOTENT
                )
                connection.close()
                again = retry and (body is None or isinstance(body, bytes))
                # the server had too many connections at that moment
                if fresh and again and harmless and refusals < _CONNECT_RETRIES:
                    time.sleep(_CONNECT_RETRY_INTERVAL_S * 2**refusals)
                    refusals += 1
                    continue
                if fresh or not again or (send_once and not harmless):
                    raise ServerUnavailable(
                        f"the server at {self.url} closed the connection: {error}"
                    ) from error
            except OSError as broken:
                connection.close()
                raise ServerUnavailable(
                    f"no server answers at {self.url}: {broken}", hints=(self._unavailable_hint,)
                ) from broken

    def open_tcp(self, path: str) -> socket.socket:
        """Returns a connection to a port of a run. path: `path` of `OpenPortOut`. Raises the error of the
        server, or ServerUnavailable."""
        headers = {
            "Authorization": f"Bearer {self.token}",
            "Connection": "Upgrade",
            "Upgrade": "tcp",
        }
        connection = HttpConnection(self._dial, self._authority, timeout=self._timeout)
        try:
            connection.request("GET", path, body=None, headers=headers)
            if (refusal := connection.read_switch()) is not None:
                raise error_from_response(refusal.status, refusal.read())
            assert connection.sock is not None
            sock = connection.sock.dup()
        except OSError as error:
            raise ServerUnavailable(
                f"no server answers at {self.url}: {error}", hints=(self._unavailable_hint,)
            ) from error
        finally:
            connection.close()
        return sock

    def call(
        self,
        method: str,
        path: str,
        *,
        json_body: Any = None,
        query: Query | None = None,
        timeout_s: float | None = None,
        send_once: bool = False,
    ) -> Any:
        """Sends JSON and returns the JSON of the response; None for an empty one."""
        try:
            body = None if json_body is None else json.dumps(json_body, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise _encoding_error(error) from error
        with self.open(
            method,
            path,
            query=query,
            body=body,
            content_type="application/json",
            timeout_s=timeout_s,
            send_once=send_once,
        ) as response:
            data = response.read()
        try:
            return json.loads(data) if data else None
        except ValueError as error:
            hint = "another program uses this address; run `hop status` for the server's address"
            raise ServerUnavailable(f"{self.url} is not a Hopyard server", hints=(hint,)) from error

    def get(self, path: str, **query: Value) -> Any:
        return self.call("GET", path, query=query)

    def iterate_pages(
        self,
        path: str,
        rows_key: str,
        *,
        cursor_key: str = "after",
        begin: Value = None,
        max_rows: int | None = None,
        **query: Value,
    ) -> Iterator[Any]:
        """Yields the rows of a listing; a page is read when its first row is needed.

        rows_key: the field of the response that holds the rows; a mapping yields pairs. cursor_key: the
        parameter for the start of a page. begin: its value for the first page.
        """
        while max_rows is None or max_rows > 0:
            limit = {} if max_rows is None else {"limit": min(max_rows, PAGE_SIZE)}
            page = self.get(path, **query, **limit, **{cursor_key: begin})
            rows = page[rows_key]
            yield from rows.items() if isinstance(rows, dict) else rows
            begin = page.get("next")  # an older server has no pages, and sends everything
            if begin is None:
                return
            if max_rows is not None:
                max_rows -= len(rows)

    def post(self, path: str, json_body: Any = None, **query: Value) -> Any:
        return self.call("POST", path, json_body={} if json_body is None else json_body, query=query)

    def patch(self, path: str, json_body: Any = None, **query: Value) -> Any:
        return self.call("PATCH", path, json_body=json_body, query=query)

    def delete(self, path: str, **query: Value) -> Any:
        return self.call("DELETE", path, query=query)

    def use_socket(self, sock: socket.socket) -> None:
        """Uses a connected socket for this thread's first request."""
        self.close()
        self._local.connection = connection = HttpConnection(
            lambda _: sock, self._authority, timeout=self._timeout
        )
        connection.connect()

    def close(self) -> None:
        """Closes this thread's connection."""
        connection: HttpConnection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()

    def wait_ready(self, *, timeout_s: float) -> bool:
        """Returns whether the server answers its health check within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.call("GET", "/health", timeout_s=max(0.2, deadline - time.monotonic()))
                return True
            except (ServerUnavailable, HopyardError):
                if time.monotonic() >= deadline:
                    return False
                time.sleep(0.02)

    # -- blobs: the transport of `datasets` ------------------------------------------------------------------

    def missing(self, digests: Sequence[str]) -> list[str]:
        return list(self.post("/blobs/missing", {"digests": list(digests)})["missing"]) if digests else []

    def put_blob(self, digest: str, data: bytes) -> None:
        with self.open("PUT", f"/blobs/{digest}", body=data) as response:
            response.read()

    def put_pack(self, blobs: Sequence[tuple[str, bytes]]) -> None:
        """Uploads many small blobs in one request, all or none."""
        parts: list[bytes] = []
        for digest, data in blobs:
            parts.append(_FRAME_HEADER.pack(bytes.fromhex(digest), len(data)))
            parts.append(data)
        with self.open("POST", "/blobs/pack", body=b"".join(parts)) as response:
            response.read()

    def fetch(self, manifest: str, digests: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yields the blobs in the order of `digests`. The caller checks the bytes when it stores them."""
        body = json.dumps({"manifest": manifest, "digests": list(digests)}).encode()
        with self.open("POST", "/blobs/fetch", body=body, content_type="application/json") as response:
            for digest in digests:
                raw, size = _FRAME_HEADER.unpack(response.read_exactly(_FRAME_HEADER.size))
                if raw.hex() != digest:
                    raise IntegrityError(f"requested blob {digest[:12]}, received {raw.hex()[:12]}")
                yield digest, response.read_exactly(size)
            response.read()

    def verify(self, digest: str) -> bool:
        """Returns whether the server has an undamaged copy of the blob. Otherwise the next push uploads it
        again."""
        return bool(self.post(f"/blobs/{digest}/verify")["ok"])

    def locate(self, manifest: str, digests: Sequence[str]) -> list[str | None]:
        """Returns a file for each blob that may hold it, or None. All are None for a server on another
        machine."""
        if not self._is_loopback:
            return [None] * len(digests)
        return list(self.post("/blobs/locate", {"manifest": manifest, "digests": list(digests)})["paths"])


def _encoding_error(error: UnicodeEncodeError) -> errors.SpecError:
    """Returns the error for a text from a command line or a file name that is not UTF-8."""
    before, after = error.object[: error.start], error.object[error.start :]
    word = before.rpartition('"')[2] + after.partition('"')[0]  # of JSON; else the whole address
    return errors.SpecError(
        f"`{escape_bytes(word)}` is not UTF-8, and the server stores UTF-8 only",
        hints=("type it again in UTF-8; rename a file of this name",),
    )


def _retry_after_s(raw: HttpResponse) -> float | None:
    """Returns the time of `Retry-After`, with jitter: rejected clients do not all retry together."""
    header = raw.headers.get("Retry-After") or ""
    if not header.isdecimal() or len(header) > 6:
        return None
    import random

    return int(header) * random.uniform(0.8, 1.2)


def _host_and_port(url: str) -> tuple[str, int]:
    """Returns host and port of a server's address. Raises SpecError."""
    try:
        split = urlsplit(url)
        host, port = split.hostname, split.port
    except ValueError:  # an invalid port, or an unclosed bracket
        split, host, port = None, None, None
    if split is None or split.scheme != "http" or not host or port == 0:
        raise errors.SpecError(
            f"`{url}` is not the address of a server",
            hints=("give an address such as http://127.0.0.1:8765",),
        )
    return host, port or 80


def _dial(host: str, port: int, timeout_s: float) -> socket.socket:
    sock = socket.create_connection((host, port), timeout_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def error_from_response(status: int, data: bytes, *, version_hint: str = "") -> HopyardError:
    """Returns the exception for an error response; ServerFault for an internal error of the server.

    version_hint: added for a field that the server does not have. This program sends only fields that exist,
    so the server is of an earlier version.
    """
    default = ServerFault if status >= 500 else HopyardError
    try:
        body = json.loads(data)["error"]
        code, message, hints = (
            str(body["code"]),
            str(body["message"]),
            tuple(map(str, body.get("hints") or ())),
        )
    except (ValueError, KeyError, TypeError):
        return default(f"the server answered {status}: {data[:200].decode(errors='replace')}")
    if code == MissingBlobs.code:
        return MissingBlobs(message, digests=body.get("digests") or (), hints=hints)
    if version_hint and _UNKNOWN_FIELD in message:
        hints = (version_hint,)
    kind = _ERROR_BY_CODE.get(code, HopyardError)
    return (default if kind is HopyardError else kind)(message, hints=hints)
