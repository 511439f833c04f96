"""`hop` as a process: typed in a folder, with pipes or on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOP = (sys.executable, "-m", "hopyard.cli")
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Done:
    """What a command left: bytes, because a run's output is bytes."""

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
    def talk(self) -> str:
        return self.err.decode()


class Shell:
    """A folder and an environment to type `hop …` in."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def hop(self, *words: str, typed: str = "") -> Done:
        done = subprocess.run(
            [*HOP, *words],
            cwd=self.folder,
            env=self.environment,
            input=typed.encode(),
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def detach(self, *words: str) -> str:
        """Submit a run and return its name."""
        done = self.hop("run", "--detach", *words)
        assert done.code == 0, done.talk
        return done.text.strip()

    @contextmanager
    def terminal(self, *words: str) -> Iterator[Terminal]:
        """The command on a terminal of 100 columns; ended when the block is left."""
        terminal = Terminal(
            [*HOP, *words], self.folder, {**self.environment, "TERM": "xterm", "COLUMNS": "100"}
        )
        try:
            yield terminal
        finally:
            terminal.close()


class Terminal:
    """A process on a pseudo-terminal: what it shows, and keys typed at it."""

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
        self.seen = b""

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def expect(self, wanted: bytes) -> bytes:
        """Wait until `wanted` is shown; what was shown up to its end. Later calls look behind it."""
        deadline = time.monotonic() + PATIENCE_S
        while wanted not in self.seen:
            silent = not self._read(0.1) and self._process.poll() is not None and not self._read(0.2)
            if silent or time.monotonic() > deadline:
                raise AssertionError(f"{wanted!r} was not shown; shown was {self.seen!r}")
        shown, _, self.seen = self.seen.partition(wanted)
        return shown + wanted

    def wait(self) -> int:
        """The exit code, once the process has ended."""
        deadline = time.monotonic() + PATIENCE_S
        while self._process.poll() is None:
            assert time.monotonic() < deadline, f"still there; shown was {self.seen!r}"
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
        self.seen += data
        return bool(data)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        os.close(self._master)


def _take_terminal() -> None:
    """Make stdin the controlling terminal, so that Ctrl-C arrives as a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for a condition of the system."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def normal(text: str) -> str:
    """A command's text without what differs from run to run: ids, ports, users, times, spans, numbers of
    runs."""
    text = re.sub(r"http://127\.0\.0\.1:\d+", "http://SERVER", text)
    text = re.sub(r"\b[0-9a-f]{12}\b", "DIGEST", text)
    text = re.sub(r"\b[0-9a-z]{20}\b", "ID", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", text)
    text = re.sub(r"(?<=[ (])[\d.]+ (?:ms|s|min|h)(?: \d+ (?:s|min))?(?!\w)", "SPAN", text)
    text = re.sub(r"[\w.-]+/study/\d+", "USER/study/N", text)
    text = re.sub(r"[\d.]+ KiB", "SIZE", text)
    text = re.sub(r"(?m)^(machine env +).*", r"\1NAMES", text)
    text = text.replace(sys.executable, "PYTHON")
    text = re.sub(r"\d+(?=; `--json` lists them)", "N", text)
    return re.sub(r"  +", "  ", text)


def same_as_snapshot(name: str, text: str) -> None:
    """Compare with the file; UPDATE_SNAPSHOTS=1 writes it instead."""
    file = Path(__file__).parent / "snapshots" / name
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.write_text(text)
    assert text == file.read_text()
