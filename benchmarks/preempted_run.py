"""How soon a preempted run is back at its next step.

    python -m benchmarks.preempted_run [--replicas 1] [--repeats 5]

A run trains with `hop.loop` on all CPUs of a warm local server. A run with a higher priority preempts it: it
saves a checkpoint, exits, waits, and starts again from this checkpoint when the other run has ended. Timed is
the whole of it, from the submission of the more important run to the first step of the next attempt, minus
what Hopyard does not cause: the time in which the more important script runs, and the time of the
preempted script from its start to its first step, measured bare in the same round.
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
from typing import Any

from benchmarks.harness import Arguments, Report, alternate_many, main
from benchmarks.local_server import LocalServer, local_server, scratch_folder, script_spec
from benchmarks.peers.find import PeerPython

NAME = "preempted_run"
CPU_MILLI = 1000
PATIENCE_S = 120.0
URGENT_S = 0.2  # that the more important script takes
BEFORE = 5  # steps before the preemption
TRAIN = """
import os, time
import hopyard as hop

p = hop.params(notes="")
state = hop.bind(total=0)
for step in hop.loop(range(1_000_000), every=1_000_000):
    state.total += step
    hop.log(total=state.total, step=step)
    if os.environ.get("RANK", "0") == "0":
        with open(p.notes, "a") as notes:
            notes.write(f"{os.environ.get('HOPYARD_ATTEMPT', 'bare')} {step} {time.time()}\\n")
    if os.environ.get("BARE"):
        break
    time.sleep(0.02)
"""
URGENT = f"""
import time
import hopyard as hop

began = time.time()
time.sleep({URGENT_S})
with open(hop.params(notes="").notes, "a") as notes:
    notes.write(f"{{began}} {{time.time()}}\\n")
"""


def wait_lines(path: Path, count: int) -> list[list[str]]:
    """Returns the words of the lines of a file that has at least `count`. Raises TimeoutError."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        complete = [line.split() for line in lines if line.endswith("\n")]
        if len(complete) >= count:
            return complete
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.name} has {len(complete)} lines, awaited were {count}")
        time.sleep(0.005)


def bare_start(folder: Path) -> float:
    """Returns the seconds from the start of the script, without Hopyard's server, to its first step."""
    place = folder / f"bare-{time.monotonic_ns()}"
    place.mkdir()
    (place / "train.py").write_text(TRAIN)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("HOPYARD_")} | {
        "HOPYARD_HOME": str(place / "home"),
        "HOPYARD_PARAMS": json.dumps({"notes": str(place / "notes")}),
        "BARE": "1",
    }
    began = time.time()
    subprocess.run([sys.executable, "train.py"], cwd=place, env=environ, check=True, capture_output=True)
    return float(wait_lines(place / "notes", 1)[0][2]) - began


def preempt(server: LocalServer, folder: Path, replicas: int) -> dict[str, float]:
    """Preempts a run once. Returns the seconds of all of it, and of its parts."""
    place = folder / f"round-{time.monotonic_ns()}"
    place.mkdir()
    code = server.upload({"train.py": TRAIN, "urgent.py": URGENT})

    def submit(script: str, notes: Path, priority: int, count: int) -> str:
        spec: dict[str, Any] = script_spec(code, ["python", script], cpu_milli=CPU_MILLI)
        spec["roles"][0]["replicas"] = count
        return server.submit({**spec, "priority": priority, "params": {"notes": str(notes)}})

    steps, urgent_notes = place / "steps", place / "urgent"
    run = submit("train.py", steps, 50, replicas)
    wait_lines(steps, BEFORE)
    asked_at = time.time()
    urgent = submit("urgent.py", urgent_notes, 90, 1)
    began_at, ended_at = map(float, wait_lines(urgent_notes, 1)[0])
    first = wait_lines(steps, 1)[0][0]
    deadline = time.monotonic() + PATIENCE_S
    while wait_lines(steps, 1)[-1][0] == first:
        if time.monotonic() > deadline:
            raise TimeoutError("the preempted run is not back")
        time.sleep(0.005)
    lines = wait_lines(steps, 1)
    back = next(line for line in lines if line[0] != first)
    left = [line for line in lines if line[0] == first][-1]
    if int(back[1]) != int(left[1]) + 1:
        raise RuntimeError(f"the run left after step {left[1]} and is back at step {back[1]}")
    server.wait(urgent)
    server.client.post(f"/runs/{run}/stop", {"grace_s": 0})
    server.wait_phase(run, ("cancelled",))
    return {
        "whole": float(back[2]) - asked_at,
        "urgent_script": ended_at - began_at,
        "to_start_urgent": began_at - asked_at,
        "to_next_step": float(back[2]) - ended_at,
    }


def measure(options: argparse.Namespace, _: PeerPython | None) -> Report:
    report = Report(NAME, {"replicas": options.replicas, "repeats": options.repeats})
    settings = {"node": {"id": "box", "cpus": options.replicas, "memory": "4G"}}
    with scratch_folder() as folder, local_server(folder, settings=settings) as server:

        def both() -> Mapping[str, float]:
            bare = bare_start(folder)
            found = preempt(server, folder, options.replicas)
            return {**found, "bare": bare, "back": found["whole"] - found["urgent_script"] - bare}

        found = alternate_many(options.repeats, [both])
    report.add("back", "s", found["back"], note="whole - urgent_script - bare, round by round")
    for name, note in (
        ("whole", "from the submission of the more important run to the next step of the preempted one"),
        ("to_start_urgent", "until the more important script has started: the save and end of the other run"),
        ("to_next_step", "from the end of the more important script to the next step of the preempted one"),
        ("urgent_script", "that the more important script itself takes"),
    ):
        report.add(name, "s", found[name], note=note)
    report.add("bare", "s", found["bare"], "bound", "the preempted script from its start to its first step")
    return report


def arguments() -> Arguments:
    parser = Arguments(__doc__ or "")
    parser.add_argument("--replicas", type=int, default=1, help="of the preempted run")
    return parser


def run(argv: Sequence[str] | None = None) -> int:
    return main(NAME, arguments(), measure, argv)


if __name__ == "__main__":
    raise SystemExit(run())
