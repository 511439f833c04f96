"""A server from the view of a replica: accepts streams, status, blobs and checkpoints, and returns blobs.
Uses real HTTP, without a backend.

For tests of replicas and engines. A test can stop it and restart it at another port with all its data, and
check what it received.
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
        self.run_folders: dict[str, str] = {}
        self.locks: dict[str, dict[str, Any]] = {}
        self.received_tokens: set[str] = set()
        self.renewed_token: str | None = None
        self.stop_requested = False
        self.preempt_requested = False  # the stop is a preemption
        self.grace_s: float | None = None
        self.refused_segments = 0
        self.disk_full_streams = 0  # the number of further packs of blobs that fail on a full disk
        self.faults = 0  # the number of further requests, without syncs, that fail with `fault`
        self.fault = (500, "error")
        self.reject_checkpoints = False
        self._change = threading.Condition()
        self._servers: list[tuple[ThreadingHTTPServer, threading.Thread]] = []
        self.port = 0
        self.restart_listening()

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop_listening(self) -> None:
        """Stops listening and breaks every connection, as a killed server does."""
        servers, self._servers = self._servers, []
        for server, thread in servers:
            server.shutdown()
            server.server_close()
            thread.join()

    def restart_listening(self) -> None:
        """Listens again, at another port, with all received data."""
        server = _TcpServer(("127.0.0.1", 0), _make_handler(self))
        self.port = server.server_address[1]
        self._serve(server)

    def _serve(self, server: ThreadingHTTPServer) -> None:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        self._servers.append((server, thread))

    close = stop_listening

    def serve_home(self, home: Home) -> None:
        """Serves the Unix socket of this home, with `server.json`, until the server is stopped."""
        self._serve(_UnixServer(home, _make_handler(self)))
        write_atomically(home.server_file, json.dumps({"url": self.url}).encode())

    def put_tree(self, folder: Path) -> str:
        """Stores the content of a folder; returns the digest of its manifest."""
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
        """Waits until `predicate(self)` holds; checked after each request. Raises TimeoutError."""
        with self._change:
            if not self._change.wait_for(lambda: predicate(self), timeout_s):
                raise TimeoutError(
                    f"after {timeout_s} s; last statuses: "
                    f"{ {key: statuses[-1] for key, statuses in self.statuses.items()} }"
                )

    def wait_final(self, attempt: str, rank: int = 0, *, timeout_s: float = 60.0) -> Mapping[str, Any]:
        """Waits for the final report of a replica; returns its exit."""
        self.wait(lambda sink: (attempt, rank) in sink.finals, timeout_s=timeout_s)
        exit: Mapping[str, Any] = self.finals[attempt, rank]["exit"]
        return exit

    # -- handlers of the routes ------------------------------------------------------------------------------

    def sync(self, attempt: str, rank: int, body: bytes) -> dict[str, Any]:
        line, _, rest = body.partition(b"\n")
        head = json.loads(line)
        with self._change:
            offset = 0
            for segment in head["segments"]:
                stream = self.streams.setdefault((attempt, rank, segment["stream"]), bytearray())
                data = rest[offset : offset + segment["size"]]
                offset += segment["size"]
                if segment["offset"] == len(stream):
                    stream += data
                else:
                    self.refused_segments += 1
            statuses = self.statuses.setdefault((attempt, rank), [])
            if not statuses or statuses[-1] != head["status"]:
                statuses.append(head["status"])
            if head["final"]:
                self.finals[attempt, rank] = head["status"]
            self._change.notify_all()
            offsets = {
                name: len(data)
                for (stream_attempt, stream_rank, name), data in self.streams.items()
                if (stream_attempt, stream_rank) == (attempt, rank)
            }
            return {
                "offsets": offsets,
                "token": self.renewed_token,
                "stop": self.stop_requested,
                "preempt": self.preempt_requested,
                "grace_s": self.grace_s,
            }

    def receive(self, path: list[str], body: bytes) -> dict[str, Any]:
        """Handles all other JSON requests."""
        fields = json.loads(body)
        with self._change:
            if path[2] == "checkpoints" and self.reject_checkpoints:
                raise SpecError("such checkpoints are rejected")
            if path[2] == "checkpoints":
                missing = [digest for digest in [fields["manifest"]] if digest not in self.blobs]
                if missing:
                    raise KeyError(missing[0])
                self.checkpoints.append(fields)
            elif path[2] == "artifact":
                self.artifacts[path[1]] = fields["manifest"]
            elif path[2] == "run-folder":
                self.run_folders[path[1]] = fields["manifest"]
            elif path[2] == "lock":
                self.locks[path[1]] = fields
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
    """Listens on a port."""


class _UnixServer(_BreakingServer, HomeServer):
    """Listens on the socket of a home."""


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
            sink.received_tokens.add(self.headers.get("Authorization", "").removeprefix("Bearer "))
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
                response = {"error": {"code": "not_found", "message": f"no blob {missing}", "hints": []}}
                self._answer(404, json.dumps(response).encode())
            except (StorageFull, SpecError) as error:
                response = {"error": {"code": error.code, "message": error.message, "hints": []}}
                self._answer(507 if isinstance(error, StorageFull) else 400, json.dumps(response).encode())

        def _post(self, path: list[str], body: bytes) -> bytes:
            if path[0] == "attempts":
                answer = (
                    sink.sync(path[1], int(path[3]), body) if path[-1] == "sync" else sink.receive(path, body)
                )
                return json.dumps(answer).encode()
            if path[1] == "missing":
                return json.dumps(
                    {
                        "missing": [
                            digest for digest in json.loads(body)["digests"] if digest not in sink.blobs
                        ]
                    }
                ).encode()
            if path[1] == "pack":
                if sink.disk_full_streams:
                    sink.disk_full_streams -= 1
                    raise StorageFull("no space is left on the server's disk")
                sink.blobs.update(_parse_frames(body))
                return b"{}"
            if path[1] == "fetch":
                blobs = [(digest, sink.blobs[digest]) for digest in json.loads(body)["digests"]]
                return b"".join(
                    _FRAME.pack(bytes.fromhex(digest), len(data)) + data for digest, data in blobs
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
    blobs, offset = {}, 0
    while offset < len(body):
        raw, size = _FRAME.unpack_from(body, offset)
        offset += _FRAME.size
        blobs[raw.hex()] = body[offset : offset + size]
        offset += size
    return blobs
