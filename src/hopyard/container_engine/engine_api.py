"""A client of the HTTP interface of Docker, which Podman serves, too, over a Unix socket.

Only the standard library: the program beside each container has little time and memory.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from hopyard.errors import ContainerEngineUnavailable, ContainerError

_MAX_ANSWER_BYTES = 64 * 1024 * 1024


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float | None) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(self.timeout)
            self.sock.connect(self._path)
        except BaseException:
            self.sock.close()
            raise


class EngineApi:
    """The interface at one socket. Each request has a connection of its own.

    All methods raise ContainerError with the answer of the engine and its HTTP status, and status 0 if the
    engine cannot be reached: ContainerEngineUnavailable, unless the socket is absent or belongs to others.
    """

    def __init__(self, path: Path, *, timeout_s: float | None = 120.0) -> None:
        self.path, self._timeout_s = path, timeout_s

    def get(self, path: str, **query: Any) -> Any:
        return self.request("GET", path, query=query)

    def post(self, path: str, body: Mapping[str, Any] | None = None, **query: Any) -> Any:
        return self.request("POST", path, body, query=query)

    def delete(self, path: str, **query: Any) -> Any:
        return self.request("DELETE", path, query=query)

    def put_archive(self, container: str, archive: bytes) -> None:
        """Unpacks a tar archive at the top of the files of a container that was not started yet."""
        self._send("PUT", f"/containers/{container}/archive?path=/", archive, "application/x-tar")

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, Any] | None = None,
    ) -> Any:
        """Returns the JSON of the answer; None for an empty one. query: true is sent as 1."""
        texts = {
            name: json.dumps(value) if isinstance(value, dict) else int(value) if value is True else value
            for name, value in (query or {}).items()
            if value is not None and value is not False
        }
        address = quote(path) + (f"?{urlencode(texts)}" if texts else "")
        answer = self._send(method, address, None if body is None else json.dumps(body).encode())
        try:
            return json.loads(answer) if answer.strip() else None
        except ValueError as error:
            raise ContainerError(f"the container engine at {self.path} sent no JSON") from error

    def upgrade(self, path: str, body: Mapping[str, Any]) -> tuple[socket.socket, bytes]:
        """Sends a request; its connection then carries the streams of a process. Returns the connection, and
        the bytes of the streams that came with the answer."""
        connection = _UnixConnection(str(self.path), self._timeout_s)
        try:
            data = json.dumps(body).encode()
            headers = {"Content-Type": "application/json", "Connection": "Upgrade", "Upgrade": "tcp"}
            connection.request("POST", path, data, headers)
            stream = connection.sock
            head = b""
            while b"\r\n\r\n" not in head:
                received = stream.recv(4096)
                if not received:
                    break
                head += received
            head, _, rest = head.partition(b"\r\n\r\n")
            status = head.split(b" ", 2)[1:2]
            if status not in ([b"101"], [b"200"]):
                raise ContainerError(f"the container engine refused a connection: {rest.decode()[:500]}")
            connection.sock = None  # it belongs to the caller
            stream.settimeout(None)
            return stream, rest
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    def _send(self, method: str, address: str, data: bytes | None, kind: str = "application/json") -> bytes:
        try:
            with closing(_UnixConnection(str(self.path), self._timeout_s)) as connection:
                headers = {"Content-Type": kind} if data is not None else {}
                connection.request(method, address, data, headers)
                response = connection.getresponse()
                answer = response.read(_MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        if response.status >= 400:
            raise ContainerError(_message(answer), status=response.status)
        return answer

    def _unreachable(self, error: Exception) -> ContainerError:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        is_absent = isinstance(error, FileNotFoundError | PermissionError)
        kind = ContainerError if is_absent else ContainerEngineUnavailable
        return kind(f"the container engine at {self.path} cannot be reached: {reason}")


def _message(answer: bytes) -> str:
    try:
        values = json.loads(answer)
        text = str(values.get("message") or values.get("cause") or values)
    except (ValueError, AttributeError):
        text = answer.decode(errors="replace")
    return " ".join(text.split())[:1000] or "the container engine gave no reason"
