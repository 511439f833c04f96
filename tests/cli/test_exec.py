"""`hop exec`: commands beside a live run, with pipes and on a terminal."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.cli.conftest import shell_in
from tests.cli.shell import HOP, Shell, wait_until


@pytest.fixture(scope="module")
def exec_shell(served_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return shell_in(tmp_path_factory.mktemp("exec") / "study", served_home)


@pytest.fixture(scope="module")
def run(exec_shell: Shell) -> Iterator[str]:
    """The name of a live gang of two replicas."""
    exec_shell.write("wait.py", "import time\nprint('started', flush=True)\ntime.sleep(3600)\n")
    name = exec_shell.detach("--replicas", "2", "--cpus", "0.5", "--memory", "300M", "wait.py")
    wait_until(lambda: exec_shell.hop("logs", name).out.count(b"started") == 2)
    yield name
    exec_shell.hop("stop", name, "--grace", "0")


def _has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_command_has_the_surroundings_of_the_run(exec_shell: Shell, run: str) -> None:
    script = "pwd; echo $RANK $HOPYARD_REPLICA; ls; cat /proc/self/cgroup; echo oops >&2; exit 7"
    result = exec_shell.hop("exec", run, "--replica", "worker-1", "--", "sh", "-c", script)
    lines = result.text.splitlines()
    assert (result.code, result.err) == (7, b"oops\n")
    assert lines[1:3] == ["1 worker-1", "wait.py"]
    spread = exec_shell.hop("exec", run, "--rank", "1", "--", "python", "-c", "import os; print(os.getcwd())")
    assert spread.text.strip() == lines[0]
    own_groups = exec_shell.hop("exec", run, "--", "sh", "-c", "cat /proc/self/cgroup /proc/$PPID/cgroup")
    assert own_groups.code == 0
    wrong = exec_shell.hop("exec", run, "--replica", "worker-2", "--", "true")
    assert (wrong.code, "its replicas: worker-0, worker-1" in wrong.stderr_text) == (2, True), wrong
    missing = exec_shell.hop("exec", run, "--", "no-such-program", "--token", "kept-private")
    assert (missing.code, "command not found" in missing.stderr_text) == (127, True)
    shown = exec_shell.hop("info", run).text
    assert ("ran `no-such-program` in replica 0" in shown, "kept-private" in shown) == (True, False)
    assert "run.open_console" in exec_shell.hop("audit").text


BESIDE = """
import os
import sys
import hopyard as hop

hop.params(width=3)
for epoch in hop.loop(range(3), every=1):
    hop.log(loss=0.5, step=epoch)
hop.summary(best=1.0)
print(hop.run().rank, hop.run().folder, os.environ["HOPYARD_REPLICA_DIR"])
sys.exit("not the reason of the run")
"""


def test_command_does_not_act_as_the_script(exec_shell: Shell, run: str) -> None:
    beside = exec_shell.hop("exec", run, "--", "python", "-", stdin=BESIDE)
    rank, folder, replica = beside.text.split()
    assert (beside.code, rank, Path(folder).exists()) == (1, "0", False), beside
    assert "not the script" in beside.stderr_text
    events = [json.loads(line) for line in Path(replica, "streams", "events").read_text().splitlines()]
    assert {event["kind"] for event in events} <= {"environment", "packages"}, events
    written = ("streams/metrics", "checkpoints/*", "prompts", "exit_text")
    assert not [path for pattern in written for path in Path(replica).glob(pattern)]


def test_bytes_pass_unchanged_in_both_directions(exec_shell: Shell, run: str) -> None:
    data = bytes(range(256)) * 20_000  # more than the window of either direction
    echoed = subprocess.run(
        [*HOP, "exec", run, "--", "cat"],
        input=data,
        env=exec_shell.environment,
        cwd=exec_shell.folder,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (echoed.returncode, echoed.stderr) == (0, b"")
    assert hashlib.sha256(echoed.stdout).digest() == hashlib.sha256(data).digest()
    # a command that ends without reading its input
    ignored = subprocess.run(
        [*HOP, "exec", run, "--", "true"],
        input=data,
        env=exec_shell.environment,
        cwd=exec_shell.folder,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (ignored.returncode, ignored.stderr) == (0, b"")


def test_terminal_is_a_real_one(exec_shell: Shell, run: str) -> None:
    with exec_shell.terminal("exec", run, "--", "bash", "--norc") as terminal:
        terminal.type(b"PS1='$ '; tty; stty size; echo $TERM:\r")
        assert b"/dev/pts/" in terminal.expect(b"xterm:")
        terminal.resize(33, 77)
        terminal.type(b"trap 'stty size' WINCH; until [ \"$(stty size)\" = '33 77' ]; do sleep 0.1; done\r")
        terminal.type(b"stty size; echo done:\r")
        assert b"33 77" in terminal.expect(b"done:\r")
        # its output shows that it has the terminal: a key before that would be for the shell
        terminal.type(b"sh -c 'while sleep 0.1; do echo tick $((6 * 7)); done'\r")
        terminal.expect(b"tick 42")
        terminal.type(b"\x1a")  # Ctrl-Z
        terminal.expect(b"Stopped")
        terminal.type(b"fg\r")
        terminal.expect(b"tick 42")
        terminal.type(b"\x03")  # Ctrl-C
        terminal.expect(b"^C")
        terminal.type(b"echo code=$?\r")
        terminal.expect(b"code=130")
        terminal.expect(b"$ ")  # a Ctrl-D before bash reads its line would end no input
        terminal.type(b"\x04")  # Ctrl-D
        assert terminal.wait() == 0


def test_nothing_is_left_behind(exec_shell: Shell, run: str, tmp_path: Path) -> None:
    """The connection breaks in the middle, and a command leaves processes behind."""
    script = "setsid sleep 1000 & sleep 1000 & echo $!; wait"
    for signal_number in (signal.SIGKILL, signal.SIGTERM):
        process = subprocess.Popen(
            [*HOP, "exec", run, "--", "sh", "-c", f"trap '' HUP; {script}"],
            env=exec_shell.environment,
            cwd=exec_shell.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert not _has_ended(child)
        process.send_signal(signal_number)
        process.communicate()
        wait_until(partial(_has_ended, child))
    left = exec_shell.hop("exec", run, "--", "sh", "-c", "sleep 1000 & echo $!")
    assert left.code == 0
    assert _has_ended(int(left.text))


def test_commands_end_with_the_run(exec_shell: Shell) -> None:
    exec_shell.write("brief.py", "import sys\nprint('started', flush=True)\nopen('fifo').read()\n")
    name = exec_shell.detach("--cpus", "0.5", "--", "sh", "-c", "mkfifo fifo; python brief.py")
    wait_until(lambda: b"started" in exec_shell.hop("logs", name).out)
    process = subprocess.Popen(
        [*HOP, "exec", name, "--", "sh", "-c", "trap '' HUP TERM; echo $$; echo > fifo; sleep 1000"],
        env=exec_shell.environment,
        cwd=exec_shell.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = process.communicate(timeout=120)
    assert (process.returncode, b"the run has ended" in err) == (255, True), err
    assert _has_ended(int(out))
    wait_until(lambda: exec_shell.hop("info", "--json", name).json["phase"] == "succeeded")
    refused = exec_shell.hop("exec", name, "--", "true")
    assert (refused.code, "has ended" in refused.stderr_text) == (1, True)


def test_other_processes_cannot_use_the_socket_of_a_replica(exec_shell: Shell, run: str) -> None:
    """A run that puts another program in the place of its console gets no connection."""
    attempts = Path(exec_shell.environment["HOPYARD_HOME"]) / "attempts"
    socket_file = next(attempts.glob("*/1/console.sock"))
    aside = socket_file.with_name("aside")
    socket_file.rename(aside)
    try:
        socket_file.symlink_to(socket_file.parent.parent / "0" / "console.sock")
        refused = exec_shell.hop("exec", run, "--rank", "1", "--", "true")
        assert (refused.code, "accepts no consoles" in refused.stderr_text) == (1, True), refused
        socket_file.unlink()
        socket_file.hardlink_to(socket_file.parent.parent / "0" / "console.sock")
        refused = exec_shell.hop("exec", run, "--rank", "1", "--", "true")
        assert (refused.code, "another process has replaced" in refused.stderr_text) == (1, True), refused
    finally:
        socket_file.unlink()
        aside.rename(socket_file)
    assert exec_shell.hop("exec", run, "--rank", "1", "--", "true").code == 0
