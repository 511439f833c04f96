"""How much `GET /events` of many clients slows writes, also of clients that do not read.

    python -m benchmarks.event_clients [--clients 1000] [--writes 1000]

Writers change the notes of runs on a local server, one change a request. A round does that without clients,
with clients that read, and with half of the clients reading nothing. Those are connected, with a small
receive buffer. The clients are one other process. It reports the time from the last write to the last client
that has its event. The server's CPU time is measured over the writes and these deliveries.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from benchmarks.harness import Arguments, Report, alternate_many, main, ratio
from benchmarks.local_server import LocalServer, local_server, scratch_folder, script_spec
from benchmarks.peers.find import PeerPython

NAME = "event_clients"
WRITERS, RUNS = 4, 40
_ROOT = Path(__file__).parents[1]
_RECEIVE_BUFFER_BYTES = 4096
_PATIENCE_S = 120.0


# -- the process of the clients ------------------------------------------------------------------------------


class _Reader(asyncio.Protocol):
    """Counts down `waiting` when the event that is `marker` arrives."""

    def __init__(self, clients: _Clients) -> None:
        self.clients, self.tail, self.is_open = clients, b"", False

    def data_received(self, data: bytes) -> None:
        text = self.tail + data
        if not self.is_open and b'"kind":"open"' in text:
            self.is_open = True
            self.clients.count_opened()
        if self.clients.marker in text:
            self.clients.count_arrived()
            text = b""
        self.tail = text[-len(self.clients.marker) :]


class _Clients:
    """The clients that read. all_opened, all_arrived: set once all have the first, and the last event."""

    def __init__(self, reading: int) -> None:
        self.marker = b'"note":"last"'
        self.all_opened, self.all_arrived = asyncio.Event(), asyncio.Event()
        self._to_open = self._to_arrive = reading
        if not reading:
            self.all_opened.set()
            self.all_arrived.set()

    def count_opened(self) -> None:
        self._to_open -= 1
        if not self._to_open:
            self.all_opened.set()

    def count_arrived(self) -> None:
        self._to_arrive -= 1
        if not self._to_arrive:
            self.all_arrived.set()


async def _follow(host: str, port: int, token: str, reading: int, stalled: int) -> None:
    """Connects, then prints a line when all are connected, and one when all that read have the last event."""
    request = f"GET /api/v1/events HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    clients, loop = _Clients(reading), asyncio.get_running_loop()
    for _ in range(reading):
        transport, _protocol = await loop.create_connection(lambda: _Reader(clients), host, port)
        transport.write(request)
    silent = []
    for _ in range(stalled):
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        plain.connect((host, port))
        plain.sendall(request)
        plain.recv(1, socket.MSG_PEEK)  # the response has begun
        silent.append(plain)
    await clients.all_opened.wait()
    print("open", flush=True)
    await clients.all_arrived.wait()
    print(json.dumps({"at": time.time()}), flush=True)
    await asyncio.to_thread(sys.stdin.read)


# -- the writers ---------------------------------------------------------------------------------------------


async def _write(host: str, port: int, token: str, runs: Sequence[str], writes: int) -> list[float]:
    """Returns the seconds of each write."""
    numbers, seconds = iter(range(writes)), list[float]()

    async def patch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, run: str, note: str) -> None:
        body = json.dumps({"note": note}).encode()
        head = f"PATCH /api/v1/runs/{run} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        started = time.perf_counter()
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer[:16]:
            raise RuntimeError(f"the server refused: {answer.decode(errors='replace')}")
        size = int(answer.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        await reader.readexactly(size)
        seconds.append(time.perf_counter() - started)

    async def work() -> None:
        reader, writer = await asyncio.open_connection(host, port)
        for number in numbers:
            await patch(reader, writer, runs[number % len(runs)], f"note {number}")
        writer.close()

    await asyncio.gather(*(work() for _ in range(WRITERS)))
    reader, writer = await asyncio.open_connection(host, port)
    await patch(reader, writer, runs[0], "last")
    writer.close()
    return seconds


class Writes:
    """The writes of one round, beside clients."""

    def __init__(self, server: LocalServer, options: argparse.Namespace) -> None:
        self.server, self.options = server, options
        node = server.wait_node()
        spec = script_spec(  # the first takes the whole node, so the others wait
            server.upload({"hold.py": "import time\ntime.sleep(3600)\n"}),
            ["python", "hold.py"],
            cpu_milli=int(node["cpu_milli"]),
        )
        self.runs = [server.submit(spec) for _ in range(RUNS + 1)][1:]

    def measure(self, name: str, reading: int, stalled: int) -> dict[str, float]:
        """Returns the figures of a round, their names prefixed."""
        split, token = urlsplit(self.server.client.url), self.server.client.token
        assert split.hostname and split.port
        words = [split.hostname, str(split.port), token, str(reading), str(stalled)]
        process = psutil.Process(self.server.pid)
        with subprocess.Popen(
            [sys.executable, "-m", "benchmarks.event_clients", "--follow", *words],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as clients:
            try:
                assert clients.stdin and clients.stdout
                if clients.stdout.readline().strip() != "open":
                    raise RuntimeError("the clients did not connect")
                before, began = sum(process.cpu_times()[:2]), time.perf_counter()
                seconds = asyncio.run(
                    _write(split.hostname, split.port, token, self.runs, self.options.writes)
                )
                took, ended = time.perf_counter() - began, time.time()
                delivered = json.loads(clients.stdout.readline())["at"]
                cpu = sum(process.cpu_times()[:2]) - before
                memory = process.memory_info().rss / 2**20
                clients.stdin.close()
                clients.wait(_PATIENCE_S)
            finally:
                clients.kill()
        ordered = sorted(seconds)
        return {
            f"{name}_writes": len(seconds) / took,
            f"{name}_p50": ordered[len(ordered) // 2] * 1000,
            f"{name}_p99": ordered[len(ordered) * 99 // 100] * 1000,
            f"{name}_delivered": max(0.0, delivered - ended) * 1000,
            f"{name}_cpu": cpu / len(seconds) * 1000,
            f"{name}_memory": memory,
        }


def measure(options: argparse.Namespace, _peers: PeerPython | None) -> Report:
    settings = {k: v for k, v in vars(options).items() if k not in ("peer", "peer_python", "json")}
    report, count = Report(NAME, settings), options.clients
    sides = {"none": (0, 0), "reading": (count, 0), "stalled": (count - count // 2, count // 2)}
    limits = {"limits": {"connections": 2 * count + 64, "connections_per_peer": 2 * count + 64}}
    with scratch_folder() as folder, local_server(folder, settings={"server": limits}) as server:
        writes = Writes(server, options)
        found = alternate_many(
            options.repeats,
            [lambda name=name, side=side: writes.measure(name, *side) for name, side in sides.items()],  # type: ignore[misc]
        )
    notes = {
        "none": "no client",
        "reading": f"{count} clients that read",
        "stalled": f"{count} clients, half of which read nothing",
    }
    for name, note in notes.items():
        text = f"{options.writes} changes of {RUNS} runs over {WRITERS} connections, {note}"
        report.add(f"{name}_writes", "1/s", found[f"{name}_writes"], note=text)
        report.add(f"{name}_p50", "ms", found[f"{name}_p50"], note="median write")
        report.add(f"{name}_p99", "ms", found[f"{name}_p99"], note="99 of 100 writes are quicker")
        report.add(f"{name}_cpu", "ms", found[f"{name}_cpu"], note="CPU time of the server per write")
        report.add(f"{name}_memory", "MiB", found[f"{name}_memory"], note="resident memory of the server")
        if name != "none":
            report.add(
                f"{name}_delivered", "ms", found[f"{name}_delivered"], note="last write to the last client"
            )
            report.measurements.append(
                ratio(f"{name}_over_none", found[f"{name}_writes"], found["none_writes"])
            )
    return report


def arguments() -> Arguments:
    parser = Arguments(__doc__ or "")
    parser.add_argument("--clients", type=int, default=1000, help="connections to GET /events")
    parser.add_argument("--writes", type=int, default=1000, help="changes in a round")
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if words[:1] == ["--follow"]:
        host, port, token, reading, stalled = words[1:]
        asyncio.run(_follow(host, int(port), token, int(reading), int(stalled)))
        return 0
    return main(NAME, arguments(), measure, argv)


if __name__ == "__main__":
    raise SystemExit(run())
