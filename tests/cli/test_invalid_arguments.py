"""Invalid arguments of every command: an error with a hint, never an internal error of `hop`."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from hopyard.cli.command_table import COMMANDS
from hopyard.cli.main import hop as program
from tests.cli.in_process import hop

ODD = [
    "",
    " ",
    "-1",
    "0",
    "9" * 30,
    "1e999",
    "nan",
    "größe\u202e",
    "\udcff",
    "\x1b[8m\nx",
    "a" * 5000,
    "/",
    "a=b",
    "no/such/thing",
    "@",
    "[",
    "--",
    "::",
]
# With these options it starts nothing in the background and prompts for nothing.
_HARMLESS = {
    "run": ["--detach"],
    "fork": ["--detach"],
    "evaluate": ["--detach"],
    "events": ["--run", "no-such-run"],  # else it follows what changes, without an end
    "notebook": ["none.ipynb"],
    "shell": ["no-such-run"],
    "tensorboard": ["none"],
    "visdom": ["--python", "no/such/python"],
    "search run": ["--dry-run"],
    "search resume": ["--detach"],
    "reserve add": ["--dry-run"],
    "queue apply": ["--dry-run"],
}
# They end the server of the test, copy a home as often as they are called, or write to the user's home.
_LEFT_OUT = {"up", "down", "backup", "restore", "service install", "service uninstall"} | {
    "completion install",
    "completion uninstall",
}


def leaf_commands(
    group: click.Group, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaf_commands(command, (*words, name))
        else:
            yield (*words, name), command


def command_lines(words: tuple[str, ...], command: click.Command) -> Iterator[list[str]]:
    """Command lines with one invalid parameter and as few others as possible."""
    needed = [
        parameter
        for parameter in command.params
        if isinstance(parameter, click.Argument) and parameter.required
    ]
    more = _HARMLESS.get(" ".join(words), [])
    for value in ODD:
        for parameter in command.params:
            if isinstance(parameter, click.Argument):
                needed_values = [value if parameter_ is parameter else "nope" for parameter_ in needed] or [
                    value
                ]
                yield [*words, *more, *needed_values]
            elif isinstance(parameter, click.Option) and not parameter.is_flag and not parameter.count:
                yield [*words, *more, f"{max(parameter.opts, key=len)}={value}", *["nope"] * len(needed)]


COMMAND_LINES = {
    " ".join(words): list(command_lines(words, command)) for words, command in leaf_commands(program)
}


def test_every_command_is_covered() -> None:
    assert {name.partition(" ")[0] for name in COMMAND_LINES} == {entry.name for entry in COMMANDS}


@pytest.mark.parametrize("name", sorted(set(COMMAND_LINES) - _LEFT_OUT))
def test_invalid_arguments_are_refused_with_a_hint(
    name: str,
    served_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOPYARD_HOME", str(served_home))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    wrong = list[str]()
    for line in COMMAND_LINES[name]:
        result = hop(capfd, *line)
        if (
            "internal error of hop" in result.err
            or "Traceback" in result.err
            or (result.code and "hint: " not in result.err)
        ):
            wrong.append(f"{[word[:60] for word in line]}: {result.code} {result.err[:400]}")
    assert not wrong, "\n".join(wrong)
