"""Runs `hop` as a process in a folder, with pipes or on a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOP = (sys.executable, "-m", "hopyard.cli")
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a command, as bytes like the output of a run."""

    code: int
    out: bytes
    err: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def stderr_text(self) -> str:
        return self.err.decode()


class Shell:
    """A folder and an environment in which `hop` commands run."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def hop(self, *words: str, stdin: str = "", timeout_s: float = TIMEOUT_S) -> CommandResult:
        process = subprocess.run(
            [*HOP, *words],
            cwd=self.folder,
            env=self.environment,
            input=stdin.encode(),
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
        return CommandResult(process.returncode, process.stdout, process.stderr)

    def detach(self, *words: str) -> str:
        """Submits a run and returns its name."""
        result = self.hop("run", "--detach", *words)
        assert result.code == 0, result.stderr_text
        return result.text.strip()

    @contextmanager
    def terminal(self, *words: str) -> Iterator[Terminal]:
        """Runs the command on a terminal of 100 columns and kills it at the end of the block."""
        terminal = Terminal(
            [*HOP, *words], self.folder, {**self.environment, "TERM": "xterm", "COLUMNS": "100"}
        )
        try:
            yield terminal
        finally:
            terminal.close()


class Terminal:
    """A process on a pseudo-terminal: its output, and input as keys."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_take_terminal,  # noqa: PLW1509  # one system call, which takes no lock
        )
        os.close(slave)
        self.output = b""

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def expect(self, expected: bytes) -> bytes:
        """Waits for this output and returns everything up to its end; the next call searches after it."""
        deadline = time.monotonic() + TIMEOUT_S
        while expected not in self.output:
            is_silent = not self._read(0.1) and self._process.poll() is not None and not self._read(0.2)
            if is_silent or time.monotonic() > deadline:
                raise AssertionError(f"{expected!r} was not shown; the output was {self.output!r}")
        shown, _, self.output = self.output.partition(expected)
        return shown + expected

    def wait(self) -> int:
        """Waits for the end of the process and returns its exit code."""
        deadline = time.monotonic() + TIMEOUT_S
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"still running; the output was {self.output!r}"
            self._read(0.1)
        while self._read(0.1):
            pass
        return self._process.returncode

    def _read(self, timeout_s: float) -> bool:
        try:
            if not select.select([self._master], [], [], timeout_s)[0]:
                return False
            data = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return False
        self.output += data
        return bool(data)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        os.close(self._master)


def _take_terminal() -> None:
    """Makes stdin the controlling terminal, so that Ctrl-C arrives as a signal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits until the condition is true. A long wait polls less often, and a poll that starts a command is
    followed by a pause: polls take CPU time from the processes that the test waits for."""
    started = time.monotonic()
    while True:
        before = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        assert now - started < TIMEOUT_S, "the condition was not met in time"
        time.sleep(min(0.02 + (now - started) / 20 + (now - before) / 2, 0.3))


def normalize(text: str) -> str:
    """Returns a command's text with placeholders for ids, ports, users, times, durations and run numbers."""
    text = re.sub(r"http://127\.0\.0\.1:\d+", "http://SERVER", text)
    text = re.sub(r"\b[0-9a-f]{12}\b", "DIGEST", text)
    text = re.sub(r"\b[0-9a-z]{20}\b", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", text)
    text = re.sub(r"(?<=[ (])[\d.]+ (?:ms|s|min|h)(?: \d+ (?:s|min))?(?!\w)", "SPAN", text)
    text = re.sub(r"[\w.-]+/study/\d+", "USER/study/N", text)
    text = re.sub(r"[\d.]+ KiB", "SIZE", text)
    text = re.sub(r"(?m)^(machine env +).*", r"\1NAMES", text)
    text = re.sub(r"(?m)^usage .*\n", "", text)  # a run of a second may have no sample
    text = text.replace(sys.executable, "PYTHON")
    text = re.sub(r"\d+(?=; `--json` lists them)", "N", text)
    return re.sub(r"  +", "  ", text)


def assert_snapshot(name: str, text: str) -> None:
    """Compares the text with the snapshot file; UPDATE_SNAPSHOTS=1 rewrites the file."""
    file = Path(__file__).parent / "snapshots" / name
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(text)
    assert text == file.read_text()
