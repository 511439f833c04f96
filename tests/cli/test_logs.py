"""`hop logs`: the order of both streams, times, and selections."""

from __future__ import annotations

import re
import subprocess
from datetime import datetime

from tests.cli.shell import HOP, Shell

_MIXED = """
import sys
for number in range(5):
    sys.stdout.write(f"out {number}\\n")
    sys.stderr.write(f"err {number}\\n")
raise ValueError("the end")
"""


def merged_lines(shell: Shell, *words: str) -> list[str]:
    """Returns the lines of both streams as a terminal shows them."""
    return subprocess.run(
        [*HOP, "logs", *words],
        cwd=shell.folder,
        env=shell.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=True,
    ).stdout.splitlines()


def test_streams_are_in_order_of_arrival(shell: Shell) -> None:
    shell.write("mixed.py", _MIXED)
    result = shell.hop("run", "--json", "mixed.py").json
    name = result["name"]
    assert result["run"]["exit"]["reason"] == "exit code 1: ValueError: the end"
    lines = merged_lines(shell, name)
    # on a busy machine neighbours may change places
    for stream in ("out ", "err "):
        expected = [f"{stream}{number}" for number in range(5)]
        assert [line for line in lines if line.startswith(stream)] == expected
    assert lines[-1] == "ValueError: the end"
    assert merged_lines(shell, name, "--raw") == lines
    assert merged_lines(shell, name, "--tail", "2") == lines[-2:]
    assert merged_lines(shell, name, "--stdout", "--tail", "2") == ["out 3", "out 4"]
    assert merged_lines(shell, name, "--attempt", "1", "--since", "1h", "--rank", "0") == lines
    assert [line for line in merged_lines(shell, "-f", name) if line in lines] == lines
    stamped = merged_lines(shell, name, "--timestamps")
    assert [line.partition(" ")[2] for line in stamped] == lines
    moments = [datetime.fromisoformat(line.partition(" ")[0]) for line in stamped]
    assert moments == sorted(moments)
    assert re.fullmatch(rf"\S+\.\d{{3}}[+-]\d\d:\d\d {lines[0]}", stamped[0])
    assert merged_lines(shell, name, "--since", "2020-01-01") == lines
    refused = shell.hop("logs", name, "--rank", "first")
    assert (refused.code, refused.stderr_text.splitlines()[0]) == (2, "error: --rank: `first` is not a rank")
