"""Runs recorded by plain `python main.py` without a replica: a folder like a replica's, plus `run.json`.

HOME/offline/<id>/  run.json  lock (held while the script runs)  streams/  checkpoints/
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from hopyard.backports import UTC
from hopyard.config.home import Home
from hopyard.errors import SpecError
from hopyard.private_files import make_folder, open_file, write_atomically
from hopyard.sdk.exit_code import main_frame, system_exit_code
from hopyard.sdk.streams import EventStream
from hopyard.sdk.warn_once import warn_once

# set for processes that the script starts; they log to the same folder
FOLDER_VARIABLE = "HOPYARD_OFFLINE_DIR"
RUN_FILE, LOCK_FILE = "run.json", "lock"
MAX_CHECKPOINTS = 3
_GIT_TIMEOUT_S = 3


class OfflineRun:
    """The recording of this process. It ends with the process."""

    def __init__(self, home: Home, environ: Mapping[str, str]) -> None:
        self.id, self._home = _new_id(environ), home
        self.folder = str(home.offline / self.id)
        self._pid, self._lock = os.getpid(), -1
        self._exit_code: int | None = None  # None: the script has not set its exit code
        self._main = main_frame()
        self._metadata: dict[str, Any] = {}

    def start(self) -> None:
        """Creates the folder and prints its path. If the disk fails, prints a warning, and the script
        continues unrecorded."""
        try:
            self._home.create()
            make_folder(self.folder)
            make_folder(os.path.join(self.folder, "streams"))
            os.environ[FOLDER_VARIABLE] = self.folder
            self._lock = open_file(os.path.join(self.folder, LOCK_FILE), os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another process of the same torchrun was first and writes run.json
        except OSError as error:
            warn_once(f"this run cannot be recorded: {self.folder}: {error.strerror}", kind="offline")
            return
        except SpecError as error:
            warn_once(f"this run cannot be recorded: {error.message}", kind="offline")
            return
        self._metadata = _run_metadata(self.id)
        self._write()
        self._install_exit_hooks()
        warn_once(f"recording offline in {self.folder}; `hop sync` sends it to the server", kind="offline")

    def record_dataset(self, dataset: str, version: int) -> None:
        """Records that the script reads this version of a dataset."""
        entry = {"name": dataset, "version": version}
        if self._metadata and entry not in self._metadata["datasets"]:
            self._metadata["datasets"].append(entry)
            self._write()

    def _write(self) -> None:
        try:
            write_atomically(
                Path(self.folder, RUN_FILE), json.dumps(self._metadata, indent=1).encode() + b"\n"
            )
        except OSError as error:
            warn_once(f"cannot write {self.folder}/{RUN_FILE}: {error.strerror}", kind="offline-run-file")

    def _install_exit_hooks(self) -> None:
        """Installs hooks for the exit code of `sys.exit` and for exceptions. A `raise SystemExit(3)` calls
        neither (see `exit_code.py`)."""
        original_exit, original_hook = sys.exit, sys.excepthook

        def recording_exit(status: Any = None, /) -> NoReturn:
            self._exit_code = status if isinstance(status, int) else 0 if status is None else 1
            original_exit(status)

        def recording_hook(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            self._exit_code = 130 if issubclass(kind, KeyboardInterrupt) else 1
            original_hook(kind, error, trace)

        sys.exit, sys.excepthook = recording_exit, recording_hook
        atexit.register(self._record_end)

    def _record_end(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child
        code = (
            self._exit_code
            if self._exit_code is not None
            else system_exit_code(self._main)
            if self._main is not None
            else 0
        ) & 0xFF
        reason = "finished" if code == 0 else f"the script ended with exit code {code}"
        self._metadata["ended_at"] = _now_text()
        self._metadata["exit"] = {"kind": "exit-code", "code": code, "reason": reason}
        if os.path.isdir(self.folder):
            # its timestamp gives the server the end time
            EventStream(os.path.join(self.folder, "streams", "events")).append("note", text=reason)
            self._write()


def make_passing_folder() -> str:
    """Returns a folder for what a process records that no run takes. It is removed when the process ends."""
    import shutil
    import tempfile

    folder, pid = tempfile.mkdtemp(prefix="hopyard-console-"), os.getpid()

    def remove() -> None:
        if os.getpid() == pid:  # not in a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def _new_id(environ: Mapping[str, str]) -> str:
    """Returns an id that sorts by time. Processes of the same torchrun get the same id, so that they record
    one run."""
    from hopyard.domain.ids import new_run_id

    if environ.get("WORLD_SIZE", "1") != "1" and environ.get("MASTER_PORT"):
        import hashlib

        started_at_ms = _started_at_ms(os.getppid())
        origin = (
            f"{os.uname().nodename}:{os.getppid()}:{started_at_ms}:"
            f"{environ['MASTER_PORT']}:{environ.get('TORCHELASTIC_RESTART_COUNT', '')}"
        )
        return new_run_id(
            datetime.fromtimestamp(started_at_ms / 1000, UTC),
            hashlib.blake2b(origin.encode(), digest_size=7).digest(),
        )
    return new_run_id(datetime.now(UTC), os.urandom(7))


def _started_at_ms(pid: int) -> int:
    """Returns the start time of a process in unix milliseconds, identical for all callers."""
    with suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/stat", "rb") as stat, open("/proc/stat", "rb") as system:
            ticks = int(stat.read().rpartition(b")")[2].split()[19])
            booted_at_s = next(int(line.split()[1]) for line in system if line.startswith(b"btime"))
        return booted_at_s * 1000 + ticks * 1000 // os.sysconf("SC_CLK_TCK")
    return 0


def _run_metadata(run_id: str) -> dict[str, Any]:
    folder = os.getcwd()
    return {
        "id": run_id,
        "project": os.path.basename(folder),
        "argv": list(getattr(sys, "orig_argv", [sys.executable, *sys.argv])),
        "cwd": folder,
        "interpreter": sys.executable,
        "python": ".".join(map(str, sys.version_info[:3])),
        "host": os.uname().nodename,
        "pid": os.getpid(),
        "git": _git_state(folder),
        "datasets": [],
        "started_at": _now_text(),
        "ended_at": None,
        "exit": None,
    }


def _now_text() -> str:
    return datetime.now(UTC).isoformat()


def _git_state(folder: str) -> dict[str, Any] | None:
    """Returns commit, branch and whether tracked files differ; None outside a repository or without git."""
    if not any(os.path.exists(os.path.join(parent, ".git")) for parent in _parent_folders(folder)):
        return None
    import subprocess

    # The settings of another user's folder must not start that user's programs.
    safe = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
    command = ["git", *safe, "-C", folder, "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        output = subprocess.run(
            command,
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            check=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.SubprocessError):
        return None
    state: dict[str, Any] = {"commit": "", "branch": "", "dirty": False}
    for line in output.splitlines():
        if line.startswith("# branch.oid "):
            state["commit"] = line.split()[2]
        elif line.startswith("# branch.head "):
            state["branch"] = "" if "(detached)" in line else line.split(" ", 2)[2]
        elif not line.startswith("#"):
            state["dirty"] = True
    return state if state["commit"] not in ("", "(initial)") else None


def _parent_folders(folder: str) -> list[str]:
    parents = [folder]
    while (parent := os.path.dirname(parents[-1])) != parents[-1]:
        parents.append(parent)
    return parents
