"""A server as a replica sees one: takes streams, status, blobs, checkpoints, and gives blobs.
Real HTTP, nothing behind it.

For tests of replicas and engines. It can be taken away and brought back at another port, lose its memory of
nothing, and be asked what it received.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from blake3 import blake3

from hopyard.config.home import Home
from hopyard.datasets.pack import ALL_FILES_RULES, pack_tree
from hopyard.errors import SpecError, StorageFull
from hopyard.private_files import write_atomically
from hopyard.testing.home_server import HomeServer

_FRAME = struct.Struct("<32sQ")
_API = "/api/v1"


class FakeServer:
    """Listens from construction until `close`. Use as a context manager."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.streams: dict[tuple[str, int, str], bytearray] = {}
        self.statuses: dict[tuple[str, int], list[dict[str, Any]]] = {}
        self.finals: dict[tuple[str, int], dict[str, Any]] = {}
        self.checkpoints: list[dict[str, Any]] = []
        self.artifacts: dict[str, str] = {}
        self.locks: dict[str, dict[str, Any]] = {}
        self.tokens_seen: set[str] = set()
        self.renewed_token: str | None = None
        self.stop_requested = False
        self.preempt_requested = False  # the stop is to make room
        self.grace_s: float | None = None
        self.refused_segments = 0
        self.disk_full_streams = 0  # how many more packs of blobs are refused for want of space
        self.faults = 0  # how many more requests, but for syncs, end in `fault`
        self.fault = (500, "error")
        self.reject_checkpoints = False
        self._change = threading.Condition()
        self._servers: list[tuple[ThreadingHTTPServer, threading.Thread]] = []
        self.port = 0
        self.listen_again()

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop_listening(self) -> None:
        """Stop listening and break every connection, as a server that was killed."""
        serving, self._servers = self._servers, []
        for server, thread in serving:
            server.shutdown()
            server.server_close()
            thread.join()

    def listen_again(self) -> None:
        """Listen again, at another port, with all that was received."""
        server = _TcpServer(("127.0.0.1", 0), _make_handler(self))
        self.port = server.server_address[1]
        self._serve(server)

    def _serve(self, server: ThreadingHTTPServer) -> None:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        self._servers.append((server, thread))

    close = stop_listening

    def serve_home(self, home: Home) -> None:
        """Be the server of this home until it is taken away: on its Unix socket, with `server.json`."""
        self._serve(_UnixServer(home, _make_handler(self)))
        write_atomically(home.server_file, json.dumps({"url": self.url}).encode())

    def put_tree(self, folder: Path) -> str:
        """Take in a folder's content; its manifest's digest."""
        tree = pack_tree(folder, rules=ALL_FILES_RULES)
        self.blobs.update({digest: tree.read(digest) for digest in tree.blobs()})
        return tree.digest

    def put_blob(self, data: bytes) -> str:
        digest = blake3(data).hexdigest()
        self.blobs[digest] = data
        return digest

    def stream(self, attempt: str, rank: int, name: str) -> bytes:
        return bytes(self.streams.get((attempt, rank, name), b""))

    def wait(self, predicate: Callable[[FakeServer], bool], *, timeout_s: float = 60.0) -> None:
        """Until `what(self)` holds; looked at whenever something came in. Raises TimeoutError."""
        with self._change:
            if not self._change.wait_for(lambda: predicate(self), timeout_s):
                raise TimeoutError(
                    f"after {timeout_s} s; last statuses: "
                    f"{ {key: told[-1] for key, told in self.statuses.items()} }"
                )

    def wait_final(self, attempt: str, rank: int = 0, *, timeout_s: float = 60.0) -> Mapping[str, Any]:
        """The exit in the replica's last word."""
        self.wait(lambda sink: (attempt, rank) in sink.finals, timeout_s=timeout_s)
        found: Mapping[str, Any] = self.finals[attempt, rank]["exit"]
        return found

    # -- what the routes do ----------------------------------------------------------------------------------

    def sync(self, attempt: str, rank: int, body: bytes) -> dict[str, Any]:
        line, _, rest = body.partition(b"\n")
        head = json.loads(line)
        with self._change:
            at = 0
            for segment in head["segments"]:
                stream = self.streams.setdefault((attempt, rank, segment["stream"]), bytearray())
                data = rest[at : at + segment["size"]]
                at += segment["size"]
                if segment["offset"] == len(stream):
                    stream += data
                else:
                    self.refused_segments += 1
            told = self.statuses.setdefault((attempt, rank), [])
            if not told or told[-1] != head["status"]:
                told.append(head["status"])
            if head["final"]:
                self.finals[attempt, rank] = head["status"]
            self._change.notify_all()
            offsets = {
                name: len(data) for (a, r, name), data in self.streams.items() if (a, r) == (attempt, rank)
            }
            return {
                "offsets": offsets,
                "token": self.renewed_token,
                "stop": self.stop_requested,
                "preempt": self.preempt_requested,
                "grace_s": self.grace_s,
            }

    def receive(self, path: list[str], body: bytes) -> dict[str, Any]:
        """Everything else that is posted as JSON."""
        given = json.loads(body)
        with self._change:
            if path[2] == "checkpoints" and self.reject_checkpoints:
                raise SpecError("such checkpoints are not taken")
            if path[2] == "checkpoints":
                missing = [digest for digest in [given["manifest"]] if digest not in self.blobs]
                if missing:
                    raise KeyError(missing[0])
                self.checkpoints.append(given)
            elif path[2] == "artifact":
                self.artifacts[path[1]] = given["manifest"]
            elif path[2] == "lock":
                self.locks[path[1]] = given
            self._change.notify_all()
        return {}


class _BreakingServer(ThreadingHTTPServer):
    """Breaks its connections when it is closed."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *args: Any) -> None:
        self._open: set[Any] = set()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        for request in list(self._open):
            try:
                request.shutdown(2)
            except OSError:
                continue


class _TcpServer(_BreakingServer):
    """On a port."""


class _UnixServer(_BreakingServer, HomeServer):
    """On the socket of a home."""


def _make_handler(sink: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Routes(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16

        def setup(self) -> None:
            super().setup()
            if self.request.family == socket.AF_INET:
                self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def log_message(self, *_: Any) -> None:
            return

        def do_GET(self) -> None:
            self._answer(200, json.dumps({"status": "ok", "started_at": time.time()}).encode())

        def do_PUT(self) -> None:
            data = self._body()
            sink.blobs[self.path.rsplit("/", 1)[1]] = data
            self._answer(200, b"{}")

        def do_POST(self) -> None:
            body = self._body()
            sink.tokens_seen.add(self.headers.get("Authorization", "").removeprefix("Bearer "))
            path = self.path.removeprefix(_API).strip("/").split("/")
            if sink.faults and path[-1] != "sync":
                sink.faults -= 1
                status, code = sink.fault
                self._answer(
                    status,
                    json.dumps(
                        {"error": {"code": code, "message": "the server failed at this request"}}
                    ).encode(),
                )
                return
            try:
                self._answer(200, self._post(path, body))
            except KeyError as missing:
                error = {"error": {"code": "not_found", "message": f"no blob {missing}", "hints": []}}
                self._answer(404, json.dumps(error).encode())
            except (StorageFull, SpecError) as refused:
                error = {"error": {"code": refused.code, "message": refused.message, "hints": []}}
                self._answer(507 if isinstance(refused, StorageFull) else 400, json.dumps(error).encode())

        def _post(self, path: list[str], body: bytes) -> bytes:
            if path[0] == "attempts":
                answer = (
                    sink.sync(path[1], int(path[3]), body) if path[-1] == "sync" else sink.receive(path, body)
                )
                return json.dumps(answer).encode()
            if path[1] == "missing":
                return json.dumps(
                    {"missing": [d for d in json.loads(body)["digests"] if d not in sink.blobs]}
                ).encode()
            if path[1] == "pack":
                if sink.disk_full_streams:
                    sink.disk_full_streams -= 1
                    raise StorageFull("no space is left on the server's disk")
                sink.blobs.update(_parse_frames(body))
                return b"{}"
            if path[1] == "fetch":
                found = [(digest, sink.blobs[digest]) for digest in json.loads(body)["digests"]]
                return b"".join(
                    _FRAME.pack(bytes.fromhex(digest), len(data)) + data for digest, data in found
                )
            return json.dumps({"ok": path[1] in sink.blobs}).encode()  # verify

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def _answer(self, status: int, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()

    return Routes


def _parse_frames(body: bytes) -> dict[str, bytes]:
    found, at = {}, 0
    while at < len(body):
        raw, size = _FRAME.unpack_from(body, at)
        at += _FRAME.size
        found[raw.hex()] = body[at : at + size]
        at += size
    return found
