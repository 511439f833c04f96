"""The replica's view of its folder: the lock, what to do, what it says of itself."""

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
)
from hopyard.errors import IntegrityError, is_disk_full
from hopyard.private_files import (
    make_folder,
    open_below,
    open_file,
    overwrite,
    read_below,
    reserve_file_space,
    write_below,
    write_to_reserved_space,
)
from hopyard.replica.process_tree import is_missing, is_same_file
from hopyard.sdk.safe_points import SAFE_POINT_EXIT_FILE


@dataclass(frozen=True, slots=True)
class SafePointExit:
    """What a script says that leaves at a safe point. step: of the checkpoint that holds all it did, None
    without one. why: no checkpoint could be saved."""

    rank: int
    step: int | None
    why: str = ""


# Made once: the spawner has them ready before it forks.
_decode_spec = msgspec.json.Decoder(ReplicaSpec).decode
_decode_state = msgspec.json.Decoder(ReplicaState).decode
_decode_stop = msgspec.json.Decoder(StopOrder).decode
_decode_safe_point_exit = msgspec.json.Decoder(SafePointExit).decode
_RESERVED_BYTES = 64 * 1024
LOCK_TIMEOUT_S = 0.5  # the engine looks at a lock by taking it for a moment; that is not "held"


def acquire_lock(folder: Path) -> int | None:
    """The descriptor of the folder's lock, to be kept open for life; None when a living replica holds it."""
    descriptor = open_file(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT)
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
    """Paths of one replica, and the small files in which it speaks with its engine."""

    root: Path

    @property
    def streams(self) -> Path:
        return self.root / "streams"

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def restore(self) -> Path:
        return self.root / "restore"

    def exists(self) -> bool:
        """False once somebody removed it, with its home: then no server asks for what it held any more.
        So it is where its script put a link in its place: nothing is written to where that leads."""
        return not self.root.is_symlink() and (self.root / SPEC_FILE).is_file()

    def create(self) -> None:
        for folder in (self.streams, self.work, self.checkpoints):
            make_folder(folder, private_parent=self.root)

    def reserve_stop_space(self) -> None:
        """Set space aside for the order to stop: a script must be asked to save on a full disk, too."""
        with suppress(OSError):
            reserve_file_space(self.root, STOP_FILE)

    def read_spec(self) -> ReplicaSpec:
        """In a home that was moved, or in a copy of one, the home is the one that the folder lies in now, and
        the control groups of a copy are the original's. Raises IntegrityError when there is none or it is
        damaged."""
        try:
            spec = _decode_spec(read_below(self.root, SPEC_FILE))
        except (OSError, msgspec.MsgspecError) as bad:
            raise IntegrityError(f"{self.root / SPEC_FILE} cannot be read: {bad}") from bad
        said, own = Home(Path(spec.node.home)), Home(self.root.parents[2])
        original = said.attempts / self.root.parent.name / self.root.name
        if own.attempts != self.root.parents[1] or is_same_file(original, self.root):
            return spec
        groups = spec.node.cgroups if is_missing(original) else {}
        return replace(
            spec,
            node=replace(spec.node, home=str(own.root), server_file=str(own.server_file), cgroups=groups),
        )

    def write_study(self, study: Mapping[str, Any], secret: str) -> None:
        """What a replica of a study reads of it: too long for a variable."""
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
        except OSError as failed:
            if not is_disk_full(failed):
                raise
            overwrite(self.root / STATUS_FILE, text)

    def read_stop(self) -> StopOrder | None:
        try:
            return _decode_stop(read_below(self.root, STOP_FILE))
        except FileNotFoundError:
            return None
        except OSError:  # without descriptors a file can be seen, and not read
            return StopOrder(10.0) if (self.root / STOP_FILE).exists() else None
        except msgspec.MsgspecError:
            return StopOrder(10.0)  # the file is the order; only its details are lost

    def request_stop(self, order: StopOrder) -> None:
        """Leave an order where the engine would, for the script to see. With one that is there already: see
        `StopOrder.merged_with`. Raises OSError."""
        earlier = self.read_stop()
        kept = order if earlier is None else earlier.merged_with(order)
        if kept == earlier:
            return
        text = msgspec.json.encode(kept)
        try:
            write_below(self.root, STOP_FILE, text)
        except OSError as failed:
            if not is_disk_full(failed):
                raise
            write_to_reserved_space(self.root, STOP_FILE, text)

    def read_safe_point_exit(self) -> SafePointExit | None:
        """What the script said as it left to make room; None when it did not."""
        try:
            return _decode_safe_point_exit(read_below(self.root, SAFE_POINT_EXIT_FILE))
        except (OSError, msgspec.MsgspecError):
            return None

    def read_token(self) -> str | None:
        """A token that the server renewed, which outlives the one in the spec."""
        try:
            return read_below(self.root, TOKEN_FILE).decode(errors="replace").strip() or None
        except OSError:
            return None

    def write_token(self, token: str) -> None:
        if self.exists():
            write_below(self.root, TOKEN_FILE, token.encode())

    def append(self, stream: str, record: bytes) -> None:
        """Add whole records to a stream that others may append to as well: one write, at the end.
        Raises OSError.

        Not on a disk that is nearly full: half a record would spoil the script's next one, and it could not
        be taken back, because it may have been shipped already.
        """
        descriptor = open_below(self.root, f"streams/{stream}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            disk = os.fstatvfs(descriptor)
            if disk.f_bavail * disk.f_frsize < _RESERVED_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.write(descriptor, record)
        finally:
            os.close(descriptor)

    def append_json(self, stream: str, **fields: Any) -> None:
        self.append(
            stream, json.dumps({"t": round(time.time(), 3), **fields}, separators=(",", ":")).encode() + b"\n"
        )

    def record_note(self, text: str) -> None:
        """Tell whoever follows the run something that the replica did.
        On a full disk it goes untold: nothing depends on it."""
        with suppress(OSError):
            self.append_json("events", kind="note", text=text)
