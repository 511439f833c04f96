"""kill -9 of the server, again and again, at seeded moments: runs go on, and the next server has every byte
of them once."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.exploring import seeded

from .world import World, chance, kill, submit, until

# Says a numbered line and logs a metric again and again until the gate is there; then how many.
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
    if i % 400 == 0:
        weights["sum"] = i
        hop.save(i)
    i += 1
    time.sleep(0.001)
hop.summary(total=i)
print("end", i)
"""


def whole(text: str) -> int:
    """How many numbered lines there are, which must be each once and in order."""
    *lines, end = text.splitlines()
    total = int(end.removeprefix("end "))
    assert lines == [f"line {i}" for i in range(total)]
    return total


def is_complete(world: World, run: Any) -> None:
    total = whole(world.log(run))
    assert world.log(run, "stderr").splitlines() == [f"warning {i}" for i in range(0, total, 10)]
    for name, values in (("x", [i * 0.5 for i in range(total)]), ("y", [float(-i) for i in range(total)])):
        assert world.series(run, name) == (list(range(total)), values)
    kept = world.get(f"/runs/{run['id']}/checkpoints")["checkpoints"]
    steps = [one["step"] for one in kept]
    assert len(set(steps)) == len(steps)
    assert max(steps) == (total - 1) // 400 * 400, "the newest checkpoint came over"


@seeded
@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_that_is_followed_is_printed_once_and_whole(world: World, seed: int) -> None:
    """`hop run` itself starts the next server: nobody else types anything."""
    gate, moment = world.root / "gate", chance(seed)
    world.write("talks.py", TALKS)
    world.ok("up")
    follower = world.begin("run", "talks.py", "--", str(gate))
    until(lambda: world.get("/runs")["runs"], "the run")
    killed: set[int] = set()
    run = world.reaches("last", "running")
    world.says(run, "line 20")
    for _ in range(4):
        until(
            lambda: follower.poll() is not None or (world.server_pid() not in killed and world.server_pid()),
            "another server",
        )
        assert follower.poll() is None, world.finish(follower)
        time.sleep(moment.random() * 0.7)  # not to wait for something: this is the moment
        killed.add(world.kill_server())
    gate.touch()
    done = world.finish(follower)
    assert done.code == 0, done.talk
    total = whole(done.out)
    said = [line for line in done.talk.splitlines() if line.startswith("warning ")]
    assert said == [f"warning {i}" for i in range(0, total, 10)]
    run = world.run("last")
    assert (run["phase"], run["attempt"]["number"], run["summary"]) == ("succeeded", 1, {"total": total})
    is_complete(world, run)


@seeded
def test_detached_runs_go_on_and_the_next_command_takes_them_back(world: World) -> None:
    gate, moment = world.root / "gate", chance(3)
    world.write("talks.py", TALKS)
    names = [world.detach("talks.py", "--", str(gate)) for _ in range(3)]
    for _ in range(4):
        time.sleep(moment.random() * 0.5)
        world.kill_server()
        time.sleep(moment.random() * 0.3)  # meanwhile the runs talk to nobody
        listed = world.ok("ps", "--json").json
        assert {run["name"]: run["phase"] for run in listed}.keys() == set(names)
        assert all(run["phase"] in ("starting", "running") for run in listed), listed
    gate.touch()
    for name in names:
        run = world.reaches(name, "succeeded")
        assert run["attempt"]["number"] == 1
        is_complete(world, run)


def test_a_run_that_ends_while_no_server_is_there_is_told_by_the_next(world: World) -> None:
    gate = world.root / "gate"
    world.write("talks.py", TALKS + "sys.exit(3)\n")
    name = world.detach("talks.py", "--", str(gate))
    run = world.reaches(name, "running")
    pid = world.state(run)["child_pid"]
    world.says(run, "line 20")
    world.kill_server()
    gate.touch()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the script")
    world.ok("ps")
    run = world.reaches(name, "failed")
    assert (run["exit"]["code"], run["attempt"]["number"]) == (3, 1)
    assert run["exit"]["reason"].startswith("exit code 3")
    is_complete(world, run)


@seeded
def test_a_submission_in_flight_is_there_once_or_not_at_all(world: World) -> None:
    """Commands that submit while the server dies: each ends well, and what each of them submitted ran
    once."""
    moment, seen = chance(4), world.root / "seen"
    world.write(
        "main.py",
        f"import os, sys\nopen({str(seen)!r}, 'a').write(sys.argv[1] + ' ' + "
        "os.environ['HOPYARD_ATTEMPT'] + chr(10))\n",
    )
    world.ok("up")
    dead: set[int] = set()
    commands = []
    for wave in range(3):
        commands += [
            world.begin("run", "--detach", "--cpus", "0.1", "main.py", "--", f"{wave}.{i}") for i in range(4)
        ]
        until(lambda: world.server_pid() not in dead and world.server_pid(), "a server")
        time.sleep(moment.random() * 0.8)
        dead.add(world.kill_server())
    names = []
    for command in commands:
        done = world.finish(command)
        assert done.code == 0, done.talk
        names.append(done.out.strip())
    assert len(set(names)) == len(commands)
    for name in names:
        assert world.reaches(name, "succeeded")["attempt"]["number"] == 1
    words = [line.split() for line in seen.read_text().splitlines()]
    assert sorted(word for word, _ in words) == sorted(f"{wave}.{i}" for wave in range(3) for i in range(4))
    assert len(world.ok("ps", "--all", "--json").json) == len(commands)


@seeded
def test_a_hundred_queued_runs_all_end_and_none_is_started_twice(world: World) -> None:
    moment, seen = chance(5), world.root / "seen"
    command = ["/bin/sh", "-c", f"echo $HOPYARD_ATTEMPT >> {seen}; echo done"]
    resources = {"cpu_milli": 500}
    world.ok("up")
    runs = []
    for i in range(100):
        runs.append(submit(world, command, resources=resources))
        if i % 30 == 29:
            time.sleep(moment.random() * 0.3)
            world.kill_server()

    def all_ended() -> bool:
        told = world.get("/status")["runs"]
        return int(told.get("succeeded", 0)) + int(told.get("failed", 0)) >= 100

    while not all_ended():
        time.sleep(moment.random() * 0.6)
        world.kill_server()
        before = len(seen.read_text().splitlines()) if seen.exists() else 0
        world.ok("up")
        until(lambda before=before: all_ended() or len(seen.read_text().splitlines()) > before, "another run")  # type: ignore[misc]
    assert world.get("/status")["runs"] == {"succeeded": 100}
    assert sorted(seen.read_text().split()) == sorted(f"{run['id']}.1" for run in runs)
    assert [world.log(run) for run in runs[::10]] == ["done\n"] * 10


def test_a_server_that_is_killed_while_it_starts_is_started_again(world: World) -> None:
    waiting, dead = world.begin("ps", "--json"), set[int]()

    def starting() -> int:
        return next(
            (p.pid for p in world.processes() if p.pid not in dead and "hopyard.app" in p.cmdline()), 0
        )

    while len(dead) < 2 and not world.home.server_file.exists():  # once it answers, another thing is tested
        pid = until(starting, "a server that starts")
        dead.add(pid)
        kill(pid)
    answered = world.home.server_file.exists() and world.server_pid() in dead
    done = world.finish(waiting)
    assert (done.code == 0 and done.json == []) or (
        answered and done.talk.splitlines()[-2].startswith("error: ")
    ), done


def test_the_time_of_a_run_does_not_count_the_absence_of_the_server(world: World) -> None:
    gate = world.root / "gate"
    world.write("waits.py", "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\n")
    run = world.reaches(world.detach("waits.py", "--", str(gate)), "running")
    world.kill_server()
    gate.touch()
    state = until(lambda: (found := world.state(run))["exit"] and found, "the end of the script")
    until(lambda: time.time() > state["ended_at"] + 3, "an outage of three seconds")
    world.ok("up")
    ended = world.reaches(run["id"], "succeeded")
    late_s = datetime.fromisoformat(ended["ended_at"]).timestamp() - state["ended_at"]
    assert 0 <= late_s + 0.01 < 1.5
    assert ended["served_s"] == pytest.approx(state["ended_at"] - state["started_at"], abs=1.5)
