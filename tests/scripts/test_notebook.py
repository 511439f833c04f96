"""A notebook as a run: its parameters cell, its output, its failure; forked, resumed, searched, ranked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.shell import Shell

pytest.importorskip("papermill")
pytest.importorskip("ipykernel")

STUDY = """
metric: loss
mode: min
trials: 4
epochs: 2
space: {lr: [0.1, 0.2, 0.3, 0.4]}
searcher: grid
script: line.ipynb
resources: {cpus: 1}
"""


def _values(shell: Shell, run: str) -> tuple[dict[str, Any], dict[str, float]]:
    info = shell.hop("info", "--json", run).json
    return info["params"], info["summary"]


def test_notebook_runs_with_params_and_fork_changes_them(scripts: Shell) -> None:
    first = scripts.hop("run", "-n", "one", "-p", "lr=1", "-p", "epochs=2", "line.ipynb")
    assert first.code == 0, first.stderr_text
    assert first.text.splitlines() == ["begins", "0 1.0 0.0", "1 1.0 0.0", "0.0"]
    assert "parameters are given as variables (cell `parameters` of line.ipynb)" in first.stderr_text
    assert "line\n" in first.stderr_text and "hopyard:" not in first.stderr_text
    assert _values(scripts, "one") == ({"lr": 1, "epochs": 2, "fail_at": -1, "name": "line"}, {"loss": 0})
    fork = scripts.hop("fork", "one", "-n", "two", "-p", "lr=0.5", "-p", "lrr=3")
    assert fork.text.splitlines()[1:] == ["0 0.5 0.5", "1 0.5 0.25", "0.25"], fork.stderr_text
    assert "nothing has read lrr:" in fork.stderr_text
    assert _values(scripts, "two")[1] == {"loss": 0.25}
    assert "lr" in scripts.hop("diff", "one", "two").text
    executed = json.loads(scripts.hop("files", "two", "line.executed.ipynb", "-o", "-").out)
    outputs = [output for cell in executed["cells"] for output in cell.get("outputs", ())]
    assert any(output.get("data", {}).get("text/plain") == ["0.25"] for output in outputs), outputs


def test_failed_cell_is_the_reason_and_resume_continues(scripts: Shell) -> None:
    failed = scripts.hop("run", "-n", "bad", "-p", "fail_at=1", "line.ipynb")
    assert failed.code == 1
    reason = scripts.hop("info", "--json", "bad").json["exit"]["reason"]
    assert reason.endswith("ValueError: no value in epoch 1 (line.ipynb, cell 3, In [4])"), reason
    scripts.write("mended", "")
    resumed = scripts.hop("fork", "bad", "--checkpoint", "newest", "--code", ".")
    assert resumed.text.splitlines()[1:] == ["1 0.1 0.81", "2 0.1 0.729", "0.729"], resumed.stderr_text


@pytest.mark.slow
def test_killed_kernel_is_the_reason_and_resume_executes_all_cells(scripts: Shell, tmp_path: Path) -> None:
    killed = scripts.hop("run", "-p", "fail_at=1", "-p", f"name={tmp_path}/killed", "line.ipynb")
    assert killed.code == 137 and "killed by signal 9 (SIGKILL)" in killed.stderr_text, killed.stderr_text
    # output of the last cell that the kernel had not sent yet is lost with it
    assert killed.text.splitlines()[:1] == ["begins"] and "1 0.1" not in killed.text
    resumed = scripts.hop("resume", "last")
    assert resumed.text.splitlines() == ["begins", "1 0.1 0.81", "2 0.1 0.729", "0.729"], resumed.stderr_text
    assert _values(scripts, "last")[1] == {"loss": pytest.approx(0.729)}


@pytest.mark.slow
def test_study_over_notebook_ranks_its_trials(scripts: Shell) -> None:
    scripts.write("study.yaml", STUDY)
    study = scripts.hop("search", "study.yaml")
    assert study.code == 0, study.stderr_text
    shown = scripts.hop("search", "show", "--json").json
    best = {trial["params"]["lr"]: round(trial["best"], 6) for trial in shown["trials"]}
    assert best == {0.1: 0.81, 0.2: 0.64, 0.3: 0.49, 0.4: 0.36}, shown
