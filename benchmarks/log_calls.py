"""What `hop.log` costs, how fast its points become durable on the server, and how fast they are read back.

    python -m benchmarks.log_calls [--calls 20000] [--points 300000] [--history 20000]

All of Hopyard's figures come from scripts under `hop run` on a local server, with the replica shipping while
the script logs. Durable: from the first call of `hop.log` to the moment when the server tells that the run
has ended, which it does only after it has synced the streams to disk; the script's, the replica's and the
last request's end are in it. The number of points that the API then counts must be the number logged.
Peers do the like as far as they can: trackio writes SQLite from a thread (durable: after `finish`),
tensorboardX an event file from a thread (after `close`; never synced, cannot read back), MLflow writes SQLite
on the caller's thread (durable: `log_batch` of 1,000, its largest; its file store is no longer maintained).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.harness import Arguments, Report, alternate_many, main, ratio
from benchmarks.local_server import LocalServer, local_server, scratch_folder, script_spec
from benchmarks.peers.find import PeerPython

NAME = "log_calls"
METRICS = 3  # a call of the durable measurement
READS = 3
PEERS = ("trackio", "tensorboardX", "mlflow")
_IN_RUN = Path(__file__).with_name("in_run.py")
_IN_LOGGERS = Path(__file__).parent / "peers" / "in_loggers.py"


class Hopyard:
    """Measures Hopyard on one server."""

    def __init__(self, server: LocalServer, options: argparse.Namespace) -> None:
        self.server, self.options = server, options
        self.code = server.upload({"in_run.py": _IN_RUN.read_text()})

    def _run(self, what: str, count: int) -> tuple[str, Mapping[str, float], float]:
        """Returns the run's id, its output, and the time at which its end was observed."""
        spec = script_spec(self.code, ["python", "in_run.py", what, str(count)], cpu_milli=1000)
        run = self.server.submit(spec)
        self.server.wait(run)
        ended = time.time()
        return run, json.loads(self.server.output(run)), ended

    def measure(self) -> dict[str, float]:
        calls = self._run("calls", self.options.calls)[1]
        rounds = self.options.points // METRICS
        run, said, ended = self._run("points", rounds)
        found = self.server.client.get(f"/runs/{run}/metrics", max_points=100)["series"]
        counts = {name: series["count"] for name, series in found.items()}
        if counts != dict.fromkeys(("loss", "accuracy", "rate"), rounds):
            raise RuntimeError(f"logged {rounds} points of each of three metrics, the server holds {counts}")
        history = self._run("history", self.options.history)[0]
        first, again = self._read(history), statistics.median(self._read(history) for _ in range(READS))
        return {
            "one": calls["one"],
            "three": calls["three"],
            "durable": rounds * METRICS / (ended - said["started"]),
            "logging": rounds * METRICS / (said["logged"] - said["started"]),
            "read_back": first,
            "read_again": again,
        }

    def _read(self, run: str) -> float:
        """Milliseconds to have all points of a metric as numbers."""
        started = time.perf_counter()
        back = self.server.client.get(f"/runs/{run}/metrics", names="loss")["series"]["loss"]
        spent = (time.perf_counter() - started) * 1000
        if len(back["values"]) != self.options.history:
            raise RuntimeError(f"{self.options.history} points logged, {len(back['values'])} read back")
        return spent


def peer(
    peers: PeerPython, name: str, folder: Path, options: argparse.Namespace
) -> Callable[[], dict[str, float]]:
    """Runs one peer's program in a fresh process and folder. Returns its measurements, each with the peer's
    name as prefix."""
    number = iter(range(1_000_000))

    def measure() -> dict[str, float]:
        place = folder / f"{name}-{next(number)}"
        place.mkdir()
        counts = [str(options.peer_calls), str(options.peer_points), str(options.history)]
        command = [str(peers.executable), str(_IN_LOGGERS), name, str(place), *counts]
        done = subprocess.run(command, capture_output=True, text=True, cwd=place, check=False)
        if done.returncode:
            raise RuntimeError(f"{name}: exit {done.returncode}\n{done.stderr[-2000:]}")
        return {f"{name}_{key}": value for key, value in json.loads(done.stdout.splitlines()[-1]).items()}

    return measure


def measure(options: argparse.Namespace, peers: PeerPython | None) -> Report:
    settings = {k: v for k, v in vars(options).items() if k not in ("peer", "peer_python", "json")}
    report = Report(NAME, settings)
    with scratch_folder() as folder, local_server(folder) as server:
        sides = [Hopyard(server, options).measure]
        if peers is not None:
            report.peers = peers.versions(*PEERS)
            sides += [peer(peers, name, folder, options) for name in report.peers]
        found = alternate_many(options.repeats, sides)
    report.add(
        "one_metric",
        "us",
        found["one"],
        note=f"a call of `hop.log` with one metric and a step, over {options.calls} calls",
    )
    report.add("three_metrics", "us", found["three"], note="the same with three metrics")
    report.add(
        "durable",
        "points/s",
        found["durable"],
        note=f"{options.points} points, {METRICS} a call, first call to all synced on the server",
    )
    report.add("logging", "points/s", found["logging"], note="the same calls, only until the last returned")
    report.add(
        "read_back",
        "ms",
        found["read_back"],
        note=f"{options.history} points of a metric through the API, parsed; the first read of each run",
    )
    report.add(
        "read_again", "ms", found["read_again"], note=f"the same again (a round is the median of {READS})"
    )
    for name in report.peers:
        for key, unit in (("one", "us"), ("three", "us"), ("durable", "points/s"), ("read_back", "ms")):
            if values := found.get(f"{name}_{key}"):
                report.add(f"{name}_{key}", unit, values, "peer")
                over = (found[key], values) if key == "durable" else (values, found[key])
                report.measurements.append(ratio(f"{key}_better_than_{name}", *over))
    return report


def arguments() -> Arguments:
    parser = Arguments(__doc__ or "")
    parser.add_argument("--calls", type=int, default=20_000, help="timed calls of each kind")
    parser.add_argument("--points", type=int, default=300_000, help="points until durable")
    parser.add_argument("--history", type=int, default=20_000, help="points read back")
    parser.add_argument(
        "--peer-calls",
        type=int,
        default=500,
        help="timed calls of the peers: fewer, because they take so long",
    )
    parser.add_argument("--peer-points", type=int, default=15_000, help="points until durable of the peers")
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    return main(NAME, arguments(), measure, argv)


if __name__ == "__main__":
    raise SystemExit(run())
