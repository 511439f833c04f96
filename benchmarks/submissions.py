"""Runs accepted durably a second: `POST /runs`, one run a request, over kept-open connections.

    python -m benchmarks.submissions [--runs 10000] [--connections 48]

Nothing starts meanwhile: a first run holds all CPUs of the node. When the last answer has come the server is
killed with SIGKILL, another is started on the same home, and every run that was acknowledged must be there,
by id. Bound: rows of the same size put into SQLite (WAL, with the fsync setting of the server's store), one
commit each and batched by as many as there are connections; and bare fsyncs of a file. All on the same disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from benchmarks.harness import Arguments, Report, alternate, main, ratio
from benchmarks.local_server import LocalServer, local_server, scratch_folder, script_spec
from benchmarks.peers.find import PeerPython

NAME = "submissions"
HOLD = "import time\nprint('holding', flush=True)\ntime.sleep(3600)\n"
PAGE = 500


class Connection(asyncio.Protocol):
    """Sends the same request repeatedly, each after the previous answer, while `take` grants another."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.buffer = bytearray()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its bases

    def next(self) -> None:
        if self.load.left:
            self.load.left -= 1
            self.transport.write(self.load.request)
        elif not self.done.done():
            self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head = self.buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        header = bytes(self.buffer[:head]).lower()
        at = header.find(b"content-length:")
        size = int(header[at + 15 :].split(b"\r\n", 1)[0])
        if len(self.buffer) < head + 4 + size:
            return
        self.load.answers.append(bytes(self.buffer))
        self.buffer.clear()
        self.next()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server closed the connection"))


class Load:
    """`count` equal requests over `connections` connections; answers are kept raw and looked at
    afterwards."""

    def __init__(self, url: str, token: str, body: bytes, count: int) -> None:
        split = urlsplit(url)
        assert split.hostname and split.port
        self.host, self.port, self.left = split.hostname, split.port, count
        head = f"POST /api/v1/runs HTTP/1.1\r\nHost: {self.host}\r\nAuthorization: Bearer {token}\r\n"
        self.request = (
            f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )
        self.answers: list[bytes] = []

    async def send(self, connections: int) -> float:
        """Seconds from the first request to the last answer, on connections that are open already."""
        loop = asyncio.get_running_loop()
        opened = [
            (await loop.create_connection(lambda: Connection(self), self.host, self.port))[1]
            for _ in range(connections)
        ]
        started = time.perf_counter()
        for connection in opened:
            connection.next()
        await asyncio.gather(*(connection.done for connection in opened))
        seconds = time.perf_counter() - started
        for connection in opened:
            connection.transport.close()
        return seconds

    def accepted(self) -> set[str]:
        """Returns the acknowledged ids. Raises RuntimeError for any other answer."""
        ids = set()
        for answer in self.answers:
            head, _, body = answer.partition(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 201"):
                raise RuntimeError(f"the server refused: {answer[:500].decode(errors='replace')}")
            ids.add(str(json.loads(body)["id"]))
        return ids


def submit(folder: Path, count: int, connections: int) -> float:
    """Accepted runs a second on a fresh server, checked after a kill."""
    with local_server(folder) as server:
        hold_node(server)
        spec = script_spec(
            server.upload({"hello.py": "print('hello')\n"}), ["python", "hello.py"], cpu_milli=1000
        )
        load = Load(server.client.url, server.client.token, json.dumps({"spec": spec}).encode(), count)
        seconds = run_loop(load.send(connections))
        server.kill()
        accepted = load.accepted()
        server.start()
        missing = accepted - stored(server)
        if len(accepted) != count or missing:
            raise RuntimeError(
                f"{count} runs sent, {len(accepted)} acknowledged, of these {len(missing)} are gone "
                "after SIGKILL of the server"
            )
        return count / seconds


def hold_node(server: LocalServer) -> None:
    """Takes every CPU of the node, so that no other run starts."""
    node = server.wait_node()
    spec = script_spec(
        server.upload({"hold.py": HOLD}),
        ["python", "hold.py"],
        cpu_milli=int(node["cpu_milli"]),
        project="hold",
    )
    server.wait_phase(server.submit(spec), ["running"])


def stored(server: LocalServer) -> set[str]:
    """Returns the ids of all runs of the project, page by page."""
    found: set[str] = set()
    before: str | None = None
    while True:
        page = server.client.get("/runs", project="bench", limit=PAGE, before=before)
        found.update(str(run["id"]) for run in page["runs"])
        before = page["next"]
        if before is None:
            return found


def run_loop(sending: asyncio.Future[float] | object) -> float:
    """Uses uvloop if available: the load generator must cost less than the server."""
    try:
        import uvloop

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    except ImportError:
        runner = asyncio.Runner()
    with runner:
        return float(runner.run(sending))  # type: ignore[arg-type]


def sqlite_inserts(folder: Path, count: int, batch: int, row: str, synchronous: str) -> float:
    """Rows a second into a table with a text key, `batch` rows a commit."""
    path = folder / "bound.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute("CREATE TABLE IF NOT EXISTS run (id TEXT PRIMARY KEY, spec TEXT NOT NULL)")
    started = time.perf_counter()
    for first in range(0, count, batch):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO run VALUES (?, ?)",
            ((f"{time.time_ns():020}{first + i:08}", row) for i in range(min(batch, count - first))),
        )
        connection.execute("COMMIT")
    seconds = time.perf_counter() - started
    connection.close()
    for leftover in folder.glob("bound.db*"):
        leftover.unlink()
    return count / seconds


def fsyncs(folder: Path, count: int) -> float:
    """4 KiB appends a second, each made durable."""
    path = folder / "fsync"
    with path.open("wb", buffering=0) as file:
        started = time.perf_counter()
        for _ in range(count):
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
        seconds = time.perf_counter() - started
    path.unlink()
    return count / seconds


def measure(options: argparse.Namespace, peers: PeerPython | None) -> Report:
    del peers  # no peer accepts runs durably; the bound is the disk
    settings = {
        "runs": options.runs,
        "connections": options.connections,
        "repeats": options.repeats,
        "synchronous": options.synchronous,
    }
    report = Report(NAME, settings)
    with scratch_folder() as folder:
        row = json.dumps(script_spec("0" * 64, ["python", "hello.py"], cpu_milli=1000))  # type: ignore[arg-type]
        number = iter(range(1_000_000))

        def new_folder() -> Path:
            made = folder / str(next(number))
            made.mkdir()
            return made

        single, batched = min(options.runs, 2000), options.runs
        found = alternate(
            options.repeats,
            {
                "hop": lambda: submit(new_folder(), options.runs, options.connections),
                "one": lambda: sqlite_inserts(folder, single, 1, row, options.synchronous),
                "batch": lambda: sqlite_inserts(
                    folder, batched, options.connections, row, options.synchronous
                ),
                "fsync": lambda: fsyncs(folder, single),
            },
            warm_up=0,
        )
    report.add(
        "durable",
        "runs/s",
        found["hop"],
        note=(
            f"{options.runs} POST /runs over {options.connections} connections; all there by id after "
            "SIGKILL of the server"
        ),
    )
    report.add(
        "sqlite_single",
        "rows/s",
        found["one"],
        "bound",
        f"SQLite WAL synchronous={options.synchronous}, one commit a row",
    )
    report.add(
        "sqlite_batched", "rows/s", found["batch"], "bound", f"the same, {options.connections} rows a commit"
    )
    report.add("fsync", "1/s", found["fsync"], "bound", "append 4 KiB and fdatasync")
    report.measurements.append(ratio("over_sqlite_single", found["hop"], found["one"]))
    return report


def arguments() -> Arguments:
    parser = Arguments(__doc__ or "")
    parser.add_argument("--runs", type=int, default=10_000, help="submissions a round")
    parser.add_argument("--connections", type=int, default=48)
    parser.add_argument(
        "--synchronous",
        choices=("FULL", "NORMAL"),
        default="FULL",
        help="of the bound; FULL is what the server's store uses",
    )
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    return main(NAME, arguments(), measure, argv)


if __name__ == "__main__":
    raise SystemExit(run())
