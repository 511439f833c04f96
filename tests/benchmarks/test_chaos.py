"""The rounds of the chaos benchmark hold on a real server, and its checks find what does not hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from benchmarks import chaos
from benchmarks.chaos_checks import (
    Round,
    command_violations,
    end_violations,
    evaluation_violations,
    metric_violations,
)
from benchmarks.chaos_faults import COMBINATIONS, Fault, schedule

ROOT = Path(__file__).parents[2]
STEPS = 4
FAULT = Fault(0, "kill", "replica", "training", 0, 0.0, 0.5)


def test_two_rounds_hold(tmp_path: Path) -> None:
    # a process that starts again is killed with commands pending; another one is killed during a checkpoint
    words = ["--seed", "2093", "--first", "2", "--rounds", "2", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.chaos", *words],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert [record["round"] for record in report["rounds"]] == [2, 3]
    first, second = (record["outcome"] for record in report["rounds"])
    assert first == "succeeded in 1 attempt"
    assert "killed by signal 9 (SIGKILL)" in second
    assert not list(tmp_path.iterdir()), "the benchmark left files behind"


def test_schedule_plays_each_combination_before_any_repeats() -> None:
    faults = [*islice(schedule(5, 4), len(COMBINATIONS))]
    assert {(fault.mode, fault.kind, fault.part, fault.phase) for fault in faults} == {*COMBINATIONS}
    assert [*islice(schedule(5, 4), 3)] == faults[:3]


@pytest.mark.parametrize(("part", "played"), [("service", "spawner"), ("conmon", "replica")])
def test_machine_without_podman_plays_rounds_without_containers(
    monkeypatch: pytest.MonkeyPatch, part: str, played: str
) -> None:
    monkeypatch.setattr(chaos, "missing_programs", lambda: "needs podman")
    fault = chaos.playable(replace(FAULT, part=part, mode="containers"))
    assert (fault.part, fault.mode, fault.missing) == (
        played,
        "processes",
        "without containers: needs podman",
    )
    record = {"round": 0, "fault": fault.text, "mode": fault.mode, "phase": "start", "violations": []}
    assert "1 rounds without containers: needs podman" in chaos.summary(
        [{**record, "missing": fault.missing}], 5
    )


def played(tmp_path: Path) -> Round:
    """Returns a round without violations: a replica was killed, and the second attempt continued after the
    checkpoint of two steps."""
    for attempt, steps in ((1, range(3)), (2, range(2, STEPS))):
        for rank in range(2):
            lines = [{"step": step, "total": sum(range(step + 1)), "lr": 1.0} for step in steps]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (tmp_path / f"{attempt}.{rank}.jsonl").write_text(text)
    lost = {"kind": "lost", "code": 1, "reason": "replica 0: lost: its replica died on node a"}
    finished = {"kind": "exit-code", "code": 0, "reason": "finished"}
    total = sum(range(STEPS))
    series = {
        "total": {"steps": [*range(STEPS)], "values": [sum(range(step + 1)) for step in range(STEPS)]},
        "lr": {"steps": [*range(STEPS)], "values": [1.0] * STEPS},
    }
    return Round(
        fault=FAULT,
        run={"phase": "succeeded", "exit": finished, "summary": {"total": total}},
        attempts=[
            {"number": 1, "phase": "lost", "exit": lost, "resumed_from_step": None},
            {"number": 2, "phase": "succeeded", "exit": finished, "resumed_from_step": 2},
        ],
        commands=[],
        events=[],
        checkpoints=[],
        series={0: series, 1: series},
        ledger=tmp_path,
        steps=STEPS,
        replicas=2,
        is_hit=True,
    )


def test_correct_round_has_no_violations(tmp_path: Path) -> None:
    round = played(tmp_path)
    assert end_violations(round) + metric_violations(round) + command_violations(round) == []


@pytest.mark.parametrize(
    ("steps", "values"),
    [
        ([0, 1, 1, 2, 3], [0, 1, 1, 3, 6]),
        ([0, 1, 3], [0, 1, 6]),
        ([0, 1, 2], [0, 1, 3]),
        ([0, 1, 2, 3], [0, 1, 3, 7]),
    ],
)
def test_doubled_missing_and_wrong_points_are_violations(
    tmp_path: Path, steps: list[int], values: list[int]
) -> None:
    round = played(tmp_path)
    wrong = {"total": {"steps": steps, "values": values}, "lr": {"steps": steps, "values": values}}
    assert metric_violations(replace(round, series={**round.series, 1: wrong}))


def test_killed_rank_may_lack_the_last_step_before_the_checkpoint(tmp_path: Path) -> None:
    round = played(tmp_path)
    lines = (tmp_path / "1.1.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "1.1.jsonl").write_text(lines[0])
    steps, values = [0, 2, 3], [0, 3, 6]
    cut = {"total": {"steps": steps, "values": values}, "lr": {"steps": steps, "values": values}}
    assert metric_violations(replace(round, series={**round.series, 1: cut})) == []
    assert metric_violations(round) == [], "the kill came between the point and its line"
    assert metric_violations(replace(round, series={**round.series, 0: cut})) == [
        "rank 0 lacks the points [1], which its script logged"
    ]


def test_wrong_end_is_a_violation(tmp_path: Path) -> None:
    round = played(tmp_path)
    failed = {"kind": "exit-code", "code": 1, "reason": "exit code 1"}
    assert end_violations(replace(round, run={"phase": "failed", "exit": failed, "summary": {}}))
    assert end_violations(replace(round, fault=replace(FAULT, part="helper")))
    assert end_violations(replace(round, attempts=round.attempts[1:]))


def test_command_of_one_rank_alone_is_a_violation(tmp_path: Path) -> None:
    round = played(tmp_path)
    path = tmp_path / "2.1.jsonl"
    path.write_text(path.read_text().replace("1.0", "0.5"))
    assert command_violations(round)
    pending = {"number": 1, "kind": "pause", "state": "pending", "answer": ""}
    assert command_violations(replace(played(tmp_path), commands=[pending], accepted=[1]))


def test_restart_needs_its_policy_and_its_event(tmp_path: Path) -> None:
    round = played(tmp_path)
    fault = replace(FAULT, part="script", mode="restarts")
    event = {"kind": "restarted", "detail": "worker-0 restarted"}
    restarted = replace(round, fault=fault, attempts=round.attempts[1:], events=[event])
    restarted = replace(restarted, attempts=[{**round.attempts[1], "number": 1}])
    assert end_violations(restarted) == []
    assert end_violations(replace(restarted, events=[]))
    assert end_violations(replace(restarted, events=[event, event]))
    assert end_violations(replace(restarted, fault=replace(fault, mode="processes")))


@pytest.mark.parametrize(
    ("evaluation", "is_violation"),
    [
        ((0, "(3, 3)\n", ""), False),
        ((0, "(3, 6)\n", ""), False),  # at a safe point inside the iteration
        ((0, "(3, 4)\n", ""), True),
        ((0, "", ""), True),
        ((1, "", "waiting\nerror: the process of the script left the prompt\n"), False),
        ((1, "", "Traceback (most recent call last):\nerror: lost\n"), True),
    ],
)
def test_evaluation_ends_with_result_or_error(
    tmp_path: Path, evaluation: tuple[int, str, str], is_violation: bool
) -> None:
    round = replace(played(tmp_path), evaluation=evaluation)
    assert bool(evaluation_violations(round)) is is_violation
    frozen = replace(FAULT, kind="freeze")
    assert bool(evaluation_violations(replace(round, fault=frozen))) is (is_violation or evaluation[0] == 1)
