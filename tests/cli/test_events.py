"""`hop events`: what changes, printed as it happens."""

from __future__ import annotations

import json

import pytest

from tests.cli.shell import Shell


def test_events_of_a_run_are_printed_and_resumed(shell: Shell) -> None:
    shell.write("main.py", "print('hello')\n")
    with shell.terminal("events", "--change", "phase", "--json") as terminal:
        name = shell.detach("main.py")
        shown = terminal.expect(b'"succeeded"').decode()
    lines = [line for line in shown.splitlines() if name in line and line.endswith("}")]
    first = json.loads(lines[0])
    assert (first["kind"], first["change"], first["run"]["name"]) == ("run", "phase", name)
    with shell.terminal("events", "--run", name, "--change", "phase", "--after", first["id"]) as terminal:
        later = terminal.expect(b"succeeded").decode()
    assert f"run  {name}  phase" in later and "queued" not in later


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--where", "phase ="], "where:"),
        (["--after", "tomorrow"], "after:"),
        (["--kind", "weather"], "'--kind': 'weather' is not one of"),
        (["--change", "mood"], "'--change': 'mood' is not one of"),
    ],
)
def test_invalid_filters_are_refused_with_a_hint(shell: Shell, words: list[str], error: str) -> None:
    result = shell.hop("events", *words)
    assert result.code != 0 and result.out == b""
    assert error in result.stderr_text and "hint: " in result.stderr_text
