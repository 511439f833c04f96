"""A run of a script of `shapes` that loses its first process, and the run that continues it."""

from __future__ import annotations

import json
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
