"""A fresh Hopyard in a folder of its own: its server, its command line, and runs made straight over the
API."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from blake3 import blake3

from hopyard.api_client.client import Client
from hopyard.api_client.local_server import start_server, stop_server
from hopyard.config.home import HOME_VARIABLE, REPLICA_VARIABLE, Home
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import FileEntry, Manifest

FINAL = ("succeeded", "failed", "cancelled")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder on the disk that the benchmarks use ($TMPDIR chooses it), removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="hopyard-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def hop_command() -> list[str]:
    """The installed `hop` of this interpreter's environment."""
    script = Path(sys.executable).with_name("hop")
    if not script.exists():
        raise SystemExit(
            "error: this interpreter's environment has no `hop`\n"
            "hint: install Hopyard into it, then run the benchmark with its python"
        )
    return [str(script)]


@contextmanager
def local_server(folder: Path, *, settings: Mapping[str, Any] | None = None) -> Iterator[LocalServer]:
    """Starts a server on a separate home below `folder`. On exit, it and all remaining processes of its runs
    are ended, by pid.

    settings: the content of the home's config.yaml.
    """
    home = Home(folder / "home").create()
    if settings:
        home.settings_file.write_text(json.dumps(settings))  # JSON is YAML
    server, before = LocalServer(home), os.environ.get(HOME_VARIABLE)
    os.environ[HOME_VARIABLE] = str(home.root)  # marks every process of this home, see `processes`
    try:
        server.start()
        yield server
    finally:
        try:
            server.end()
        finally:
            if before is None:
                del os.environ[HOME_VARIABLE]
            else:
                os.environ[HOME_VARIABLE] = before


@dataclass(slots=True)
class LocalServer:
    """`client` speaks to the server that runs now."""

    home: Home
    client: Client = None  # type: ignore[assignment]  # set by start
    pid: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """For `hop` commands that are to use this server."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HOPYARD_")}
        return {**kept, HOME_VARIABLE: str(self.home.root)}

    # -- its life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it, or find it started; it has answered when this returns."""
        found = start_server(self.home)
        token = self.home.read_token()
        if token is None:
            raise RuntimeError("the server wrote no token")
        self.pid, self.client = found.pid, Client(found.url, token, timeout_s=120)

    def kill(self) -> None:
        """SIGKILL, as a crash would; returns when the process is gone."""
        process = psutil.Process(self.pid)
        process.kill()
        gone_or_zombie(process, timeout_s=30)

    def end(self) -> None:
        """Stops the server with its runs, then ends all remaining processes of this home."""
        try:
            stop_server(self.home, runs="stop")
        finally:
            for process in self.processes():
                process.send_signal(signal.SIGKILL)

    def processes(self) -> list[psutil.Process]:
        """Returns every live process of this home, recognised by its environment or its command."""
        root, found = str(self.home.root), []
        for process in psutil.process_iter():
            if process.pid == os.getpid():
                continue
            try:
                variables = process.environ()
                mine = (
                    variables.get(HOME_VARIABLE) == root
                    or variables.get(REPLICA_VARIABLE, "").startswith(root + "/")
                    or any(root in word for word in process.cmdline())
                )
            except (psutil.Error, OSError):
                continue
            if mine:
                found.append(process)
        return found

    # -- runs ------------------------------------------------------------------------------------------------

    def hop(self, *words: str, cwd: Path | None = None) -> str:
        """Runs a `hop` command and returns its stdout.
        Raises RuntimeError with its output if it fails."""
        done = subprocess.run(
            [*hop_command(), *words],
            check=False,
            cwd=cwd,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"hop {' '.join(words)}: exit {done.returncode}\n{done.stderr[-2000:]}")
        return done.stdout

    def upload(self, files: Mapping[str, str]) -> Digest:
        """Put a small tree of text files on the server; its manifest's digest."""
        blobs: list[tuple[str, bytes]] = []
        entries = []
        for path, text in files.items():
            data = text.encode()
            digest = Digest(blake3(data).hexdigest())
            blobs.append((digest, data))
            entries.append(FileEntry(path, len(data), (digest,)))
        encoded = Manifest.build(entries).encode()
        name = Digest(blake3(encoded).hexdigest())
        self.client.put_pack([*blobs, (name, encoded)])
        return name

    def submit(self, spec: Mapping[str, Any]) -> str:
        return str(self.client.post("/runs", {"spec": spec})["id"])

    def wait(self, run: str) -> dict[str, Any]:
        """Follow a run to its end, without its output: the run. Raises RuntimeError unless it succeeded."""
        with self.client.open(
            "GET", f"/runs/{run}/follow", query={"streams": "stderr", "ranks": "0"}, timeout_s=600
        ) as frames:
            while line := frames.readline():
                frame = json.loads(line)
                if frame["kind"] == "output":
                    frames.read_exactly(int(frame["size"]))
                elif frame["kind"] == "end":
                    ended: dict[str, Any] = frame["run"]
                    if ended["phase"] != "succeeded":
                        raise RuntimeError(
                            f"run {run} {ended['phase']}: {ended.get('exit')}\n"
                            f"{self.output(run, 'stderr').decode(errors='replace')}"
                        )
                    return ended
        raise RuntimeError(f"the server stopped telling about run {run}")

    def output(self, run: str, stream: str = "stdout") -> bytes:
        with self.client.open("GET", f"/runs/{run}/log", query={"stream": stream, "rank": 0}) as answer:
            return answer.read()

    def wait_node(self, *, timeout_s: float = 30) -> dict[str, Any]:
        """Returns the server's node once it is observed. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while not (nodes := self.client.get("/nodes")["nodes"]):
            if time.monotonic() > deadline:
                raise TimeoutError("the server has no node")
            time.sleep(0.01)
        return dict(nodes[0])

    def wait_phase(self, run: str, phases: Sequence[str], *, timeout_s: float = 60) -> None:
        """Waits until the run is in one of the phases. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while (phase := self.client.get(f"/runs/{run}")["phase"]) not in phases:
            if time.monotonic() > deadline:
                raise TimeoutError(f"run {run} is {phase}, awaited was {' or '.join(phases)}")
            time.sleep(0.01)


def script_spec(
    code: Digest, command: Sequence[str], *, cpu_milli: int, project: str = "bench"
) -> dict[str, Any]:
    """Returns the spec that `hop run` sends for a script that needs only the caller's interpreter."""
    return {
        "project": project,
        "roles": [{"command": list(command), "resources": {"cpu_milli": cpu_milli}}],
        "code": code,
        "environment": {"interpreter": sys.executable},
        "max_attempts": 1,
    }


def gone_or_zombie(process: psutil.Process, *, timeout_s: float) -> None:
    """Waits for the end of a process, which may be a child of another process. Raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return
        except psutil.NoSuchProcess:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {process.pid} does not end")
        time.sleep(0.005)


def first_line(command: Sequence[str], wanted: bytes, *, cwd: Path, env: Mapping[str, str]) -> float:
    """Returns the seconds from the start of the command until a line on its stdout equals `wanted`. Its exit
    is awaited, untimed.

    Raises RuntimeError if the line never comes or the command fails.
    """
    started = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=cwd, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    seconds = None
    for line in process.stdout:
        if line.strip() == wanted:
            seconds = time.perf_counter() - started
            break
    process.stdout.read()
    said = process.stderr.read()
    if process.wait() or seconds is None:
        raise RuntimeError(
            f"{' '.join(map(str, command))}: exit {process.returncode}\n"
            f"{said.decode(errors='replace')[-2000:]}"
        )
    return seconds
