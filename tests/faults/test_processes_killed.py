"""kill -9 of a replica, of the user's process, of the spawner, of everything at once: the run goes on or says
why it ended."""

from __future__ import annotations

import time
from typing import Any

import psutil
import pytest

from tests.exploring import seeded

from .world import World, chance, is_gone, kill, submit, until

# Trains a little machine whose state and whose chance decide what comes out; slow enough to be killed in the
# middle.
TRAINS = """
import os, random, time
import hopyard as hop

class Model:
    def __init__(self): self.weight, self.turns = 1.0, 0
    def state_dict(self): return {"weight": self.weight, "turns": self.turns}
    def load_state_dict(self, state): self.weight, self.turns = state["weight"], state["turns"]

p = hop.params(steps=60, pause=0.02, gate="")
random.seed(7)
model = Model()
hop.bind(model=model)
print("begun", flush=True)
for step in hop.loop(range(p.steps), every=5):
    time.sleep(p.pause)
    while step == 50 and p.gate and not os.path.exists(p.gate): time.sleep(0.01)
    model.weight = (model.weight * 1.01 + random.random()) % 10
    model.turns += 1
    hop.log(weight=model.weight, step=step)
    print("step", step, flush=True)
assert model.turns == p.steps
hop.summary(weight=model.weight)
print("end", flush=True)
"""
SLEEPS = "import time\nprint('begun', flush=True)\ntime.sleep(600)\n"


def attempts_of(world: World, run: Any) -> list[Any]:
    return list(world.get(f"/runs/{run['id']}")["attempts"])


def steps_kept(world: World, run: Any) -> list[int]:
    return [one["step"] for one in world.get(f"/runs/{run['id']}/checkpoints")["checkpoints"]]


def spawner_of(world: World) -> int:
    def found() -> int:
        children = psutil.Process(world.server_pid()).children()
        return next((child.pid for child in children if "hopyard.replica.spawner" in child.cmdline()), 0)

    return until(found, "the spawner")


def is_undisturbed(world: World, run: Any, calm: Any) -> None:
    """The run shows what `calm`, to which nothing happened, shows: nothing is missing, nothing doubled."""
    assert world.series(run, "weight") == world.series(calm, "weight")
    assert run["summary"] == calm["summary"]
    said, wanted = (
        ([line for line in world.log(one).splitlines() if line != "begun"]) for one in (run, calm)
    )
    assert said == wanted


@seeded
def test_everything_killed_at_once_goes_on_from_the_newest_checkpoint(world: World) -> None:
    moment = chance(11)
    world.write("train.py", TRAINS)
    calm = world.run(world.ok("run", "--json", "-p", "pause=0", "train.py").json["name"])
    gate = world.root / "gate"
    name = world.detach("-p", f"gate={gate}", "train.py")
    run = world.run(name)
    for number in range(1, 4):
        run = world.reaches(name, "running", attempt=number)
        world.says(run, "begun")
        until(lambda run=run: steps_kept(world, run), "a checkpoint")  # type: ignore[misc]
        time.sleep(moment.random() * 0.4)
        assert world.kill_everything() >= 4, "server, spawner, replica and script"
    gate.touch()
    run = world.reaches(name, "succeeded")
    assert run["attempt"]["number"] == 4
    first, *steps = [attempt["resumed_from_step"] for attempt in attempts_of(world, run)]
    assert first is None
    assert 5 <= steps[0] <= steps[1] <= steps[2] <= 50
    is_undisturbed(world, run, calm)
    kept = steps_kept(world, run)
    assert sorted(set(kept)) == sorted(kept)
    assert max(kept) == 60


def test_everything_killed_without_a_checkpoint_begins_again_and_at_last_gives_up(world: World) -> None:
    run = submit(world, ["python", "-u", "-c", "import time; print('up'); time.sleep(600)"], max_attempts=2)
    for number in (1, 2):
        run = world.reaches(run["name"], "running", attempt=number)
        world.says(run, "up")
        world.kill_everything()
    ended = world.reaches(run["name"], "failed")
    assert ended["attempt"]["number"] == 2
    assert (ended["exit"]["kind"], ended["exit"]["reason"]) == (
        "lost",
        (
            "lost: its replica died on node box; no further retry after the 2nd loss in a row without a "
            "newer checkpoint"
        ),
    )
    assert world.hop("logs", run["name"]).out == "up\n"
    assert "lost: its replica died" in world.ok("info", run["name"]).out
    until(lambda: not any(world.home.attempts.iterdir()), "the removal of the attempts' folders")


def test_a_killed_replica_takes_its_process_along_and_the_run_goes_on(world: World) -> None:
    world.write("train.py", TRAINS)
    calm = world.run(world.ok("run", "--json", "-p", "pause=0", "train.py").json["name"])
    gate = world.root / "gate"
    follower = world.begin("run", "-p", f"gate={gate}", "train.py")
    run = until(
        lambda: next((r for r in world.get("/runs")["runs"] if r["phase"] == "running"), None), "the run"
    )
    state = world.state(run)
    until(lambda: steps_kept(world, run), "a checkpoint")
    kill(state["pid"])
    until(lambda: is_gone(state["child_pid"]), "the end of its process")
    gate.touch()
    done = world.finish(follower)
    assert done.code == 0, done.talk
    assert "attempt 2 starts from the checkpoint at step " in done.talk
    assert "the one before was lost" in done.talk
    run = world.run("last")
    assert [attempt["phase"] for attempt in attempts_of(world, run)] == ["lost", "succeeded"]
    is_undisturbed(world, run, calm)


def test_logs_and_curves_of_all_ranks_go_back_together(world: World) -> None:
    """A resumed gang shows each turn of each rank once."""
    gate = world.root / "gate"
    world.write("train.py", TRAINS)
    name = world.detach("--replicas", "2", "--cpus", "0.5", "-p", f"gate={gate}", "train.py")
    run = world.reaches(name, "running")
    for rank in (0, 1):
        world.says(run, "step 49", rank)
    until(lambda: steps_kept(world, run)[-1:] >= [50], "the newest checkpoint")
    kill(world.state(run)["pid"])
    gate.touch()
    run = world.reaches(name, "succeeded")
    assert attempts_of(world, run)[-1]["resumed_from_step"]
    for rank in (0, 1):
        assert [line for line in world.log(run, rank=rank).splitlines() if line.startswith("step")] == [
            f"step {n}" for n in range(60)
        ]
        found = world.get(f"/runs/{run['id']}/metrics", names="weight", rank=rank)["series"]["weight"][
            "steps"
        ]
        assert found == list(range(60)), f"rank {rank}"


def test_a_killed_script_fails_its_run_and_says_by_what(world: World) -> None:
    world.write("sleep.py", SLEEPS)
    follower = world.begin("run", "sleep.py")
    run = until(
        lambda: next((r for r in world.get("/runs")["runs"] if r["phase"] == "running"), None), "the run"
    )
    world.says(run, "begun")
    kill(world.state(run)["child_pid"])
    done = world.finish(follower)
    assert (done.code, done.out) == (137, "begun\n")
    assert "killed by signal 9 (SIGKILL)" in done.talk.splitlines()[-1]
    assert world.run("last")["attempt"]["number"] == 1, "what a script does itself is not tried again"


def test_a_killed_spawner_is_replaced_and_runs_do_not_notice(world: World) -> None:
    gate = world.root / "gate"
    world.write(
        "wait.py",
        "import os, time\nprint('begun', flush=True)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\nprint('end')\n",
    )
    name = world.detach("wait.py")
    run = world.reaches(name, "running")
    world.says(run, "begun")
    first = spawner_of(world)
    kill(first)
    assert world.ok("run", "--json", "echo", "hello").json["phase"] == "succeeded"
    assert spawner_of(world) != first
    gate.touch()
    assert world.reaches(name, "succeeded")["attempt"]["number"] == 1
    assert world.log(run) == "begun\nend\n"


@pytest.mark.parametrize("victim", ["replica", "script"])
def test_a_gang_ends_whole(world: World, victim: str) -> None:
    """A replica that dies is tried again with the others; a script that dies fails the run, and its rank is
    named."""
    world.write("sleep.py", SLEEPS)
    name = world.detach("--replicas", "2", "--cpus", "0.5", "sleep.py")
    run = world.reaches(name, "running")
    states = [world.state(run, rank) for rank in (0, 1)]
    for rank in (0, 1):
        world.says(run, "begun", rank)
    kill(states[1]["pid" if victim == "replica" else "child_pid"])
    if victim == "replica":
        again = world.reaches(name, "running", attempt=2)
        assert (
            attempts_of(world, again)[0]["exit"]["reason"] == "replica 1: lost: its replica died on node box"
        )
        world.says(again, "begun", 0)
        world.says(again, "begun", 1)
        assert world.ok("stop", "--grace", "0", name)
        assert world.reaches(name, "cancelled")["attempt"]["number"] == 2
    else:
        ended = world.reaches(name, "failed")
        assert ended["exit"]["reason"] == "replica 1: killed by signal 9 (SIGKILL)"
        assert (ended["exit"]["code"], ended["attempt"]["number"]) == (137, 1)
    for state in states:
        assert is_gone(state["child_pid"])
        until(lambda state=state: is_gone(state["pid"]), "the end of its replica")  # type: ignore[misc]


def test_a_gang_that_is_killed_too_often_fails_with_the_rank_to_blame(world: World) -> None:
    run = submit(
        world, ["python", "-u", "-c", "import time; print('up'); time.sleep(600)"], replicas=2, max_attempts=1
    )
    run = world.reaches(run["name"], "running")
    states = [world.state(run, rank) for rank in (0, 1)]
    kill(states[0]["pid"])
    ended = world.reaches(run["name"], "failed")
    assert ended["exit"]["reason"] == "replica 0: lost: its replica died on node box"
    assert all(is_gone(state["child_pid"]) for state in states)


def test_what_is_killed_between_being_asked_to_stop_and_the_end_is_cancelled(world: World) -> None:
    world.write("deaf.py", "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPS)
    name = world.detach("deaf.py")
    run = world.reaches(name, "running")
    world.says(run, "begun")
    world.ok("stop", "--grace", "60s", name)
    world.kill_everything()
    world.ok("up")
    assert world.reaches(name, "cancelled")["attempt"]["number"] == 1
