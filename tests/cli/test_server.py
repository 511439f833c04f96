"""Commands for the local server, in a shell or a home that uses a remote one."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopyard.cli.command_table import COMMANDS
from tests.cli.in_process import hop
from tests.cli.shell import Shell

from .conftest import shell_in

FAR = "http://10.255.255.1:8080"
OF_A_MACHINE = [
    ("up",),
    ("down",),
    ("down", "--stop-runs"),
    ("backup", "copy"),
    ("restore", "copy"),
    ("service", "install"),
    ("service", "install", "--print"),
]


@pytest.mark.parametrize("where", ["variables", "url alone", "login file"])
def test_commands_for_the_local_server_refuse_with_a_remote_server(where: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    shell = shell_in(tmp_path / "study", home)
    if where == "login file":
        (home / "login.json").write_text(f'{{"url": "{FAR}", "token": "t"}}')
    else:
        shell = Shell(
            shell.folder,
            shell.environment
            | {"HOPYARD_URL": FAR}
            | ({"HOPYARD_TOKEN": "t"} if where == "variables" else {}),
        )
    before = sorted(path.name for path in home.iterdir())
    for words in OF_A_MACHINE:
        refused = shell.hop(*words)
        error, hint = refused.stderr_text.splitlines()
        assert (refused.code, refused.out) == (2, b""), words
        assert error == f"error: this {'home' if where == 'login file' else 'shell'} uses the server at {FAR}"
        assert ("unset HOPYARD_URL" in hint) is (where != "login file") and ("login.json" in hint) is (
            where == "login file"
        )
    assert sorted(path.name for path in home.iterdir()) == before
    assert not (shell.folder / "copy").exists()


@pytest.mark.parametrize(
    ("home", "why"),
    [
        ("file", "is a file, not a folder"),
        ("file/below", "Not a directory"),
        ("x" * 300, "too long"),
        ("~nobody-like-that/x", "no user"),
        ("\udcff", "not UTF-8"),
    ],
)
def test_every_command_reports_a_home_that_cannot_be_a_folder(
    home: str, why: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("HOPYARD_HOME", home)
    for entry in COMMANDS:
        if entry.name in ("help", "completion"):
            continue
        result = hop(
            capfd,
            *{"doctor": ("doctor",), "service": ("service", "install", "--print")}.get(
                entry.name, (entry.name, "x")
            ),
        )
        output = result.out + result.err
        assert result.code in (1, 2) and why in output and "hint: set HOPYARD_HOME to a folder" in output, (
            entry.name,
            output,
        )
    assert (tmp_path / "file").read_text() == "mine"
