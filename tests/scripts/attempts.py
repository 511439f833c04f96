"""A run of a script of `shapes` that loses its first process, and the run that continues it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from tests.cli.shell import CommandResult, Shell

METRIC_LINE = ("--metric-line", "epoch {step} loss {loss}")


def printed(result: CommandResult) -> tuple[Any, str]:
    """Returns the values and the first epoch that `shapes/epochs.py` has printed."""
    values, begin = result.text.splitlines()[:2]
    return json.loads(values), begin


def check_attempts(
    shell: Shell, words: str, values: dict[str, Any], options: Sequence[str] = ()
) -> CommandResult:
    """Runs the script until its process is killed, resumes it, and returns the result of the killed run."""
    shell.write("kill", str(shell.folder.parent / "killed"))
    killed = shell.hop("run", *options, *words.split())
    assert killed.code != 0 and "SIGKILL" in killed.stderr_text, killed.stderr_text
    assert printed(killed) == (values, "begins at 0")
    resumed = shell.hop("resume", "last")
    assert resumed.code == 0, resumed.stderr_text
    assert printed(resumed) == (values, "begins at 2")
    assert "nothing has read" not in killed.stderr_text + resumed.stderr_text
    return killed


def changed_params(shell: Shell, fork: CommandResult) -> dict[str, list[Any]]:
    """Returns the parameters in which the last run, a fork, differs from its parent; it must have the same
    code and packages."""
    parent = re.search(r"forks ([^;\s]+)", fork.stderr_text)
    assert parent is not None, fork.stderr_text
    difference = shell.hop("diff", parent[1], "last", "--json").json
    assert (difference["code"], difference["packages"]) == ([], {}), difference
    params: dict[str, list[Any]] = difference["params"]
    return params


def check_board(shell: Shell, dataset: str, rate: float, fork_rate: float) -> None:
    """Checks the ranks of the fork, of the killed run and of the run that continues it."""
    distance, fork_distance = round(abs(rate - 0.3), 3), round(abs(fork_rate - 0.3), 3)
    for words, step in (("--last", 2), ("--best", 1)):
        rows = shell.hop("board", dataset, "-m", "loss", "--json", words).json["rows"]
        assert [(row["value"], row["step"], row["params"]["lr"]) for row in rows] == [
            (round(fork_distance * step, 3), step, fork_rate),
            (distance, 1, rate),  # killed in the second epoch
            (round(distance * 2, 3), 2, rate),  # continued in the third one
        ], rows
