"""`hop set`, `hop pause` and `hop resume` on a live gang."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest

from hopyard.cli.command_result import _not_applied
from tests.cli.shell import Shell, wait_until

TRAIN = """
import time
import hopyard as hop

p = hop.params(lr=0.1, epochs=1_000_000)
bound = hop.bind(seen=0)
shown = None
for epoch in hop.loop(range(p.epochs), every=10_000):
    if p.lr != shown:
        shown = p.lr
        print(f"<{epoch} {p.lr}>", flush=True)
    hop.log(loss=1.0, step=epoch)
    time.sleep(0.01)
"""
PATIENCE = ("--timeout", "5m")


def test_gang_applies_commands_together_and_survives_a_release(shell: Shell) -> None:
    shell.write("train.py", TRAIN)
    run = shell.detach("--replicas", "2", "--cpus", "0.5", "train.py")
    wait_until(lambda: "lr" in shell.hop("info", "--json", run).json["params"])
    wait_until(lambda: shell.hop("logs", run).text.count(" 0.1>") == 2)  # both ranks are in their loop
    changed = shell.hop("set", run, "lr=0.01", *PATIENCE)
    assert re.search(r"lr 0\.1 -> 0\.01, applied at step \d+", changed.stderr_text), changed.stderr_text
    refused = shell.hop("set", run, "lrr=1")
    assert (refused.code, "did you mean `lr`?" in refused.stderr_text) == (2, True), refused.stderr_text
    paused = shell.hop("pause", run, "--json", *PATIENCE).json
    assert (paused["state"], paused["kind"]) == ("applied", "pause")
    assert "paused" in shell.hop("ps").text
    assert "it is paused" in shell.hop("why", run).text
    # a change while the run is paused applies before the next iteration
    assert shell.hop("set", run, "lr=0.02", "--json", *PATIENCE).json["step"] == paused["step"]
    assert "released" in shell.hop("pause", run, "--release", *PATIENCE).stderr_text
    wait_until(lambda: shell.hop("info", "--json", run).json["phase"] == "queued")
    assert shell.hop("info", "--json", run).json["held_by"]
    assert shell.hop("resume", run).code == 0
    wait_until(lambda: shell.hop("logs", run).text.count(" 0.02>") == 2)
    assert shell.hop("set", run, "lr=0.03", *PATIENCE).code == 0
    wait_until(lambda: shell.hop("logs", run).text.count("0.03>") == 2)
    lines = re.findall(r"\[([01])\] <(\d+) ([\d.]+)>", shell.hop("logs", run).text)
    by_rank = [[(step, lr) for rank, step, lr in lines if rank == wanted] for wanted in "01"]
    assert by_rank[0] == by_rank[1]
    assert [lr for _, lr in by_rank[0]] == ["0.1", "0.01", "0.02", "0.03"]
    assert "step" in shell.hop("plot", run, "loss").text.partition("lr 0.1 -> 0.01")[0].splitlines()[-1]
    assert shell.hop("stop", run, "--grace", "1s").code == 0
    assert shell.hop("diff", run, run, "--json").json["changes"] == {}


def test_script_without_safe_points_refuses_at_once(shell: Shell) -> None:
    run = shell.detach("--cpus", "0.5", "--", "sleep", "600")
    wait_until(lambda: shell.hop("info", "--json", run).json["phase"] == "running")
    refused = shell.hop("pause", run)
    assert (refused.code, "has no safe point so far" in refused.stderr_text) == (1, True), refused.stderr_text
    assert shell.hop("stop", run, "--grace", "0").code == 0


def test_resumed_run_without_a_checkpoint_keeps_the_changed_values(shell: Shell) -> None:
    shell.write("train.py", TRAIN + "    if p.lr == 0.01: raise SystemExit(3)\n")
    run = shell.detach("--cpus", "0.5", "-p", "lr=0.2", "train.py")
    wait_until(lambda: " 0.2>" in shell.hop("logs", run).text)
    assert shell.hop("set", run, "lr=0.01", *PATIENCE).code == 0
    wait_until(lambda: shell.hop("info", "--json", run).json["phase"] == "failed")
    resumed = shell.hop("resume", "--detach", "--json", run)
    assert "has saved nothing" in resumed.stderr_text
    name = resumed.json["name"]
    wait_until(lambda: shell.hop("info", "--json", name).json["phase"] == "failed")
    assert re.findall(r"<\d+ ([\d.]+)>", shell.hop("logs", name).text) == ["0.01"]
    assert shell.hop("info", "--json", name).json["params"]["lr"] == 0.01
    forked = shell.hop("fork", "--detach", "--json", run).json["name"]
    wait_until(lambda: " 0.2>" in shell.hop("logs", forked).text)  # a fork from the beginning has none
    assert shell.hop("stop", forked, "--grace", "0").code == 0


@pytest.mark.parametrize(
    ("held_by", "text", "hint"),
    [(None, "waits in the queue", "hop why"), ("alice", "is held in the queue", "hop resume")],
)
def test_pending_command_of_a_queued_run_names_the_queue(held_by: str | None, text: str, hint: str) -> None:
    run = {"name": "a/b/1", "ended_at": None, "phase": "queued", "held_by": held_by, "progress": None}
    error = _not_applied(cast(Any, run), "30s")
    assert text in error.message
    assert hint in error.hints[0]
