"""Processes are killed, frozen or starved at random. Every run ends with each line, metric and checkpoint
exactly once."""

from __future__ import annotations

import json
import random
import signal
import time
from contextlib import suppress
from typing import Any

import psutil
import pytest

from hopyard.private_files import remove_tree
from tests.exploration import seeded, seeds
from tests.faults.test_node_failures import without_descriptors

from .server_home import ServerHome, has_ended, kill, seeded_random, submit, wait_until

# Reads its data, trains, and saves every 5 steps. Each rank prints and logs each step, so lost and duplicated
# output is visible. Ranks are in step, as with all-reduce: the checkpoint of rank 0 is valid for all.
TRAIN_SCRIPT = """
import os, time
import hopyard as hop

p = hop.params(steps=40, gate="")
rank = os.environ.get("RANK", "0")
rows = (hop.dataset_path("rows") / "a.txt").read_text()
state = {"sum": 0}
hop.bind(state=state)
for step in hop.loop(range(p.steps), every=5):
    while step == 35 and not os.path.exists(p.gate): time.sleep(0.01)
    time.sleep(0.03)
    here = f"{p.gate}.{os.environ['HOPYARD_ATTEMPT']}.{step}."
    open(here + rank, "w").close()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    while not all(os.path.exists(here + str(other)) for other in range(world)): time.sleep(0.01)
    state["sum"] += step
    hop.log({f"sum{rank}": state["sum"]}, step=step)
    print("step", step, state["sum"], len(rows), flush=True)
hop.summary(total=state["sum"])
open(f"made{rank}.txt", "w").write("made")
"""
STEPS = 40
EVENTS = 14
ROWS = "many rows"


def signals(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.Error):
        process.send_signal(number)


def processes_by_role(server_home: ServerHome) -> dict[str, list[psutil.Process]]:
    """Returns the processes of a home by role. Scripts are separate, since a killed script fails its run."""
    processes: dict[str, list[psutil.Process]] = {"server": [], "spawner": [], "replica": [], "script": []}
    scripts = {int(pid) for pid in _scripts(server_home)}
    server = (server_home.home.read_server() or {}).get("pid")
    for process in server_home.processes():
        with suppress(psutil.Error):
            words = process.cmdline()
            if process.pid == server:
                processes["server"].append(process)
            elif process.pid in scripts:
                processes["script"].append(process)
            elif process.pid in _replicas(server_home):
                processes["replica"].append(process)
            elif "hopyard.replica.spawner" in words:
                processes["spawner"].append(process)
    return processes


def _states(server_home: ServerHome) -> list[Any]:
    states = []
    with suppress(FileNotFoundError):  # a folder that was removed while it was looked through
        for path in server_home.home.attempts.glob("*/*/status.json"):
            with suppress(OSError, ValueError):
                states.append(json.loads(path.read_bytes()))
    return states


def _scripts(server_home: ServerHome) -> set[int]:
    return {state["child_pid"] for state in _states(server_home) if state["child_pid"]}


def _replicas(server_home: ServerHome) -> set[int]:
    return {state["pid"] for state in _states(server_home)}


def inject_fault(server_home: ServerHome, moment: random.Random) -> str:
    """Injects one fault and returns its description."""
    processes = processes_by_role(server_home)
    fault = moment.choice(["kill", "kill", "kill", "freeze", "freeze", "starve", "power", "backup"])
    kind = moment.choice(
        ["server", "spawner", "replica", "script"] if fault == "freeze" else ["server", "spawner", "replica"]
    )
    if fault == "power":
        server_home.kill_everything()
        return "everything killed"
    if fault == "backup":
        server_home.hop("backup", str(server_home.root / "backup"))
        return "backup"
    if not processes[kind]:
        return f"no {kind}"
    victim = moment.choice(processes[kind])
    if fault == "kill":
        kill(victim.pid)
    elif fault == "freeze":
        signals(victim, signal.SIGSTOP)
        time.sleep(moment.random() * 2)
        signals(victim, signal.SIGCONT)
    else:
        with (
            suppress(OSError, psutil.Error, ProcessLookupError),
            without_descriptors(victim.pid, spare=moment.randrange(3)),
        ):
            time.sleep(moment.random())
    return f"{fault} {kind}"


def check_run(server_home: ServerHome, run: Any, ranks: int) -> None:
    sums = [sum(range(step + 1)) for step in range(STEPS)]
    for rank in range(ranks):
        lines = server_home.log(run, rank=rank).splitlines()
        assert lines == [f"step {step} {sums[step]} {len(ROWS)}" for step in range(STEPS)], (
            run["name"],
            rank,
        )
        assert server_home.metric_series(run, f"sum{rank}") == (list(range(STEPS)), sums), (run["name"], rank)
    assert run["summary"] == {"total": sums[-1]}
    steps = [
        checkpoint["step"] for checkpoint in server_home.get(f"/runs/{run['id']}/checkpoints")["checkpoints"]
    ]
    assert len(set(steps)) == len(steps) and max(steps) == STEPS, steps
    attempts = server_home.get(f"/runs/{run['id']}/attempts")["attempts"]
    assert [attempt["number"] for attempt in attempts] == list(range(1, len(attempts) + 1))
    *before, last = attempts
    assert last["phase"] == "succeeded" and all(
        entry["phase"] in ("lost", "failed", "stopped") for entry in before
    ), attempts
    resumed = [attempt["resumed_from_step"] or 0 for attempt in attempts]
    assert resumed == sorted(resumed), "no attempt begins before what the one before it began with"
    assert run["unstored"] == [] and run["artifact"]


@seeded
@pytest.mark.parametrize("seed", seeds(101))
def test_every_run_ends_with_complete_streams_under_random_faults(server_home: ServerHome, seed: int) -> None:
    moment = seeded_random(seed)
    server_home.write("train.py", TRAIN_SCRIPT)
    server_home.write("data/a.txt", ROWS)
    server_home.ok("dataset", "push", "rows", "data")
    gate = server_home.root / "gate"
    first = server_home.run(server_home.run_detached("-d", "rows", "-p", f"gate={gate}", "train.py"))
    spec = {
        "code": first["spec"]["code"],
        "datasets": [{"name": "rows"}],
        "params": {"gate": str(gate)},
        "max_attempts": 1000,
    }
    trains = ["python", "-u", "train.py"]
    runs = [
        (submit(server_home, trains, **spec), 1),
        (submit(server_home, trains, replicas=2, **spec), 2),
        (submit(server_home, trains, replicas=2, **spec), 2),
    ]
    stopped = submit(server_home, ["python", "-c", "import time; time.sleep(600)"], max_attempts=1000)
    server_home.ok("stop", first["name"])
    for at in range(EVENTS):
        print(f"{time.monotonic():.1f}", inject_fault(server_home, moment), flush=True)
        if at == EVENTS // 2:
            server_home.ok("up")
            server_home.ok("backup", str(server_home.root / "backup"))
            server_home.retry_while_unavailable(lambda client: client.post(f"/runs/{stopped['id']}/stop", {}))
        time.sleep(moment.random() * 0.5)
    gate.touch()
    server_home.ok("up")
    assert server_home.wait_for_phase(stopped["name"], "cancelled")
    for run, ranks in runs:
        check_run(server_home, server_home.wait_for_phase(run["name"], "succeeded"), ranks)
    wait_until(lambda: not list(server_home.home.attempts.iterdir()), "the removal of the attempts' folders")
    wait_until(
        lambda: all(node["used"]["cpu_milli"] == 0 for node in server_home.get("/nodes")["nodes"]),
        "all being free",
    )
    remaining = processes_by_role(server_home)
    assert not remaining["replica"] and not remaining["script"], remaining
    retained = server_home.home.retained
    # of the stopped run: the other runs wait until all is stored
    for left_behind in retained.iterdir() if retained.exists() else ():
        assert left_behind.name == first["id"] and server_home.run(first["name"])["unstored"], (
            "a run names what it left behind"
        )
    assert all(has_ended(pid) for pid in _scripts(server_home))
    check_copy(server_home, runs, stopped)


def check_copy(server_home: ServerHome, runs: list[tuple[Any, int]], stopped: Any) -> None:
    """A home restored during the test, while the original is alive, starts nothing. Later it reaches the same
    result."""
    root = server_home.root / "other"
    root.mkdir()
    other = ServerHome(root, settings="")
    try:
        other.ok("restore", str(server_home.root / "backup"))
        (node,) = other.get("/nodes")["nodes"]
        assert node["cordoned"] and not processes_by_role(other)["replica"]
        assert all(other.run(run["name"])["phase"] in ("queued", "succeeded") for run, _ in runs)
        if other.run(stopped["name"])["phase"] == "queued":
            other.ok("stop", stopped["name"])
        other.ok("node", "uncordon", node["id"])
        for run, ranks in runs:
            check_run(other, other.wait_for_phase(run["name"], "succeeded"), ranks)
    finally:
        other.end()
        remove_tree(other.home.trees)
