"""A separate Ray head, and its Jobs: submitted by command, by client, or many at once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers.find import PeerPython

_DRIVER = Path(__file__).with_name("in_ray.py")
_START_TIMEOUT_S = 120
_SETTLE_TIMEOUT_S, _SETTLE_WINDOW_S, _IDLE_CORES = 30, 0.5, 0.2


@contextmanager
def ray_head(folder: Path, peers: PeerPython | None) -> Iterator[RayHead | None]:
    """Starts a head on free ports with the defaults of `ray start --head`; None without Ray.
    Ended by pid: `ray stop` would end every Ray on the machine."""
    version = peers.versions("ray") if peers else {}
    if peers is None or not version:
        yield None
        return
    temporary = folder / "ray"
    temporary.mkdir()
    address = f"http://127.0.0.1:{_free_port()}"
    # Ray's own authentication off: it would need a token file in the user's home.
    settings = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ADDRESS": address,
        "RAY_COLOR_PREFIX": "0",
    }
    environment = {**os.environ, **settings}
    environment.pop("RAY_ADDRESS")
    command: list[Any] = [
        peers.command("ray"),
        "start",
        "--head",
        "--block",
        "--port=0",
        f"--ray-client-server-port={_free_port()}",
    ]
    command += [
        "--include-dashboard=true",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={address.rpartition(':')[2]}",
    ]
    command += ["--disable-usage-stats", f"--temp-dir={temporary}"]
    with (folder / "ray.log").open("wb") as log:
        head = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    driver = None
    try:
        _wait_ready(address, head, folder / "ray.log")
        driver = subprocess.Popen(
            [peers.executable, _DRIVER, address],
            env={**environment, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        yield RayHead(peers, address, {**environment, **settings}, version, driver, head.pid)
    finally:
        if driver is not None:
            driver.kill()
            driver.wait()
        end_session(head)


@dataclass(frozen=True, slots=True)
class RayHead:
    """One running head. All times in seconds."""

    peers: PeerPython
    address: str
    environment: Mapping[str, str]
    version: dict[str, str]
    driver: subprocess.Popen[str]
    session: int

    def submit_by_command(self, script: Path, line: str) -> float:
        """From the start of `ray job submit` to the script's line on its stdout."""
        from benchmarks.local_server import first_line

        command = [
            self.peers.command("ray"),
            "job",
            "submit",
            "--address",
            self.address,
            "--",
            str(self.peers.executable),
            str(script),
        ]
        seconds = first_line(
            [str(word) for word in command], line.encode(), cwd=script.parent, env=self.environment
        )
        self._settle()
        return seconds

    def submit_by_client(self, script: Path, line: str) -> float:
        """From `submit_job` to the line in the job's log, in a client that is warm."""
        return self._ask({"do": "latency", "script": str(script), "line": line})

    def submit_many(self, script: Path, count: int) -> float:
        """From the first `submit_job` to the end of the last of `count` jobs."""
        return self._ask({"do": "throughput", "script": str(script), "count": count})

    def _ask(self, order: Mapping[str, Any]) -> float:
        assert self.driver.stdin is not None and self.driver.stdout is not None
        self.driver.stdin.write(json.dumps(order) + "\n")
        self.driver.stdin.flush()
        answer = self.driver.stdout.readline()
        if not answer:
            raise RuntimeError("the client of Ray Jobs ended")
        told = json.loads(answer)
        if "error" in told:
            raise RuntimeError(f"Ray Jobs: {told['error']}")
        self._settle()
        return float(told["seconds"])

    def _settle(self) -> None:
        """Waits until Ray has cleaned up after its jobs, so that this does not slow down the next
        measurement."""
        deadline = time.monotonic() + _SETTLE_TIMEOUT_S
        before = _cpu_seconds(self.session)
        while time.monotonic() < deadline:
            time.sleep(_SETTLE_WINDOW_S)
            now = _cpu_seconds(self.session)
            if now - before < _IDLE_CORES * _SETTLE_WINDOW_S:
                return
            before = now


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_ready(address: str, head: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while True:
        try:
            with urllib.request.urlopen(f"{address}/api/jobs/", timeout=5) as answer:
                answer.read()
                return
        except OSError:
            if head.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Ray did not start:\n{log.read_text(errors='replace')[-2000:]}") from None
            time.sleep(0.2)


def end_session(head: subprocess.Popen[bytes]) -> None:
    """End it, which began a session of its own, and all that it started: the processes of its session and
    their descendants."""
    mine = {p.pid: p for p in psutil.process_iter() if _session(p.pid) == head.pid}
    for process in list(mine.values()):
        try:
            mine.update({p.pid: p for p in process.children(recursive=True)})
        except psutil.Error:
            continue
    head.send_signal(signal.SIGTERM)
    try:
        head.wait(timeout=10)
    except subprocess.TimeoutExpired:
        head.kill()
        head.wait()
    _, left = psutil.wait_procs(list(mine.values()), timeout=3)
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def _cpu_seconds(session: int) -> float:
    """Returns the CPU seconds of the live processes of a session."""
    total = 0.0
    for process in psutil.process_iter():
        if _session(process.pid) == session:
            try:
                spent = process.cpu_times()
            except psutil.Error:
                continue
            total += spent.user + spent.system
    return total


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1
