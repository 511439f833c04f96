"""Trivial runs a second through the whole system, from the first submission to the end of the last run.

    python -m benchmarks.throughput [--runs 100] [--cpus 0.25] [--peer-runs 10]

A run is a script of one `print`, with its code packed and uploaded, sent over the API as `hop run` sends it,
each as a process of its own in a folder of its own. All are submitted at once. Afterwards every run's phase
and output are checked. The node has as many CPUs as the machine, a run asks for `--cpus` of one: 0.25 lets
eight run at once on two cores, enough that starting one run and ending another overlap, few enough that they
do not fight for the cores.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks.harness import Arguments, Report, alternate, main, ratio
from benchmarks.local_server import LocalServer, local_server, scratch_folder, script_spec
from benchmarks.peers.find import PeerPython
from benchmarks.peers.ray_jobs import ray_head

NAME = "throughput"
LINE = "hello from the script"
SCRIPT = f"print({LINE!r})\n"
SENDERS = 4
ASK_EVERY_S = 0.05
LIVE = "queued,starting,running,stopping"


def measure(options: argparse.Namespace, peers: PeerPython | None) -> Report:
    report = Report(
        NAME,
        {
            "runs": options.runs,
            "cpus": options.cpus,
            "peer_runs": options.peer_runs,
            "repeats": options.repeats,
        },
    )
    with scratch_folder() as folder, local_server(folder) as server, ray_head(folder, peers) as ray:
        script = folder / "hello.py"
        script.write_text(SCRIPT)
        sides: dict[str, Callable[[], float]] = {
            "hop": lambda: options.runs / submit_all(server, options.runs, options.cpus)
        }
        if ray is not None:
            report.peers = ray.version
            sides["ray"] = lambda: options.peer_runs / ray.submit_many(script, options.peer_runs)
        found = alternate(options.repeats, sides)
    report.add(
        "runs",
        "runs/s",
        found["hop"],
        note=f"{options.runs} runs of {options.cpus:g} CPU each, submitted at once, all finished",
    )
    if ray is not None:
        report.add(
            "ray_jobs",
            "runs/s",
            found["ray"],
            "peer",
            f"{options.peer_runs} Ray jobs submitted at once, all finished",
        )
        report.measurements.append(ratio("over_ray", found["hop"], found["ray"]))
    return report


def submit_all(server: LocalServer, count: int, cpus: float) -> float:
    """Returns the seconds until all of `count` runs have finished.
    Raises RuntimeError if one did not succeed or lost its output."""
    spec = script_spec(
        server.upload({"hello.py": SCRIPT}), ["python", "hello.py"], cpu_milli=round(cpus * 1000)
    )
    with ThreadPoolExecutor(SENDERS) as senders:
        started = time.perf_counter()
        runs = list(senders.map(lambda _: server.submit(spec), range(count)))
        while server.client.get("/runs", phase=LIVE, limit=1)["runs"]:
            time.sleep(ASK_EVERY_S)
        seconds = time.perf_counter() - started
    for run in runs:
        phase, said = server.client.get(f"/runs/{run}")["phase"], server.output(run)
        if phase != "succeeded" or said.decode() != LINE + "\n":
            raise RuntimeError(f"run {run} {phase}, its output is {said!r}")
    return seconds


def arguments() -> Arguments:
    parser = Arguments(__doc__ or "")
    parser.add_argument("--runs", type=int, default=100, help="runs a round")
    parser.add_argument("--cpus", type=float, default=0.25, help="CPUs that each run asks for")
    parser.add_argument(
        "--peer-runs", type=int, default=10, help="Ray jobs a round: fewer, because they take so long"
    )
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    return main(NAME, arguments(), measure, argv)


if __name__ == "__main__":
    raise SystemExit(run())
