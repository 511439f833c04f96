"""Repeated kill -9 of the server at seeded moments: runs continue, and the next server has every byte of them
once."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.exploration import seeded

from .server_home import ServerHome, kill, seeded_random, submit, wait_until

# Prints a numbered line and logs a metric until the gate file exists; then prints the count.
TALKS = """
import os, sys, time
import hopyard as hop

weights = {"sum": 0}
hop.bind(weights=weights)
i = 0
while not os.path.exists(sys.argv[1]):
    print("line", i, flush=True)
    if i % 10 == 0:
        print("warning", i, file=sys.stderr, flush=True)
    hop.log(x=i * 0.5, y=-i, step=i)
    if i % 200 == 0:
        weights["sum"] = i
        hop.save(i)
    i += 1
    time.sleep(0.005)
hop.summary(total=i)
print("end", i)
"""


def complete_output(text: str) -> int:
    """Returns the number of numbered lines, which must be complete and in order."""
    *lines, end = text.splitlines()
    total = int(end.removeprefix("end "))
    assert lines == [f"line {i}" for i in range(total)]
    return total


def check_complete(server_home: ServerHome, run: Any) -> None:
    total = complete_output(server_home.log(run))
    assert server_home.log(run, "stderr").splitlines() == [f"warning {i}" for i in range(0, total, 10)]
    for name, values in (("x", [i * 0.5 for i in range(total)]), ("y", [float(-i) for i in range(total)])):
        assert server_home.metric_series(run, name) == (list(range(total)), values)
    checkpoints = server_home.get(f"/runs/{run['id']}/checkpoints")["checkpoints"]
    steps = [checkpoint["step"] for checkpoint in checkpoints]
    assert len(set(steps)) == len(steps)
    assert max(steps) == (total - 1) // 200 * 200, "the newest checkpoint came over"


@seeded
@pytest.mark.parametrize("seed", [1, 2])
def test_followed_run_output_is_complete_and_printed_once(server_home: ServerHome, seed: int) -> None:
    """`hop run` itself starts the next server: no other command runs."""
    gate, moment = server_home.root / "gate", seeded_random(seed)
    server_home.write("talks.py", TALKS)
    server_home.ok("up")
    follower = server_home.start_hop("run", "talks.py", "--", str(gate))
    wait_until(lambda: server_home.get("/runs")["runs"], "the run")
    killed: set[int] = set()
    run = server_home.wait_for_phase("last", "running")
    server_home.wait_for_output(run, "line 20")
    for _ in range(4):
        wait_until(
            lambda: (
                follower.poll() is not None
                or (server_home.server_pid() not in killed and server_home.server_pid())
            ),
            "another server",
        )
        assert follower.poll() is None, server_home.finish(follower)
        time.sleep(moment.random() * 0.7)  # not to wait for something: this is the moment
        killed.add(server_home.kill_server())
    gate.touch()
    done = server_home.finish(follower)
    assert done.code == 0, done.stderr
    total = complete_output(done.stdout)
    warnings = [line for line in done.stderr.splitlines() if line.startswith("warning ")]
    assert warnings == [f"warning {i}" for i in range(0, total, 10)]
    run = server_home.run("last")
    assert (run["phase"], run["attempt"]["number"], run["summary"]) == ("succeeded", 1, {"total": total})
    check_complete(server_home, run)


@seeded
def test_detached_runs_survive_and_next_command_adopts_them(server_home: ServerHome) -> None:
    gate, moment = server_home.root / "gate", seeded_random(3)
    server_home.write("talks.py", TALKS)
    names = [server_home.run_detached("talks.py", "--", str(gate)) for _ in range(3)]
    for _ in range(4):
        time.sleep(moment.random() * 0.5)
        server_home.kill_server()
        time.sleep(moment.random() * 0.3)  # the runs have no server for a while
        listed = server_home.ok("ps", "--json").json
        assert {run["name"]: run["phase"] for run in listed}.keys() == set(names)
        assert all(run["phase"] in ("starting", "running") for run in listed), listed
    for name in names:  # a slow machine may not have started each script between the kills
        server_home.wait_for_output(server_home.wait_for_phase(name, "running"), "line 0\n")
    gate.touch()
    for name in names:
        run = server_home.wait_for_phase(name, "succeeded")
        assert run["attempt"]["number"] == 1
        check_complete(server_home, run)


def test_run_that_ends_during_outage_is_reported_by_next_server(server_home: ServerHome) -> None:
    gate = server_home.root / "gate"
    server_home.write("talks.py", TALKS + "sys.exit(3)\n")
    name = server_home.run_detached("talks.py", "--", str(gate))
    run = server_home.wait_for_phase(name, "running")
    pid = server_home.replica_status(run)["child_pid"]
    server_home.wait_for_output(run, "line 20")
    server_home.kill_server()
    gate.touch()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the script")
    server_home.ok("ps")
    run = server_home.wait_for_phase(name, "failed")
    assert (run["exit"]["code"], run["attempt"]["number"]) == (3, 1)
    assert run["exit"]["reason"].startswith("exit code 3")
    check_complete(server_home, run)


@seeded
def test_submission_during_kill_is_stored_once_or_not_at_all(server_home: ServerHome) -> None:
    """Commands that submit while the server is killed: each succeeds, and each submission runs once."""
    moment, seen = seeded_random(4), server_home.root / "seen"
    server_home.write(
        "main.py",
        f"import os, sys\nopen({str(seen)!r}, 'a').write(sys.argv[1] + ' ' + "
        "os.environ['HOPYARD_ATTEMPT'] + chr(10))\n",
    )
    server_home.ok("up")
    dead: set[int] = set()
    commands = []
    for wave in range(3):
        commands += [
            server_home.start_hop("run", "--detach", "--cpus", "0.1", "main.py", "--", f"{wave}.{i}")
            for i in range(4)
        ]
        wait_until(lambda: server_home.server_pid() not in dead and server_home.server_pid(), "a server")
        time.sleep(moment.random() * 0.8)
        dead.add(server_home.kill_server())
    names = []
    for command in commands:
        done = server_home.finish(command)
        assert done.code == 0, done.stderr
        names.append(done.stdout.strip())
    assert len(set(names)) == len(commands)
    for name in names:
        assert server_home.wait_for_phase(name, "succeeded")["attempt"]["number"] == 1
    words = [line.split() for line in seen.read_text().splitlines()]
    assert sorted(word for word, _ in words) == sorted(f"{wave}.{i}" for wave in range(3) for i in range(4))
    assert len(server_home.ok("ps", "--all", "--json").json) == len(commands)


@pytest.mark.slow
@seeded
def test_hundred_queued_runs_end_and_start_only_once(server_home: ServerHome) -> None:
    moment, seen = seeded_random(5), server_home.root / "seen"
    command = ["/bin/sh", "-c", f"echo $HOPYARD_ATTEMPT >> {seen}; echo done"]
    resources = {"cpu_milli": 500}
    server_home.ok("up")
    runs = []
    for i in range(100):
        runs.append(submit(server_home, command, resources=resources))
        if i % 30 == 29:
            time.sleep(moment.random() * 0.3)
            server_home.kill_server()

    def all_ended() -> bool:
        counts = server_home.get("/status")["runs"]
        return int(counts.get("succeeded", 0)) + int(counts.get("failed", 0)) >= 100

    def started() -> int:
        return len(seen.read_text().splitlines()) if seen.exists() else 0

    for _ in range(25):  # a slow machine ends few runs between two kills
        if all_ended():
            break
        time.sleep(moment.random() * 0.6)
        server_home.kill_server()
        before = started()
        server_home.ok("up")
        wait_until(lambda before=before: all_ended() or started() > before, "another run")  # type: ignore[misc]
    wait_until(all_ended, "the end of all runs")
    assert server_home.get("/status")["runs"] == {"succeeded": 100}
    assert sorted(seen.read_text().split()) == sorted(f"{run['id']}.1" for run in runs)
    assert [server_home.log(run) for run in runs[::10]] == ["done\n"] * 10


def test_server_killed_while_starting_is_restarted(server_home: ServerHome) -> None:
    waiting, dead = server_home.start_hop("ps", "--json"), set[int]()

    def starting() -> int:
        return next(
            (p.pid for p in server_home.processes() if p.pid not in dead and "hopyard.app" in p.cmdline()), 0
        )

    while (
        len(dead) < 2 and not server_home.home.server_file.exists()
    ):  # once the server answers, this test does not apply
        pid = wait_until(starting, "a server that starts")
        dead.add(pid)
        kill(pid)
    answered = server_home.home.server_file.exists() and server_home.server_pid() in dead
    done = server_home.finish(waiting)
    assert (done.code == 0 and done.json == []) or (
        answered and done.stderr.splitlines()[-2].startswith("error: ")
    ), done


def test_run_time_excludes_server_outage(server_home: ServerHome) -> None:
    gate = server_home.root / "gate"
    server_home.write(
        "waits.py", "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
    )
    run = server_home.wait_for_phase(server_home.run_detached("waits.py", "--", str(gate)), "running")
    server_home.kill_server()
    gate.touch()
    state = wait_until(
        lambda: (status := server_home.replica_status(run))["exit"] and status, "the end of the script"
    )
    wait_until(lambda: time.time() > state["ended_at"] + 3, "an outage of three seconds")
    server_home.ok("up")
    ended = server_home.wait_for_phase(run["id"], "succeeded")
    late_s = datetime.fromisoformat(ended["ended_at"]).timestamp() - state["ended_at"]
    assert 0 <= late_s + 0.01 < 1.5
    assert ended["served_s"] == pytest.approx(state["ended_at"] - state["started_at"], abs=1.5)
