"""The cost of an idle Hopyard: `hop --help` as a complete process, and memory and CPU of the idle server.

    python -m benchmarks.footprint [--runs 10] [--idle 30]

The server is measured after some runs, so that all lazily loaded modules are loaded. Memory is the resident
set of the server's process. CPU is that of the server with its spawner, in percent of one core.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks.harness import Arguments, Report, alternate, main, say
from benchmarks.local_server import LocalServer, hop_command, local_server, scratch_folder
from benchmarks.peers.find import PeerPython

NAME = "footprint"
MB = 1_000_000


def process_ms(command: Sequence[str], server: LocalServer) -> float:
    """Milliseconds from start to exit."""
    started = time.perf_counter()
    subprocess.run(command, check=True, env=server.environment, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - started) * 1000


def cpu_seconds(process: psutil.Process) -> float:
    spent = process.cpu_times()
    return float(spent.user + spent.system)


def idle_usage(server: LocalServer, seconds: float) -> tuple[float, float, float]:
    """Resident bytes of the server, proportional bytes of it with its spawner, and their CPU share in percent
    of a core."""
    processes = server.processes()
    before = sum(map(cpu_seconds, processes))
    started = time.perf_counter()
    time.sleep(seconds)
    share = (sum(map(cpu_seconds, processes)) - before) / (time.perf_counter() - started) * 100
    resident = next(p.memory_info().rss for p in processes if p.pid == server.pid)
    return resident, sum(p.memory_full_info().pss for p in processes), share


def measure(options: argparse.Namespace, peers: PeerPython | None) -> Report:
    del peers  # the bound is the bare interpreter; no peer has a comparable command
    report = Report(NAME, {"runs": options.runs, "idle_s": options.idle, "repeats": options.repeats})
    memory, together, share = [], [], []
    with scratch_folder() as folder, local_server(folder) as server:
        found = alternate(
            options.repeats * 2,
            {
                "help": lambda: process_ms([*hop_command(), "--help"], server),
                "python": lambda: process_ms([sys.executable, "-c", "pass"], server),
            },
        )
        trivial_runs(server, folder, options.runs)
        time.sleep(min(2.0, options.idle))  # work after the end of the last run is not idle time
        for number in range(options.idle_repeats):
            resident, proportional, percent = idle_usage(server, options.idle)
            memory.append(resident / MB)
            together.append(proportional / MB)
            share.append(percent)
            say(f"idle {number + 1}/{options.idle_repeats}: {memory[-1]:.1f} MB, {percent:.2f} %")
    report.add("help", "ms", found["help"], note="`hop --help`, process start to exit")
    report.add("bare_python", "ms", found["python"], "bound", "`python -c pass`, the same way")
    report.add("server_rss", "MB", memory, note=f"resident set of the server after {options.runs} runs")
    report.add("server_and_spawner_pss", "MB", together, note="both processes, shared pages counted once")
    report.add(
        "server_cpu",
        "%",
        share,
        note=f"of one core, server and spawner, over {options.idle:g} s without a request",
    )
    return report


def trivial_runs(server: LocalServer, folder: Path, count: int) -> None:
    project = folder / "project"
    project.mkdir()
    (project / "hello.py").write_text("print('hello')\n")
    for _ in range(count):
        server.hop("run", "hello.py", cwd=project)


def arguments() -> Arguments:
    parser = Arguments(__doc__ or "")
    parser.add_argument("--runs", type=int, default=10, help="runs that pass before the server is measured")
    parser.add_argument(
        "--idle", type=float, default=30, metavar="SECONDS", help="length of one idle measurement"
    )
    parser.add_argument("--idle-repeats", type=int, default=5, help="idle measurements")
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    return main(NAME, arguments(), measure, argv)


if __name__ == "__main__":
    raise SystemExit(run())
