"""A run of a script of `shapes` that loses its first process, and the run that continues it."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.cli.shell import CommandResult, Shell


def printed(result: CommandResult) -> tuple[Any, str]:
    """Returns the values and the first epoch that `shapes/epochs.py` has printed."""
    values, begin = result.text.splitlines()[:2]
    return json.loads(values), begin


def check_attempts(shell: Shell, words: str, values: dict[str, Any]) -> CommandResult:
    """Runs the script until its process is killed, resumes it, and returns the result of the killed run."""
    shell.write("kill", str(shell.folder.parent / "killed"))
    killed = shell.hop("run", *words.split())
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
