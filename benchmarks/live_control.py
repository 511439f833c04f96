"""What a safe point costs, and how soon the processes of a gang obey a command.

    python -m benchmarks.live_control [--points 200000] [--replicas 4]

Safe point: the end of an iteration of `hop.loop` without any request, beside a bare method call, in time of
the CPU. Set and pause: rank 0 stores the command during an iteration, in which all processes meet as in a
collective operation. Each process records the iteration before which its parameter changed, or it waited.
Later: the iterations between the one with the command and that. It is 0 or 1, as another process may be in
the next iteration already. Spread: the difference between the processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness import Arguments, Report, alternate_many, main, ratio
from benchmarks.local_server import scratch_folder
from benchmarks.peers.find import PeerPython
from hopyard.sdk.command_file import CommandFile
from hopyard.sdk.safe_points import SafePoints

NAME = "live_control"
ITERATIONS, SET_AT, PAUSE_AT = 300, 100, 200
PATIENCE_S = 120.0
_IN_GANG = Path(__file__).with_name("in_gang.py")


class _Bare:
    """The bound: a method call that only counts."""

    def __init__(self) -> None:
        self.count = 0

    def reach(self) -> None:
        self.count += 1


def safe_points(folder: Path, points: int) -> dict[str, float]:
    """Returns the microseconds of a safe point without a request, and of a bare call."""
    place = folder / "alone"
    place.mkdir(exist_ok=True)
    real, bare = SafePoints(str(place), str(place), 0, 1), _Bare()
    found = {}
    for name, reach in (("safe_point", real.reach), ("bare_call", bare.reach)):
        began = time.thread_time()
        for _ in range(points):
            reach()
        found[name] = (time.thread_time() - began) / points * 1e6
    real.close()
    return found


def gang(folder: Path, replicas: int) -> dict[str, float]:
    """Returns how many iterations late a gang obeys, and how far its processes are apart."""
    place = folder / f"gang-{time.monotonic_ns()}"
    processes = []
    for rank in range(replicas):
        replica = place / str(rank)
        (replica / "streams").mkdir(parents=True)
        environ = {
            **os.environ,
            "HOPYARD_HOME": str(folder / "home"),
            "HOPYARD_REPLICA_DIR": str(replica),
            "HOPYARD_GANG_DIR": str(place),
            "RANK": str(rank),
            "WORLD_SIZE": str(replicas),
        }
        words = [sys.executable, str(_IN_GANG), *map(str, (ITERATIONS, SET_AT, PAUSE_AT))]
        processes.append(subprocess.Popen(words, cwd=place, env=environ, stdout=subprocess.PIPE, text=True))
    try:
        commands, deadline = CommandFile(str(place)), time.monotonic() + PATIENCE_S
        while commands.agreed < 2:
            if time.monotonic() > deadline:
                raise RuntimeError("the gang has not paused")
            time.sleep(0.01)
        commands.append([{"number": 3, "kind": "resume", "arguments": {}, "user": "bench"}])
        found = [json.loads(process.communicate(timeout=PATIENCE_S)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    changed, resumed = ([each[name] for each in found] for name in ("changed", "resumed"))
    for what, turns, first in (("changed", changed, SET_AT + 1), ("resumed", resumed, PAUSE_AT + 1)):
        if len(set(turns)) > 1 or not first <= turns[0] <= first + 1:
            raise RuntimeError(f"the processes of the gang {what} at the iterations {turns}, not at {first}")
    return {
        "set_later": float(max(changed) - 1 - SET_AT),
        "set_spread": float(max(changed) - min(changed)),
        "pause_later": float(max(resumed) - 1 - PAUSE_AT),
        "pause_spread": float(max(resumed) - min(resumed)),
    }


def measure(options: argparse.Namespace, _: PeerPython | None) -> Report:
    settings = {k: v for k, v in vars(options).items() if k not in ("peer", "peer_python", "json")}
    report = Report(NAME, settings)
    with scratch_folder() as folder:

        def both() -> Mapping[str, float]:
            return {**safe_points(folder, options.points), **gang(folder, options.replicas)}

        found = alternate_many(options.repeats, [both])
    report.add("safe_point", "us", found["safe_point"], note=f"without a request, over {options.points}")
    report.add("bare_call", "us", found["bare_call"], "bound", "a method that only counts")
    report.measurements.append(ratio("over_bare_call", found["safe_point"], found["bare_call"]))
    for name, note in (
        ("set_later", f"until all {options.replicas} processes have the changed parameter"),
        ("set_spread", "between the first and the last process"),
        ("pause_later", "until all processes wait"),
        ("pause_spread", "between the first and the last process"),
    ):
        report.add(name, "iterations", found[name], note=note)
    return report


def arguments() -> Arguments:
    parser = Arguments(__doc__ or "")
    parser.add_argument("--points", type=int, default=200_000, help="timed safe points")
    parser.add_argument("--replicas", type=int, default=4, help="processes of the gang")
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    return main(NAME, arguments(), measure, argv)


if __name__ == "__main__":
    raise SystemExit(run())
