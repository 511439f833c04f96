"""The engine's view of one replica's folder: writes the spec, reads the state, requests the stop.

A file that cannot be read for lack of descriptors or the like raises an error. If it counted as missing, a
live replica would be reported as lost.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from hopyard.domain.replica import (
    DEFAULT_STOP_SIGNAL,
    LOCK_FILE,
    SPEC_FILE,
    STATUS_FILE,
    STOP_FILE,
    TRUSTED_SPEC_PREFIX,
    ReplicaSpec,
    ReplicaState,
    StopOrder,
    trusted_spec_file,
)
from hopyard.file_locks import is_locked
from hopyard.private_files import make_folder, read_below, write_atomically, write_below

T = TypeVar("T")
# made at the import, see CONTRIBUTING.md: threads read the folders of a gang at once
_SPEC, _STATE = msgspec.json.Decoder(ReplicaSpec), msgspec.json.Decoder(ReplicaState)
_STOP = msgspec.json.Decoder(StopOrder)
# the last two occur in a damaged folder
_MISSING_ERRORS = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


@dataclass(frozen=True, slots=True)
class ReplicaFolder:
    root: Path

    @property
    def rank(self) -> int:
        return int(self.root.name)

    @property
    def work(self) -> Path:
        """The working folder: its own, or the one that it shares with its gang on this node."""
        own = self.root / "work"
        return own if own.is_dir() else self.root.parent / "work"

    def write_spec(self, spec: ReplicaSpec) -> None:
        """Creates the folder, readable by its owner only, because the spec contains the run's token."""
        make_folder(self.root)
        text = msgspec.json.encode(spec)
        write_atomically(trusted_spec_file(self.root), text)  # after its folder: see `remove_stale_spec`
        write_below(self.root, SPEC_FILE, text)

    def read_spec(self) -> ReplicaSpec | None:
        """Returns the spec as the engine wrote it, not as the script may have changed it."""
        try:
            return _SPEC.decode(trusted_spec_file(self.root).read_bytes())
        except _MISSING_ERRORS:
            return self._read(SPEC_FILE, _SPEC)
        except msgspec.MsgspecError:
            return None

    def read_state(self) -> ReplicaState | None:
        """Returns the replica's state; None before its first state (or if a power cut left half a file)."""
        return self._read(STATUS_FILE, _STATE)

    def is_started(self) -> bool:
        """Returns whether a replica has ever started here."""
        return os.path.lexists(self.root / STATUS_FILE)

    def is_alive(self) -> bool:
        """Returns whether a live replica holds the lock."""
        return is_locked(f"{self.root.name}/{LOCK_FILE}", parent_folder=self.root.parent)

    def is_replica(self, pid: int) -> bool:
        """Returns whether the process is the live replica. Its script may have written another state."""
        return pid > 0 and self.is_alive() and self._has_lock(pid)

    def request_stop(self, order: StopOrder) -> None:
        """Writes the order and wakes the replica. Merges it with an existing order: see
        `StopOrder.merged_with`. Its signal is never empty, since a replica of an earlier version cannot read
        that."""
        earlier = self.read_stop()
        merged = order if earlier is None else earlier.merged_with(order)
        merged = replace(merged, signal=merged.signal or DEFAULT_STOP_SIGNAL)
        if merged != earlier:
            write_below(self.root, STOP_FILE, msgspec.json.encode(merged))
        self.signal(signal.SIGTERM)

    def read_stop(self) -> StopOrder | None:
        """Returns the replica's order to stop; None without one."""
        return self._read(STOP_FILE, _STOP)

    def has_stop(self) -> bool:
        return (self.root / STOP_FILE).exists()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the replica program and to no other process.

        It opens a pidfd first, then checks that the process holds this folder's lock. So a pid that the
        kernel reused meanwhile, or that comes from a copied status, is never signalled.
        """
        state = self.read_state()
        pid = 0 if state is None else state.pid
        # a script may have overwritten the replica's state
        if number == signal.SIGKILL and (pid <= 0 or not self._has_lock(pid)):
            pid = self._lock_holder()
        if pid <= 0:
            return  # the replica reads the stop file before it starts a process
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
        """Returns the pid of the process that has the lock file open, for a replica whose status is not its
        own; 0 if there is none."""
        pids = (int(process.name) for process in Path("/proc").iterdir() if process.name.isdecimal())
        return next((pid for pid in pids if pid != os.getpid() and self._has_lock(pid)), 0)

    def _has_lock(self, pid: int) -> bool:
        """Returns whether a process has the lock file open."""
        with suppress(OSError):  # it ended meanwhile, or is another user's
            # of the file itself: a script may replace it by a link to one that others have open
            return has_open(pid, (self.root / LOCK_FILE).lstat())
        return False

    def _read(self, name: str, decoder: msgspec.json.Decoder[T]) -> T | None:
        try:
            return decoder.decode(read_below(self.root.parent, f"{self.root.name}/{name}"))
        except (*_MISSING_ERRORS, msgspec.MsgspecError):
            return None


def has_open(pid: int, file: os.stat_result) -> bool:
    """Returns whether a process has a file open. Raises OSError if it has ended, or is another user's."""
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if os.path.samestat(entry.stat(), file):
                return True
    return False


def process_state(pid: int) -> str:
    """Returns the kernel's letter for the state of a process: `T` stopped, `Z` zombie; "" if it does not
    exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return ""


def process_start(pid: int) -> str:
    """Returns when a process started, in clock ticks since the boot; "" if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return ""


def is_frozen(pid: int, *, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> bool:
    """Returns whether a process is stopped, by a signal or by a freeze of its cgroup or a parent cgroup. The
    kernel does not show a freeze as the state of the process."""
    if process_state(pid) == "T":
        return True
    for line in _lines(proc / str(pid) / "cgroup"):
        _, _, membership = line.partition(":")
        controllers, _, path = membership.partition(":")
        relative_path = path.lstrip("/")
        if controllers == "" and any(
            "frozen 1" in _lines(root / relative_path / "cgroup.events")
            for root in (groups, groups / "unified")
        ):
            return True
        if controllers == "freezer" and _lines(groups / "freezer" / relative_path / "freezer.state") == [
            "FROZEN"
        ]:
            return True
    return False


def _lines(file: Path) -> list[str]:
    """Returns [] if the file cannot be read, as in a container that does not show the cgroups of its host."""
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []


def remove_trusted_specs(attempt: Path, ranks: Iterable[int]) -> None:
    """Removes the specs beside a removed attempt. What cannot be removed remains."""
    for rank in ranks:
        with suppress(OSError):
            trusted_spec_file(attempt / str(rank)).unlink()


def remove_stale_spec(file: Path) -> None:
    """Removes a spec beside the attempts if its attempt is gone: an engine was killed during the removal."""
    attempt = file.name.removeprefix(TRUSTED_SPEC_PREFIX).rpartition("-")[0]
    if not file.with_name(attempt).exists():
        with suppress(OSError):
            file.unlink()


def replica_folders(attempt: Path) -> list[ReplicaFolder]:
    """Returns the replicas of an attempt on this machine, by rank."""
    try:
        ranks = sorted(
            int(entry.name)
            for entry in attempt.iterdir()
            if entry.name.isdecimal() and not entry.is_symlink()
        )
    except _MISSING_ERRORS:
        return []
    return [ReplicaFolder(attempt / str(rank)) for rank in ranks]
