"""The engine's view of one replica's folder: it writes what to do, reads what became of it, and asks for the
end.

What cannot be read for want of descriptors or the like raises: taken for missing, a living replica would be
called lost.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from hopyard.domain.replica import (
    LOCK_FILE,
    SPEC_FILE,
    STATUS_FILE,
    STOP_FILE,
    ReplicaSpec,
    ReplicaState,
    StopOrder,
)
from hopyard.file_locks import is_locked
from hopyard.private_files import make_folder, read_below, write_below

T = TypeVar("T")
# something else lies there: a damaged folder
_MISSING_ERRORS = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


@dataclass(frozen=True, slots=True)
class ReplicaFolder:
    root: Path

    @property
    def rank(self) -> int:
        return int(self.root.name)

    def write_spec(self, spec: ReplicaSpec) -> None:
        """Make the folder, readable by its owner only: the spec holds the run's token."""
        make_folder(self.root)
        write_below(self.root, SPEC_FILE, msgspec.json.encode(spec))

    def read_spec(self) -> ReplicaSpec | None:
        return self._read(SPEC_FILE, ReplicaSpec)

    def read_state(self) -> ReplicaState | None:
        """What the replica says; None before it said anything (or when a power cut left half a file)."""
        return self._read(STATUS_FILE, ReplicaState)

    def is_started(self) -> bool:
        """Whether a replica has ever lived here."""
        return os.path.lexists(self.root / STATUS_FILE)

    def is_alive(self) -> bool:
        """Whether a living replica holds the lock."""
        return is_locked(f"{self.root.name}/{LOCK_FILE}", parent_folder=self.root.parent)

    def request_stop(self, order: StopOrder) -> None:
        """Leave the order and wake the replica. With one that is there already: see
        `StopOrder.merged_with`."""
        earlier = self._read(STOP_FILE, StopOrder)
        kept = order if earlier is None else earlier.merged_with(order)
        if kept != earlier:
            write_below(self.root, STOP_FILE, msgspec.json.encode(kept))
        self.signal(signal.SIGTERM)

    def has_stop(self) -> bool:
        return (self.root / STOP_FILE).exists()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the replica program, and to nobody else: its process is fixed first, then it is
        looked at whether it has this folder's lock, so a number that the kernel gave to another process
        meanwhile, or that a copied status names, is never hit."""
        state = self.read_state()
        pid = 0 if state is None else state.pid
        # a script may have written over what the replica said
        if number == signal.SIGKILL and (pid <= 0 or not self._has_lock(pid)):
            pid = self._lock_holder()
        if pid <= 0:
            return  # it reads the stop file before it starts anything
        try:
            process = os.pidfd_open(pid)
        except OSError:
            return
        try:
            if self.is_alive() and self._has_lock(pid):
                signal.pidfd_send_signal(process, number)
        except ProcessLookupError:
            return
        finally:
            os.close(process)

    def _lock_holder(self) -> int:
        """The process that holds the lock's file open, for a replica with a status that is not its own: 0
        where there is none."""
        pids = (int(process.name) for process in Path("/proc").iterdir() if process.name.isdecimal())
        return next((pid for pid in pids if pid != os.getpid() and self._has_lock(pid)), 0)

    def _has_lock(self, pid: int) -> bool:
        """Whether a process has the lock's file open."""
        with suppress(OSError):  # gone meanwhile, or another user's
            lock = (self.root / LOCK_FILE).stat()
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    if os.path.samestat(entry.stat(), lock):
                        return True
        return False

    def _read(self, name: str, kind: type[T]) -> T | None:
        try:
            return msgspec.json.decode(read_below(self.root.parent, f"{self.root.name}/{name}"), type=kind)
        except (*_MISSING_ERRORS, msgspec.MsgspecError):
            return None


def process_state(pid: int) -> str:
    """The letter that the kernel gives for what a process does: `T` stopped, `Z` dead and not looked at; ""
    where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return ""


def is_frozen(pid: int, *, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> bool:
    """Whether a process is stopped by a signal, or by a freeze of its cgroup or of one above, which the
    kernel does not show as its state."""
    if process_state(pid) == "T":
        return True
    for line in _lines(proc / str(pid) / "cgroup"):
        _, _, of_group = line.partition(":")
        controllers, _, path = of_group.partition(":")
        inside = path.lstrip("/")
        if controllers == "" and any(
            "frozen 1" in _lines(root / inside / "cgroup.events") for root in (groups, groups / "unified")
        ):
            return True
        if controllers == "freezer" and _lines(groups / "freezer" / inside / "freezer.state") == ["FROZEN"]:
            return True
    return False


def _lines(file: Path) -> list[str]:
    """Nothing where the file cannot be read, as in a container that does not show the cgroups of its host."""
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []


def replica_folders(attempt: Path) -> list[ReplicaFolder]:
    """The replicas of an attempt that are on this machine, by rank."""
    try:
        ranks = sorted(
            int(entry.name)
            for entry in attempt.iterdir()
            if entry.name.isdecimal() and not entry.is_symlink()
        )
    except _MISSING_ERRORS:
        return []
    return [ReplicaFolder(attempt / str(rank)) for rank in ranks]
