"""A preempted run receives a request, saves, waits and resumes. With kills at any moment, nothing runs twice
and nothing is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hopyard.private_files import remove_tree

from .server_home import ServerHome, has_ended, kill, wait_until
from .test_processes_killed import TRAIN_SCRIPT, attempts_of, checkpoint_steps

SETTINGS = "node: {{id: box, cpus: 4, memory: 8G, gpus: A100:2}}\nscheduler: {{preempt_grace: {grace}}}\n"
# Both scripts record their start and attempt in one file. The preemptor holds the capacity until it
HOLDS = """
import os, sys, time
open(sys.argv[1], "a").write(os.environ["HOPYARD_ATTEMPT"] + "\\n")
print("begun", flush=True)
while not os.path.exists(sys.argv[2]): time.sleep(0.01)
"""
# Slow until `gate` exists, and never past step 8 before the preemption request: a request during or just
# after its own save would find nothing to save. After the request it prints "saving" and saves only when the
# door file exists.
SAVES = TRAIN_SCRIPT.replace(
    "    time.sleep(p.pause)\n",
    """    time.sleep(0 if os.path.exists(p.gate) else p.pause)
    while step == 8 and p.gate and not (os.path.exists(p.gate) or os.path.exists(ASKED)): time.sleep(0.01)
""",
).replace(
    """    def state_dict(self): return {"weight": self.weight, "turns": self.turns}
""",
    """    def state_dict(self):
        if os.path.exists(ASKED):
            print("saving", flush=True)
            while not os.path.exists("DOOR"): time.sleep(0.01)
        return {"weight": self.weight, "turns": self.turns}
""",
)
SAVES = SAVES.replace("class Model:", 'ASKED = os.environ["HOPYARD_REPLICA_DIR"] + "/stop"\n\nclass Model:')
assert (SAVES.count("p.pause"), SAVES.count("DOOR"), SAVES.count("ASKED")) == (1, 1, 3)


def visible_results(server_home: ServerHome, run: Any) -> Any:
    """Returns all results that users see: nothing may be missing, nothing duplicated."""
    return (
        server_home.metric_series(run, "weight"),
        run["summary"],
        [line for line in server_home.log(run).splitlines() if line.startswith("step ")],
    )


@pytest.fixture(scope="module")
def uninterrupted_results(shared_home: ServerHome) -> Any:
    """Returns the results of the victim without preemption."""
    shared_home.write("train.py", SAVES)
    result = visible_results(
        shared_home,
        shared_home.run(shared_home.ok("run", "--json", "-p", "pause=0", "train.py").json["name"]),
    )
    assert len(result[2]) == 60
    return result


class Preemption:
    """A long run on all GPUs, and a preemptor with higher priority that needs one GPU.

    The victim trains slowly, at most to step 8 until the preemption request, then to step 50 until `gate`
    exists. The preemptor ends when `release` exists.
    """

    def __init__(self, root: Path, uninterrupted_results: Any, *, grace: str = "60s") -> None:
        self.uninterrupted_results = uninterrupted_results
        self.server_home = ServerHome(root, settings=SETTINGS.format(grace=grace))
        self.gate, self.allow_save, self.release, self.started = (
            root / name for name in ("gate", "door", "let_go", "begun")
        )
        self.allow_save.touch()
        self.server_home.write("train.py", SAVES.replace("DOOR", str(self.allow_save)))
        self.server_home.write("holds.py", HOLDS)

    def start_victim(self) -> Any:
        """Starts the victim and waits for its first periodic checkpoint."""
        name = self.server_home.run_detached(
            "--gpus", "2", "--priority", "10", "-p", f"gate={self.gate}", "-p", "pause=0.15", "train.py"
        )
        run = self.server_home.wait_for_phase(name, "running")
        self.server_home.wait_for_output(run, "step 6")
        wait_until(lambda: checkpoint_steps(self.server_home, run), "a checkpoint")
        return run

    def submit_preemptor(self) -> str:
        return self.server_home.run_detached(
            "--gpus", "1", "--priority", "90", "holds.py", "--", str(self.started), str(self.release)
        )

    def script_processes(self, name: str) -> list[psutil.Process]:
        """Returns the living script processes of a run, of any attempt."""
        run = self.server_home.run(name)
        result = []
        for process in self.server_home.processes():
            try:
                if process.environ().get("HOPYARD_ATTEMPT", "").startswith(run["id"] + "."):
                    result.append(process)
            except psutil.Error:
                continue
        return result

    def finish(self, victim: Any, preemptor: str) -> Any:
        """Checks that the preemptor ran once, and that the victim resumed and shows the uninterrupted
        results."""
        self.release.touch()
        ended = self.server_home.wait_for_phase(preemptor, "succeeded")
        assert (ended["attempt"]["number"], self.started.read_text().split()) == (1, [ended["attempt"]["id"]])
        self.gate.touch()
        self.allow_save.touch()
        done = self.server_home.wait_for_phase(victim["name"], "succeeded")
        assert done["attempt"]["number"] == 2
        assert visible_results(self.server_home, done) == self.uninterrupted_results
        return done


@pytest.fixture
def preemption(
    tmp_path: Path, uninterrupted_results: Any, request: pytest.FixtureRequest
) -> Iterator[Preemption]:
    result = Preemption(tmp_path, uninterrupted_results, grace=getattr(request, "param", "60s"))
    try:
        yield result
    finally:
        result.server_home.end()
        remove_tree(result.server_home.home.trees)


def test_preempted_run_saves_and_resumes_from_checkpoint(preemption: Preemption) -> None:
    server_home = preemption.server_home
    victim = preemption.start_victim()
    preemptor = preemption.submit_preemptor()
    server_home.wait_for_output(server_home.wait_for_phase(preemptor, "running"), "begun")
    waits = server_home.wait_for_phase(victim["name"], "queued")
    assert preemption.script_processes(victim["name"]) == []
    (first,) = attempts_of(server_home, waits)
    assert first["exit"]["kind"] == "preempted"
    step = max(checkpoint_steps(server_home, waits))
    assert first["exit"]["reason"] == f"preempted at step {step}, checkpoint saved"
    done = preemption.finish(victim, preemptor)
    assert [attempt["resumed_from_step"] for attempt in attempts_of(server_home, done)] == [None, step]


@pytest.mark.parametrize("moment", ["asked", "saves", "left"])
def test_server_is_killed_during_preemption(preemption: Preemption, moment: str) -> None:
    server_home = preemption.server_home
    victim = preemption.start_victim()
    if moment == "saves":
        preemption.allow_save.unlink()
    preemptor = preemption.submit_preemptor()
    if moment == "asked":
        wait_until(
            lambda: server_home.run(victim["name"])["attempt"]["phase"] != "running", "the order to make room"
        )
    elif moment == "saves":
        server_home.wait_for_output(victim, "saving")
    else:
        wait_until(lambda: not preemption.script_processes(victim["name"]), "its end")
    server_home.kill_server()
    preemption.allow_save.touch()
    server_home.ok("up")
    server_home.kill_server()  # a second kill, at whatever moment the next server is
    server_home.ok("up")
    server_home.wait_for_output(server_home.wait_for_phase(preemptor, "running"), "begun")
    waits = server_home.wait_for_phase(victim["name"], "queued")
    assert preemption.script_processes(victim["name"]) == []
    assert [attempt["exit"]["kind"] for attempt in attempts_of(server_home, waits)] == ["preempted"]
    step = max(checkpoint_steps(server_home, waits))
    done = preemption.finish(victim, preemptor)
    assert [attempt["resumed_from_step"] for attempt in attempts_of(server_home, done)] == [None, step]


@pytest.mark.parametrize("dies", ["replica", "script"])
def test_run_killed_while_saving_resumes_from_previous_checkpoint(preemption: Preemption, dies: str) -> None:
    server_home = preemption.server_home
    victim = preemption.start_victim()
    state = server_home.replica_status(victim)
    preemption.allow_save.unlink()
    preemptor = preemption.submit_preemptor()
    server_home.wait_for_output(victim, "saving")
    kill(state["pid" if dies == "replica" else "child_pid"])
    wait_until(lambda: has_ended(state["child_pid"]), "the end of the script")
    server_home.wait_for_output(server_home.wait_for_phase(preemptor, "running"), "begun")
    waits = server_home.wait_for_phase(victim["name"], "queued")
    step = max(checkpoint_steps(server_home, waits))
    assert step % 5 == 0, "what it was saving is not there"
    done = preemption.finish(victim, preemptor)
    assert [attempt["resumed_from_step"] for attempt in attempts_of(server_home, done)] == [None, step]


@pytest.mark.parametrize("preemption", ["1s"], indirect=True)
def test_frozen_script_is_killed_at_preemption_deadline(preemption: Preemption) -> None:
    server_home = preemption.server_home
    victim = preemption.start_victim()
    state = server_home.replica_status(victim)
    os.kill(state["child_pid"], signal.SIGSTOP)
    preemptor = preemption.submit_preemptor()
    server_home.wait_for_output(server_home.wait_for_phase(preemptor, "running"), "begun")
    assert has_ended(state["child_pid"])
    waits = server_home.wait_for_phase(victim["name"], "queued")
    step = max(checkpoint_steps(server_home, waits))
    done = preemption.finish(victim, preemptor)
    assert [attempt["resumed_from_step"] for attempt in attempts_of(server_home, done)] == [None, step]
