"""The command group: listing, help, version, and errors for mistyped input."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import pytest

from hopyard.cli import aliases
from hopyard.cli.command_table import COMMANDS
from hopyard.cli.main import hop as group
from hopyard.cli.main import main
from hopyard.cli.ps import ALL_PHASES
from tests.cli.in_process import hop

SNAPSHOTS = Path(__file__).parent / "snapshots"


def test_help_listing(capfd: pytest.CaptureFixture[str]) -> None:
    result = hop(capfd, "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out == (SNAPSHOTS / "help.txt").read_text()


def test_no_arguments_show_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert hop(capfd).out == hop(capfd, "--help").out
    for name in ("dataset", "node", "pool", "queue", "reserve"):
        assert hop(capfd, name) == hop(capfd, name, "--help")


def test_help_listing_imports_no_command() -> None:
    code = (
        "import sys; from hopyard.cli.main import main; main(['--help']); print([m for m in "
        "sys.modules if m.startswith('hopyard.')], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(eval(done.stderr))
    assert loaded == {
        "hopyard.errors",
        "hopyard.cli",
        "hopyard.cli.main",
        "hopyard.cli.command_table",
        "hopyard.cli.errors",
    }


def test_hop_run_imports_nothing_slow() -> None:
    code = (
        "import sys, hopyard.cli.main, hopyard.cli.run, hopyard.client.submit, hopyard.cli.attach; "
        "print(*sys.modules)"
    )
    loaded = set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )
    assert not loaded & {
        "hopyard.domain.queue",
        "rich",
        "yaml",
        "msgspec",
        "pydantic",
        "sqlalchemy",
        "httpx",
        "asyncio",
        "matplotlib",
        "difflib",
        "shutil",
        "subprocess",
    }


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_every_listed_command_exists_and_has_help(entry: object, capfd: pytest.CaptureFixture[str]) -> None:
    name = entry.name  # type: ignore[attr-defined]
    command = group.get_command(click.Context(group), name)
    assert command is not None
    assert command.help
    assert (result := hop(capfd, name, "--help")).code == 0
    assert result.out == hop(capfd, "help", name).out
    for parameter in command.params:
        assert not isinstance(parameter, click.Option) or parameter.help, f"hop {name} {parameter.name}"


def test_mistyped_command(capfd: pytest.CaptureFixture[str]) -> None:
    result = hop(capfd, "rnu")
    assert (result.code, result.out) == (2, "")
    assert (
        result.err
        == "error: no command `rnu`\nhint: did you mean `hop run`?\nhint: `hop --help` lists the commands\n"
    )


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["suspend", "last"], "`hop pause RUN` makes a run wait"),
        (["continue", "last"], "`hop search resume STUDY` continues a study"),
        (["Kill", "last"], "`hop stop RUN` ends a run"),
        (["help", "cancel"], "`hop stop RUN` ends a run"),
        (
            ["run", "--label", "rack=a", "train.py"],
            (
                "hint: --pool NAME or --where LABEL=VALUE requests nodes; --name LABEL is the name of a "
                "run\nhint: `hop run --help`"
            ),
        ),
        (
            ["run", "--lr", "3", "train.py"],
            ("hint: put options of the script after `--`: hop run SCRIPT -- --lr\nhint: `hop run --help`"),
        ),
        (["ps", "--label", "x"], "hint: --name LABEL is the name of a run\n"),
        (["ps", "--phase", "waiting"], "hint: did you mean `queued`?\n"),
        (["ps", "--phase", "done"], "hint: did you mean `succeeded`?\n"),
    ],
)
def test_commands_of_other_programs(words: list[str], hint: str, capfd: pytest.CaptureFixture[str]) -> None:
    result = hop(capfd, *words)
    assert (result.code, result.out) == (2, "")
    assert hint in result.err


def test_hints_for_commands_of_other_programs_name_real_commands() -> None:
    at = click.Context(group)
    for words, hint in aliases._COMMAND_ALIASES.items():
        assert not {*words} & {entry.name for entry in COMMANDS}
        calls = re.findall(r"`hop ([^`]+)`", hint)
        assert calls
        for name, *more in map(str.split, calls):
            command = group.get_command(at, name)
            assert command is not None, hint
            if isinstance(command, click.Group) and more:
                command = command.get_command(at, more[0])
                assert command is not None, hint
            options = {option for parameter in command.params for option in parameter.opts}
            assert {word for word in more if word.startswith("--")} <= options, hint
    everywhere = {
        option
        for name in ("run", "ps")
        for parameter in group.get_command(at, name).params
        for option in parameter.opts
    }  # type: ignore[union-attr]
    for words, meant, hint in aliases._OPTION_ALIASES:
        assert meant in everywhere and meant not in words
        assert hint.startswith(f"{meant} ")
    assert {*aliases._PHASE_ALIASES} <= {*ALL_PHASES}


def test_script_in_place_of_a_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert "hint: to run a script: hop run train.py\n" in hop(capfd, "train.py").err


def test_mistyped_option(capfd: pytest.CaptureFixture[str]) -> None:
    result = hop(capfd, "ps", "--projct", "x")
    assert result.code == 2
    assert result.err == (
        "error: no option --projct\nhint: did you mean --project?\n"
        "hint: `hop ps --help` lists what it takes\n"
    )


def test_missing_argument(capfd: pytest.CaptureFixture[str]) -> None:
    result = hop(capfd, "stop")
    assert result.code == 2
    assert result.err == "error: missing argument 'RUN...'\nhint: `hop stop --help` lists what it takes\n"


@pytest.mark.parametrize(
    "words", [["ps", "--help"], ["run", "train.py", "-h"], ["queue", "ls", "--help"], ["search", "-h"]]
)
def test_help_needs_no_home(
    words: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOPYARD_HOME", "/dev/null/home")
    assert main(words) == 0
    assert capfd.readouterr().out.startswith("Usage: hop ")
    assert main([word for word in words if not word.startswith("-")]) == 2
    assert "the home /dev/null/home cannot be a folder" in capfd.readouterr().err


def test_help_of_an_unknown_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert hop(capfd, "help", "rnu").code == 2


def test_version(capfd: pytest.CaptureFixture[str]) -> None:
    from hopyard import __version__

    assert hop(capfd, "--version").out == f"hop {__version__}\n"


def test_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hopyard.cli", "--version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout[:4]) == (0, "hop ")


def test_closed_pipe_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m hopyard.cli --help | true",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""


def test_operating_system_error_has_no_traceback(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deleted = tmp_path / "gone"
    deleted.mkdir()
    monkeypatch.chdir(deleted)
    deleted.rmdir()
    assert hop(capfd, "run", "train.py") == (
        1,
        "",
        (
            "error: No such file or directory\nhint: the folder in which you are was deleted: go to "
            "another one with `cd`\n"
        ),
    )


def test_internal_error_is_one_line_and_names_a_private_file(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @click.command()
    def broken() -> None:
        raise KeyError("no\x1b[31m such\nthing")

    monkeypatch.setattr(group, "get_command", lambda _ctx, _name: broken)
    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(tmp_path))
        result = hop(capfd, "ps")
    (file,) = tmp_path.iterdir()
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        "error: internal error of hop: KeyError: 'no\\x1b[31m such\\nthing'\n"
        f"hint: the details are in {file}; attach them to a bug report\n"
    )
    assert 'raise KeyError("no' in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600

    with monkeypatch.context() as patched:
        patched.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
        result = hop(capfd, "ps")
    assert result.code == 1
    assert "Traceback" in result.err
    assert result.err.endswith("hint: the details are above; attach them to a bug report\n")


def test_shell_completion() -> None:
    environment = {**os.environ, "_HOP_COMPLETE": "bash_complete", "COMP_WORDS": "hop p", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "hopyard.cli"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [
        "plain,pause",
        "plain,ps",
        "plain,plot",
        "plain,port",
        "plain,pull",
        "plain,pool",
    ]


def test_colours_only_on_terminals_and_never_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    from hopyard.cli.terminal import console

    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert console.render_styles(console.paint("x", "red", Terminal())) == "\x1b[31mx\x1b[0m"  # type: ignore[arg-type]
    monkeypatch.setenv("NO_COLOR", "1")
    assert console.render_styles(console.paint("x", "red", Terminal())) == "x"  # type: ignore[arg-type]
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert console.render_styles(console.paint("x", "red", Terminal())) == "x"  # type: ignore[arg-type]


def test_main_takes_arguments_and_returns_an_exit_code() -> None:
    assert main(["--version"]) == 0
