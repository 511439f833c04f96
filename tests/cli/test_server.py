"""Commands about the server of this machine, in a shell or a home that uses another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import shell_in
from .terminal import Shell

FAR = "http://10.255.255.1:8080"
OF_A_MACHINE = [("up",), ("down",), ("down", "--stop-runs"), ("backup", "copy"), ("restore", "copy"), ("service", "install"), ("service", "install", "--print")]


@pytest.mark.parametrize("where", ["variables", "url alone", "login file"])
def test_commands_about_the_own_server_refuse_where_another_one_is_used(where: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    shell = shell_in(tmp_path / "study", home)
    if where == "login file":
        (home / "login.json").write_text(f'{{"url": "{FAR}", "token": "t"}}')
    else:
        shell = Shell(shell.folder, shell.environment | {"HOPYARD_URL": FAR} | ({"HOPYARD_TOKEN": "t"} if where == "variables" else {}))
    before = sorted(path.name for path in home.iterdir())
    for words in OF_A_MACHINE:
        refused = shell.hop(*words)
        error, hint = refused.talk.splitlines()
        assert (refused.code, refused.out) == (2, b""), words
        assert error == f"error: this {'home' if where == 'login file' else 'shell'} uses the server at {FAR}"
        assert ("unset HOPYARD_URL" in hint) is (where != "login file") and ("login.json" in hint) is (where == "login file")
    assert sorted(path.name for path in home.iterdir()) == before
    assert not (shell.folder / "copy").exists()
