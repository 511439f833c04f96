"""`hop repl` in the process of a live gang."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import shell_in
from tests.cli.shell import Shell, wait_until

TRAIN = """
import time
import hopyard as hop

p = hop.params(lr=0.1)

def train():
    model = {"weight": 1.0}
    bound = hop.bind(model=model, seen=0)
    for epoch in hop.loop(range(1_000_000), every=10_000):
        hop.log(loss=1.0, step=epoch)
        time.sleep(0.01)

train()
"""


@pytest.fixture(scope="module")
def repl_shell(served_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return shell_in(tmp_path_factory.mktemp("repl") / "study", served_home)


@pytest.fixture(scope="module")
def run(repl_shell: Shell) -> Iterator[str]:
    """The name of a live gang of two replicas, which is in its loop."""
    repl_shell.write("train.py", TRAIN)
    name = repl_shell.detach("--replicas", "2", "--cpus", "0.5", "train.py")
    wait_until(lambda: repl_shell.hop("repl", name, "-c", "epoch").code == 0)
    wait_until(lambda: repl_shell.hop("repl", name, "--rank", "1", "-c", "epoch").code == 0)
    yield name
    repl_shell.hop("stop", name, "--grace", "0")


def test_statements_of_scripts(repl_shell: Shell, run: str) -> None:
    read = repl_shell.hop("repl", run, stdin="p.lr\nprint('shown')\nmodel['weight']\n")
    # on a busy machine it may have to wait for a safe point
    errors = [line for line in read.stderr_text.splitlines() if "waiting for the next safe point" not in line]
    assert (read.code, read.text, errors) == (0, "0.1\nshown\n1.0\n", [])
    own = repl_shell.hop("repl", run, "--rank", "1", "-c", "hop.run().rank")
    assert (own.code, own.text) == (0, "1\n")
    several = repl_shell.hop("repl", run, "-c", "first = 40 + 1", "-c", "first", "-c", "first + 1")
    assert (several.code, several.text) == (0, "41\n42\n"), several
    failed = repl_shell.hop("repl", run, "-c", "1 / 0")
    assert (failed.code, "ZeroDivisionError" in failed.stderr_text) == (1, True)
    assert repl_shell.hop("repl", run, "-c", "import sys; sys.exit(3)").code == 1
    # a parameter is set in all processes, as by `hop set`
    changed = repl_shell.hop("repl", run, "-c", "p.lr = 0.01; p.lr")
    assert (changed.code, changed.text) == (0, "0.01\n"), changed
    assert "lr 0.1 -> 0.01, applied at step" in changed.stderr_text
    assert repl_shell.hop("repl", run, "--rank", "1", "-c", "p.lr").text == "0.01\n"
    refused = repl_shell.hop("repl", run, "-c", "p.lr = 'fast'; p.lr")
    assert (refused.code, "is a float" in refused.stderr_text) == (1, True), refused
    misspelt = repl_shell.hop("repl", run, "-c", "p.lrr = 1.0")
    assert "the script has no parameter `lrr`; did you mean `lr`?" in misspelt.stderr_text, misspelt
    # a paused run has a prompt, too
    held = repl_shell.hop(
        "repl", run, "--hold", "-c", "first = epoch; import time; time.sleep(0.1); epoch - first"
    )
    assert (held.code, held.text) == (0, "0\n"), held
    assert repl_shell.hop("info", run, "--json").json["phase"] == "running"
    shown = repl_shell.hop("info", run).text
    assert ("opened a Python prompt in replica 1" in shown, "set lr 0.1 -> 0.01" in shown) == (True, True)


def test_prompt_on_a_terminal(repl_shell: Shell, run: str) -> None:
    with repl_shell.terminal("repl", run) as terminal:
        terminal.expect(b"Ctrl-D leaves.")
        terminal.expect(b">>> ")
        terminal.type(b"for i in range(2):\r")
        terminal.expect(b"... ")
        terminal.type(b"    print('row', 6 * 7 + i)\r\r")
        assert b"row 42\r\nrow 43" in terminal.expect(b">>> ")
        terminal.type(b"mod\t")
        terminal.expect(b"model")
        terminal.type(b"['weight']\r")
        terminal.expect(b"1.0\r\n>>> ")
        terminal.type(b"import time; print('beg' 'un'); time.sleep(1000)\r")
        terminal.expect(b"begun\r\n")
        terminal.type(b"\x03")  # Ctrl-C
        terminal.expect(b"KeyboardInterrupt\r\n>>> ")
        terminal.type(b"epoch > 0\r")
        terminal.expect(b"True\r\n>>> ")
        terminal.type(b"\x04")  # Ctrl-D
        assert terminal.wait() == 0
    assert (
        b"for i in range(2):" in (Path(repl_shell.environment["HOPYARD_HOME"]) / "repl_history").read_bytes()
    )


def test_run_without_a_safe_point_names_the_other_way(repl_shell: Shell) -> None:
    name = repl_shell.detach("--cpus", "0.5", "--", "sleep", "600")
    wait_until(lambda: repl_shell.hop("info", "--json", name).json["phase"] == "running")
    refused = repl_shell.hop("repl", name, "-c", "1")
    assert (refused.code, "hop.loop" in refused.stderr_text, "hop exec" in refused.stderr_text) == (
        1,
        True,
        True,
    )
    assert repl_shell.hop("stop", name, "--grace", "0").code == 0
    ended = repl_shell.hop("repl", name, "-c", "1")
    assert (ended.code, "has ended" in ended.stderr_text) == (1, True), ended
