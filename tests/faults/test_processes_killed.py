"""kill -9 of a replica, the script, the spawner, and everything at once: the run resumes or ends with a
reason."""

from __future__ import annotations

import time
from typing import Any

import psutil
import pytest

from tests.exploration import seeded

from .server_home import ServerHome, has_ended, kill, seeded_random, submit, wait_until

# Trains a small model whose result depends on its state and random numbers; slow enough to be killed in the
TRAIN_SCRIPT = """
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


def attempts_of(server_home: ServerHome, run: Any) -> list[Any]:
    return list(server_home.get(f"/runs/{run['id']}")["attempts"])


def checkpoint_steps(server_home: ServerHome, run: Any) -> list[int]:
    return [
        checkpoint["step"] for checkpoint in server_home.get(f"/runs/{run['id']}/checkpoints")["checkpoints"]
    ]


def spawner_of(server_home: ServerHome) -> int:
    def found() -> int:
        children = psutil.Process(server_home.server_pid()).children()
        return next((child.pid for child in children if "hopyard.replica.spawner" in child.cmdline()), 0)

    return wait_until(found, "the spawner")


def check_uninterrupted(server_home: ServerHome, run: Any, uninterrupted: Any) -> None:
    """Checks that the run shows the same as the uninterrupted run: nothing is missing, nothing is
    duplicated."""
    assert server_home.metric_series(run, "weight") == server_home.metric_series(uninterrupted, "weight")
    assert run["summary"] == uninterrupted["summary"]
    lines, expected_lines = (
        ([line for line in server_home.log(shown_run).splitlines() if line != "begun"])
        for shown_run in (run, uninterrupted)
    )
    assert lines == expected_lines


@seeded
def test_run_resumes_from_newest_checkpoint_after_total_kill(server_home: ServerHome) -> None:
    moment = seeded_random(11)
    server_home.write("train.py", TRAIN_SCRIPT)
    uninterrupted = server_home.run(server_home.ok("run", "--json", "-p", "pause=0", "train.py").json["name"])
    gate = server_home.root / "gate"
    name = server_home.run_detached("-p", f"gate={gate}", "train.py")
    run = server_home.run(name)
    for number in range(1, 4):
        run = server_home.wait_for_phase(name, "running", attempt=number)
        server_home.wait_for_output(run, "begun")
        wait_until(lambda run=run: checkpoint_steps(server_home, run), "a checkpoint")  # type: ignore[misc]
        time.sleep(moment.random() * 0.4)
        assert server_home.kill_everything() >= 4, "server, spawner, replica and script"
    gate.touch()
    run = server_home.wait_for_phase(name, "succeeded")
    assert run["attempt"]["number"] == 4
    first, *steps = [attempt["resumed_from_step"] for attempt in attempts_of(server_home, run)]
    assert first is None
    assert 5 <= steps[0] <= steps[1] <= steps[2] <= 50
    check_uninterrupted(server_home, run, uninterrupted)
    kept = checkpoint_steps(server_home, run)
    assert sorted(set(kept)) == sorted(kept)
    assert max(kept) == 60


def test_run_without_checkpoint_restarts_and_fails_after_max_attempts(
    server_home: ServerHome,
) -> None:
    run = submit(
        server_home, ["python", "-u", "-c", "import time; print('up'); time.sleep(600)"], max_attempts=2
    )
    for number in (1, 2):
        run = server_home.wait_for_phase(run["name"], "running", attempt=number)
        server_home.wait_for_output(run, "up")
        server_home.kill_everything()
    ended = server_home.wait_for_phase(run["name"], "failed")
    assert ended["attempt"]["number"] == 2
    assert (ended["exit"]["kind"], ended["exit"]["reason"]) == (
        "lost",
        (
            "lost: its replica died on node box; no further retry after the 2nd loss in a row without a "
            "newer checkpoint"
        ),
    )
    assert server_home.hop("logs", run["name"]).stdout == "up\n"
    assert "lost: its replica died" in server_home.ok("info", run["name"]).stdout
    wait_until(lambda: not any(server_home.home.attempts.iterdir()), "the removal of the attempts' folders")


def test_killed_replica_ends_its_script_and_run_is_retried(server_home: ServerHome) -> None:
    server_home.write("train.py", TRAIN_SCRIPT)
    uninterrupted = server_home.run(server_home.ok("run", "--json", "-p", "pause=0", "train.py").json["name"])
    gate = server_home.root / "gate"
    follower = server_home.start_hop("run", "-p", f"gate={gate}", "train.py")
    run = wait_until(
        lambda: next((r for r in server_home.get("/runs")["runs"] if r["phase"] == "running"), None),
        "the run",
    )
    state = server_home.replica_status(run)
    wait_until(lambda: checkpoint_steps(server_home, run), "a checkpoint")
    kill(state["pid"])
    wait_until(lambda: has_ended(state["child_pid"]), "the end of its process")
    gate.touch()
    done = server_home.finish(follower)
    assert done.code == 0, done.stderr
    assert "attempt 2 starts from the checkpoint at step " in done.stderr
    assert "attempt 1 was lost" in done.stderr
    run = server_home.run("last")
    assert [attempt["phase"] for attempt in attempts_of(server_home, run)] == ["lost", "succeeded"]
    check_uninterrupted(server_home, run, uninterrupted)


def test_logs_and_metrics_of_all_ranks_roll_back_together(server_home: ServerHome) -> None:
    """A resumed gang shows each step of each rank once."""
    gate = server_home.root / "gate"
    server_home.write("train.py", TRAIN_SCRIPT)
    name = server_home.run_detached("--replicas", "2", "--cpus", "0.5", "-p", f"gate={gate}", "train.py")
    run = server_home.wait_for_phase(name, "running")
    for rank in (0, 1):
        server_home.wait_for_output(run, "step 49", rank)
    wait_until(lambda: checkpoint_steps(server_home, run)[-1:] >= [50], "the newest checkpoint")
    kill(server_home.replica_status(run)["pid"])
    gate.touch()
    run = server_home.wait_for_phase(name, "succeeded")
    assert attempts_of(server_home, run)[-1]["resumed_from_step"] == 50
    for rank in (0, 1):
        assert [line for line in server_home.log(run, rank=rank).splitlines() if line.startswith("step")] == [
            f"step {n}" for n in range(60)
        ]
        result = server_home.get(f"/runs/{run['id']}/metrics", names="weight", rank=rank)["series"]["weight"][
            "steps"
        ]
        assert result == list(range(60)), f"rank {rank}"


def test_killed_script_fails_its_run_with_the_signal(server_home: ServerHome) -> None:
    server_home.write("sleep.py", SLEEPS)
    follower = server_home.start_hop("run", "sleep.py")
    run = wait_until(
        lambda: next((r for r in server_home.get("/runs")["runs"] if r["phase"] == "running"), None),
        "the run",
    )
    server_home.wait_for_output(run, "begun")
    kill(server_home.replica_status(run)["child_pid"])
    done = server_home.finish(follower)
    assert (done.code, done.stdout) == (137, "begun\n")
    assert "killed by signal 9 (SIGKILL)" in done.stderr.splitlines()[-1]
    assert server_home.run("last")["attempt"]["number"] == 1, "what a script does itself is not tried again"


def test_killed_spawner_is_replaced_without_effect_on_runs(server_home: ServerHome) -> None:
    gate = server_home.root / "gate"
    server_home.write(
        "wait.py",
        "import os, time\nprint('begun', flush=True)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\nprint('end')\n",
    )
    name = server_home.run_detached("wait.py")
    run = server_home.wait_for_phase(name, "running")
    server_home.wait_for_output(run, "begun")
    first = spawner_of(server_home)
    kill(first)
    assert server_home.ok("run", "--json", "echo", "hello").json["phase"] == "succeeded"
    assert spawner_of(server_home) != first
    gate.touch()
    assert server_home.wait_for_phase(name, "succeeded")["attempt"]["number"] == 1
    assert server_home.log(run) == "begun\nend\n"


@pytest.mark.parametrize("victim", ["replica", "script"])
def test_gang_ends_as_a_unit(server_home: ServerHome, victim: str) -> None:
    """A lost replica is retried with the gang. A failed script fails the run, and the reason names its
    rank."""
    server_home.write("sleep.py", SLEEPS)
    name = server_home.run_detached("--replicas", "2", "--cpus", "0.5", "sleep.py")
    run = server_home.wait_for_phase(name, "running")
    states = [server_home.replica_status(run, rank) for rank in (0, 1)]
    for rank in (0, 1):
        server_home.wait_for_output(run, "begun", rank)
    kill(states[1]["pid" if victim == "replica" else "child_pid"])
    if victim == "replica":
        second_attempt = server_home.wait_for_phase(name, "running", attempt=2)
        assert (
            attempts_of(server_home, second_attempt)[0]["exit"]["reason"]
            == "replica 1: lost: its replica died on node box"
        )
        server_home.wait_for_output(second_attempt, "begun", 0)
        server_home.wait_for_output(second_attempt, "begun", 1)
        assert server_home.ok("stop", "--grace", "0", name)
        assert server_home.wait_for_phase(name, "cancelled")["attempt"]["number"] == 2
    else:
        ended = server_home.wait_for_phase(name, "failed")
        assert ended["exit"]["reason"] == "replica 1: killed by signal 9 (SIGKILL)"
        assert (ended["exit"]["code"], ended["attempt"]["number"]) == (137, 1)
    for state in states:
        assert has_ended(state["child_pid"])
        wait_until(lambda state=state: has_ended(state["pid"]), "the end of its replica")  # type: ignore[misc]


def test_gang_killed_too_often_fails_and_names_the_rank(server_home: ServerHome) -> None:
    run = submit(
        server_home,
        ["python", "-u", "-c", "import time; print('up'); time.sleep(600)"],
        replicas=2,
        max_attempts=1,
    )
    run = server_home.wait_for_phase(run["name"], "running")
    states = [server_home.replica_status(run, rank) for rank in (0, 1)]
    kill(states[0]["pid"])
    ended = server_home.wait_for_phase(run["name"], "failed")
    assert ended["exit"]["reason"] == "replica 0: lost: its replica died on node box"
    assert all(has_ended(state["child_pid"]) for state in states)


def test_run_killed_while_stopping_is_cancelled(server_home: ServerHome) -> None:
    server_home.write(
        "deaf.py", "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEPS
    )
    name = server_home.run_detached("deaf.py")
    run = server_home.wait_for_phase(name, "running")
    server_home.wait_for_output(run, "begun")
    server_home.ok("stop", "--grace", "60s", name)
    server_home.kill_everything()
    server_home.ok("up")
    assert server_home.wait_for_phase(name, "cancelled")["attempt"]["number"] == 1
