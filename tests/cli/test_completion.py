"""Tab completion in a real bash and fish, and what its installation writes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hopyard.api_client.client import Client
from hopyard.cli.completion import SHELLS
from hopyard.cli.main import hop as program
from hopyard.cli.run import run as run_command
from tests.cli.in_process import hop
from tests.cli.shell import Shell

COMPLETE = """
export HOME={home} PATH={bin}:$PATH
. "$HOME/.bashrc"
COMP_WORDS=({words})
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_hop_completion hop
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def test_bash_completes_commands_runs_labels_and_queues(shell: Shell, client: Client, tmp_path: Path) -> None:
    role = {"command": ["true"]}
    client.post("/runs", {"spec": {"project": "tabs", "roles": [role], "label": "first;$(date)"}})
    run = client.post("/runs", {"spec": {"project": "tabs", "roles": [role], "label": "first-try"}})
    home = tmp_path / "user"
    home.mkdir()
    (home / ".bashrc").write_text("export OWN=1")
    in_home = Shell(shell.folder, shell.environment | {"HOME": str(home), "SHELL": "/bin/bash"})
    for _ in range(2):
        assert in_home.hop("completion", "install").code == 0
    lines = (home / ".bashrc").read_text().splitlines()
    assert (lines[0], len(lines)) == ("export OWN=1", 2)

    def complete(words: str) -> list[str]:
        script = COMPLETE.format(home=home, bin=Path(sys.executable).parent, words=words)
        done = subprocess.run(
            ["bash", "--norc", "-c", script],
            env=in_home.environment,
            cwd=in_home.folder,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    assert complete("hop noth") == []
    assert complete("hop que") == ["queue"]
    assert complete("hop logs first") == ["first-try"]  # the other label is no plain word
    assert run["name"] in complete("hop info ''")
    assert complete("hop run -q def") == ["default"]
    assert "--columns" in complete("hop ps --")
    assert in_home.hop("completion", "uninstall").code == 0
    assert (home / ".bashrc").read_text() == "export OWN=1\n"


@pytest.mark.skipif(shutil.which("fish") is None, reason="needs fish")
def test_fish_completes_commands_and_queues_with_their_descriptions(shell: Shell, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{shell.environment['PATH']}"
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": "", "PATH": path}
    in_home = Shell(shell.folder, shell.environment | home)
    assert in_home.hop("completion", "install", "fish").code == 0

    def complete(words: str) -> list[str]:
        command = ["fish", "-c", f"complete --do-complete '{words}'"]
        return subprocess.check_output(
            command, env=in_home.environment, cwd=in_home.folder, text=True
        ).splitlines()

    assert complete("hop run -q def") == ["default"]
    (queue_info,) = complete("hop queue inf")
    assert queue_info.startswith("info\tShow all details of a queue: its limits,")


@pytest.mark.parametrize("shell_name", SHELLS)
def test_script_of_each_shell_calls_hop(shell_name: str, capfd: pytest.CaptureFixture[str]) -> None:
    result = hop(capfd, "completion", "show", shell_name)
    assert result.code == 0
    assert f"_HOP_COMPLETE={shell_name}_complete" in result.out


def test_unknown_login_shell_is_refused(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/bin/csh")
    result = hop(capfd, "completion", "install")
    assert (result.code, "`csh` has no completion" in result.err) == (2, True)


def test_words_that_no_run_may_have_are_completed() -> None:
    parent = program.make_context("hop", ["run"], resilient_parsing=True)  # with its words for help
    context = run_command.make_context("run", ["python", "-m", "pkg"], parent=parent, resilient_parsing=True)
    assert context.params["module"] == "pkg"
