"""How fast the server answers a chart of many runs, beside plain numpy over the same points.

    python -m benchmarks.series [--runs 100] [--points 10000]

The runs log their points with `hop.log` on a local server. A request reads the metric of all of them in 1,000
buckets each. The first one decodes the streams, the later ones find them in memory. Bound: minimum, maximum
and mean by numpy over arrays in memory, made to JSON, in this process. Both sides return the same number of
values, and the answer's counts must add up to the points that were logged.
"""

from __future__ import annotations

import argparse
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import psutil

from benchmarks.harness import Arguments, Report, alternate_many, main, ratio
from benchmarks.local_server import LocalServer, local_server, scratch_folder, script_spec
from benchmarks.peers.find import PeerPython

NAME = "series"
BUCKETS = 1000
_IN_RUN = Path(__file__).with_name("in_run.py")


class Charts:
    """The finished runs of one server, and requests for their curves."""

    def __init__(self, server: LocalServer, options: argparse.Namespace) -> None:
        self.server, self.points = server, options.points
        code = server.upload({"in_run.py": _IN_RUN.read_text()})
        command = ["python", "in_run.py", "history", str(options.points)]
        self.runs = [server.submit(script_spec(code, command, cpu_milli=100)) for _ in range(options.runs)]
        for run in self.runs:
            server.wait(run)

    def read(self, **query: str) -> tuple[float, bytes]:
        """Returns the milliseconds until the whole answer is here, and the answer."""
        words = [("run", run) for run in self.runs] + [("name", "loss"), *query.items()]
        request = urllib.request.Request(
            f"{self.server.client.url}/api/v1/series?{urllib.parse.urlencode(words)}",
            headers={"Authorization": f"Bearer {self.server.home.read_token()}"},
        )
        started = time.perf_counter()
        with urllib.request.urlopen(request, timeout=120) as response:
            answer = response.read()
        return (time.perf_counter() - started) * 1000, answer

    def measure(self) -> dict[str, float]:
        chart, answer = self.read(columns="min,max,mean,counts")
        found = msgspec.json.decode(answer)
        counts = [sum(part.get("counts", ())) or part["count"] for part in found["series"]]
        if counts != [self.points] * len(self.runs):
            raise RuntimeError(f"{self.points} points were logged, the answer counts {set(counts)}")
        zoom, _ = self.read(begin=str(self.points // 2), end=str(self.points // 2 + BUCKETS // 2))
        every, _ = self.read()
        unchanged, _ = self.read(since=found["cursor"])
        memory = psutil.Process(self.server.pid).memory_info().rss / 2**20
        return {"chart": chart, "all_columns": every, "zoom": zoom, "unchanged": unchanged, "memory": memory}


def plain_numpy(options: argparse.Namespace) -> Callable[[], Mapping[str, float]]:
    """Measures minimum, maximum and mean of equal parts of arrays in memory, as JSON."""
    values = [1.0 / (np.arange(options.points) + 1.0 + run) for run in range(options.runs)]
    size = max(1, options.points // BUCKETS)

    def measure() -> dict[str, float]:
        started = time.perf_counter()
        answers = []
        for each in values:
            parts = each[: len(each) // size * size].reshape(-1, size)
            columns = parts.min(axis=1), parts.max(axis=1), parts.mean(axis=1)
            steps, counts = np.arange(0, len(parts) * size, size), np.full(len(parts), size)
            answers.append([column.tolist() for column in (steps, *columns, counts)])
        msgspec.json.encode(answers)
        return {"plain_numpy": (time.perf_counter() - started) * 1000}

    return measure


def measure(options: argparse.Namespace, _peers: PeerPython | None) -> Report:
    settings = {k: v for k, v in vars(options).items() if k not in ("peer", "peer_python", "json")}
    report = Report(NAME, settings)
    with scratch_folder() as folder, local_server(folder) as server:
        charts = Charts(server, options)
        first, _ = charts.read()
        found = alternate_many(options.repeats, [charts.measure, plain_numpy(options)])
    total = f"{options.runs} runs of {options.points} points, {BUCKETS} buckets each"
    report.add("first", "ms", (first,), note=f"{total}: the first request, which decodes the streams")
    report.add("chart", "ms", found["chart"], note=f"{total}: minimum, maximum, mean and count, warm")
    report.add("all_columns", "ms", found["all_columns"], note="the same with all default columns")
    report.add("zoom", "ms", found["zoom"], note=f"the exact points of {BUCKETS // 2} steps of each run")
    report.add("unchanged", "ms", found["unchanged"], note="with the cursor of the last answer")
    report.add("memory", "MiB", found["memory"], note="resident memory of the server")
    report.add("plain_numpy", "ms", found["plain_numpy"], "bound", "the same columns from arrays, as JSON")
    report.measurements.append(ratio("chart_over_plain_numpy", found["chart"], found["plain_numpy"]))
    return report


def arguments() -> Arguments:
    parser = Arguments(__doc__ or "")
    parser.add_argument("--runs", type=int, default=100, help="runs in the chart, at most 100")
    parser.add_argument("--points", type=int, default=10_000, help="points of each run")
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    return main(NAME, arguments(), measure, argv)


if __name__ == "__main__":
    raise SystemExit(run())
