"""The replica's view of its folder: the lock, the spec, the state and the stop order."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from hopyard.config.home import Home
from hopyard.domain.replica import (
    LOCK_FILE,
    SPEC_FILE,
    STATUS_FILE,
    STOP_FILE,
    STUDY_FILE,
    TOKEN_FILE,
    ReplicaSpec,
    ReplicaState,
    StopOrder,
    trusted_spec_file,
)
from hopyard.errors import IntegrityError, is_disk_full
from hopyard.private_files import (
    create_below,
    make_folder,
    open_below,
    overwrite,
    read_below,
    remove_below,
    reserve_file_space,
    write_atomically,
    write_below,
    write_to_reserved_space,
)
from hopyard.replica.process_tree import is_missing, is_same_file
from hopyard.sdk.safe_points import SAFE_POINT_EXIT_FILE


@dataclass(frozen=True, slots=True)
class SafePointExit:
    """The record of a script that stops at a safe point.

    step: of the checkpoint that holds all its work, or None. why: the reason why no checkpoint could be
    saved.
    """

    rank: int
    step: int | None
    why: str = ""


class PartialWrite(OSError):
    """A full disk, or a quota on it, took only the first `written` bytes of a record."""

    def __init__(self, written: int) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.written = written


# Created once: the spawner has them ready before it forks.
_decode_spec = msgspec.json.Decoder(ReplicaSpec).decode
_decode_state = msgspec.json.Decoder(ReplicaState).decode
_decode_stop = msgspec.json.Decoder(StopOrder).decode
_decode_safe_point_exit = msgspec.json.Decoder(SafePointExit).decode
_RESERVED_BYTES = 64 * 1024
_EXIT_TEXT_FILE = "exit_text"  # `sdk.startup.exit_texts` writes it
LOCK_TIMEOUT_S = 0.5  # the engine probes a lock by taking it for a moment, which does not count as held


def acquire_lock(folder: Path) -> int | None:
    """Returns the descriptor of the folder's lock, which must stay open; None if a live replica holds it."""
    descriptor = create_below(folder, LOCK_FILE, os.O_RDWR)
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                return None
            time.sleep(0.002)


@dataclass(frozen=True, slots=True)
class ReplicaDir:
    """The paths of one replica, and the small files through which it communicates with its engine."""

    root: Path
    shared_work: Path | None = None  # the working folder of all replicas of the gang on this node

    @property
    def streams(self) -> Path:
        return self.root / "streams"

    @property
    def work(self) -> Path:
        return self.shared_work or self.root / "work"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def restore(self) -> Path:
        return self.root / "restore"

    def exists(self) -> bool:
        """Returns False once the folder was removed with its home: no server requests its contents any more.

        The same holds if its script replaced it by a link: nothing is written to the target of the link.
        """
        return not self.root.is_symlink() and (self.root / SPEC_FILE).is_file()

    def create(self) -> None:
        for folder in (self.streams, self.checkpoints):
            make_folder(folder, private_parent=self.root)
        make_folder(self.work, private_parent=self.work.parent)

    def reserve_stop_space(self) -> None:
        """Reserves disk space for the stop order, so that a script can be requested to save on a full disk
        too."""
        with suppress(OSError):
            reserve_file_space(self.root, STOP_FILE)

    def read_exit_text(self) -> str:
        """Returns the text that a process of the run passed to `sys.exit` last; "" if there is none."""
        try:
            return read_below(self.root, _EXIT_TEXT_FILE).decode(errors="replace")
        except OSError:
            return ""

    def remove_exit_text(self) -> None:
        """Removes the text of a process that ended, before another one starts."""
        remove_below(self.root, _EXIT_TEXT_FILE)

    def write_spec(self, spec: ReplicaSpec) -> None:
        """Replaces the spec. Raises OSError."""
        text, trusted = msgspec.json.encode(spec), trusted_spec_file(self.root)
        if trusted.exists():
            write_atomically(trusted, text)
        write_below(self.root, SPEC_FILE, text)

    def read_spec(self) -> ReplicaSpec:
        """Reads the spec, not that of the script if the engine has its own. In a home that was moved or
        copied, paths refer to the home that contains the folder now. The control groups of a copy are those
        of the original.

        An earlier version has no spec but the one that the script can write to. So the place of the folder
        decides which attempt and rank it has, which folder its gang shares, and which control groups may be
        its own.

        Raises IntegrityError if the spec is missing or damaged, or that of another replica.
        """
        file = trusted_spec_file(self.root)
        try:
            try:
                spec = _decode_spec(file.read_bytes())
            except FileNotFoundError:
                file = self.root / SPEC_FILE
                spec = _decode_spec(read_below(self.root, SPEC_FILE))
        except (OSError, msgspec.MsgspecError) as error:
            raise IntegrityError(f"{file} cannot be read: {error}") from error
        recorded_home, current_home = Home(Path(spec.node.home)), Home(self.root.parents[2])
        if current_home.attempts != self.root.parents[1]:
            return spec
        spec = self._with_own_place(spec)
        original = recorded_home.attempts / self.root.parent.name / self.root.name
        if is_same_file(original, self.root):
            return spec
        cgroups = spec.node.cgroups if is_missing(original) else {}
        return replace(
            spec,
            node=replace(
                spec.node,
                home=str(current_home.root),
                server_file=str(current_home.server_file),
                cgroups=cgroups,
            ),
        )

    def _with_own_place(self, spec: ReplicaSpec) -> ReplicaSpec:
        """Returns the spec for the folder's place. Raises IntegrityError if it is that of another replica."""
        attempt, rank = self.root.parent.name, self.root.name
        launch, node = spec.launch, spec.node
        is_of_run = attempt.rpartition(".")[0] == launch.run
        if not is_of_run or launch.attempt != attempt or str(launch.rank) != rank:
            raise IntegrityError(f"{self.root / SPEC_FILE} is that of another replica")
        own = f"-{attempt}-{rank}"
        return replace(
            spec,
            node=replace(
                node,
                gang_folder=node.gang_folder and str(self.root.parent),
                cgroups={name: group for name, group in node.cgroups.items() if group.endswith(own)},
            ),
        )

    def write_study(self, study: Mapping[str, Any], secret: str) -> None:
        """Writes the study's spec for its replica: it is too long for a variable."""
        write_below(self.root, STUDY_FILE, json.dumps({"spec": study, "secret": secret}).encode())

    def read_state(self) -> ReplicaState | None:
        try:
            return _decode_state(read_below(self.root, STATUS_FILE))
        except (OSError, msgspec.MsgspecError):
            return None

    def write_state(self, state: ReplicaState) -> None:
        text = msgspec.json.encode(state)
        try:
            write_below(self.root, STATUS_FILE, text)
        except OSError as error:
            if not is_disk_full(error):
                raise
            overwrite(self.root / STATUS_FILE, text)

    def read_stop(self) -> StopOrder | None:
        try:
            return _decode_stop(read_below(self.root, STOP_FILE))
        except FileNotFoundError:
            return None
        except OSError:  # without free descriptors a file is visible but not readable
            return StopOrder(10.0) if (self.root / STOP_FILE).exists() else None
        except msgspec.MsgspecError:
            return StopOrder(10.0)  # the file is the order; only its fields are lost

    def request_stop(self, order: StopOrder) -> None:
        """Writes a stop order where the engine would, for the script to see. Merges it with an existing one:
        see `StopOrder.merged_with`. Raises OSError."""
        earlier = self.read_stop()
        merged = order if earlier is None else earlier.merged_with(order)
        if merged == earlier:
            return
        text = msgspec.json.encode(merged)
        try:
            write_below(self.root, STOP_FILE, text)
        except OSError as error:
            if not is_disk_full(error):
                raise
            write_to_reserved_space(self.root, STOP_FILE, text)

    def read_safe_point_exit(self) -> SafePointExit | None:
        """Returns the record that the script wrote when it stopped at a safe point; None without one."""
        try:
            return _decode_safe_point_exit(read_below(self.root, SAFE_POINT_EXIT_FILE))
        except (OSError, msgspec.MsgspecError):
            return None

    def read_token(self) -> str | None:
        """Returns a token that the server renewed, which is newer than the one in the spec; None
        without one."""
        try:
            return read_below(self.root, TOKEN_FILE).decode(errors="replace").strip() or None
        except OSError:
            return None

    def write_token(self, token: str) -> None:
        if self.exists():
            write_below(self.root, TOKEN_FILE, token.encode())

    def last_write_at(self) -> float:
        """Returns the Unix time of the newest write to a stream: some process was alive then."""
        with suppress(OSError):
            return max((entry.stat().st_mtime for entry in os.scandir(self.streams)), default=0.0)
        return 0.0

    def open_stream(self, name: str) -> int:
        """Returns a descriptor for reading a stream, which the script may have replaced by a link. Raises
        OSError as `private_files.open_below`."""
        return open_below(self.root, f"{self.streams.name}/{name}", os.O_RDONLY)

    def append(self, stream: str, record: bytes) -> int:
        """Appends whole records to a stream with one write; other processes may append to it as well. Returns
        the end of the records in the stream. Raises OSError.

        Rejects writes to a disk that would be nearly full. Half a record would corrupt the script's next
        record, and it could not be removed, because it may have been shipped already.
        """
        descriptor = open_below(self.root, f"streams/{stream}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            disk = os.fstatvfs(descriptor)
            if disk.f_bavail * disk.f_frsize < _RESERVED_BYTES + len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written = os.write(descriptor, record)
            if written < len(record):
                raise PartialWrite(written)
            return os.lseek(descriptor, 0, os.SEEK_CUR)
        finally:
            os.close(descriptor)

    def append_json(self, stream: str, **fields: Any) -> None:
        self.append(
            stream, json.dumps({"t": round(time.time(), 3), **fields}, separators=(",", ":")).encode() + b"\n"
        )

    def record_note(self, text: str) -> None:
        """Reports an action of the replica in the run's events. On a full disk it is not written: nothing
        depends on it."""
        with suppress(OSError):
            self.append_json("events", kind="note", text=text)
