"""Append-only stream files that several threads and processes write at once.

Each append is one `write` on a descriptor opened with O_APPEND, which the kernel does as a whole: no lock,
nothing torn.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from hopyard.private_files import make_folder, open_file
from hopyard.sdk.warn_once import warn_once


class StreamFile:
    """One stream. A failing disk is told once on stderr and costs the record, never an exception in the
    user's loop."""

    __slots__ = ("_complete_bytes", "descriptor", "path")

    def __init__(self, path: str, *, complete_bytes: Callable[[bytes], int] = lambda _: 0) -> None:
        """Opens lazily failing: where the file cannot be made, appends are refused (and that is told once).

        complete_bytes: how many bytes at the beginning of what was cut off are whole records; none where each
        append is one record.
        """
        self.path = path
        self._complete_bytes = complete_bytes
        try:
            streams = os.path.dirname(path)
            make_folder(streams, private_parent=os.path.dirname(streams))
            self.descriptor = open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        except OSError as broken:
            self.descriptor = -1
            self.full_disk_error(broken)

    def append(self, data: bytes) -> bool:
        """Write `data` whole. False (told once) when it could not be."""
        try:
            written = os.write(self.descriptor, data)
        except OSError as broken:
            self.full_disk_error(broken)
            return False
        return written == len(data) or self.truncate_partial_record(data[:written])

    def truncate_partial_record(self, written: bytes) -> bool:
        """After a write that took only `written` (the disk ran full): take the half record at its end back,
        so that what another process appends later does not stand behind it. The whole ones stay, for they may
        have been shipped. Always False: something is lost."""
        try:
            end = os.lseek(self.descriptor, 0, os.SEEK_CUR)
            if os.fstat(self.descriptor).st_size == end:
                os.ftruncate(self.descriptor, end - len(written) + self._complete_bytes(written))
        except OSError as broken:
            self.full_disk_error(broken)
        self.full_disk_error(OSError(28, "No space left on device"))
        return False

    def full_disk_error(self, error: OSError) -> None:
        warn_once(
            f"cannot write {self.path} ({error.strerror}); the script goes on, what it logs meanwhile "
            "is not kept",
            kind=self.path,
        )

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class EventStream:
    """The `events` stream: what a script declares and does, one JSON object a line."""

    __slots__ = ("_file",)

    def __init__(self, path: str) -> None:
        self._file = StreamFile(path)

    def append(self, kind: str, **fields: Any) -> bool:
        """Append one event, stamped with the time."""
        line = json.dumps(
            {"t": round(time.time(), 6), "kind": kind, **fields}, separators=(",", ":"), default=str
        )
        return self._file.append(line.encode() + b"\n")

    def close(self) -> None:
        self._file.close()


def stream_sizes(folder: str) -> dict[str, int]:
    """The length in bytes of each stream in `folder` now."""
    found: dict[str, int] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    found[entry.name] = entry.stat(follow_symlinks=False).st_size
    except OSError:
        pass
    return found
