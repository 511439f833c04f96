"""Append-only stream files that several threads and processes write at once.

Each append is one `write` on a descriptor opened with O_APPEND. The kernel makes it atomic, so appends need
no lock and records are never interleaved.
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
    """One stream file. A failing disk loses the record and causes one warning on stderr, never an exception
    in the user's loop.
    """

    __slots__ = ("_complete_bytes", "descriptor", "path")

    def __init__(self, path: str, *, complete_bytes: Callable[[bytes], int] = lambda _: 0) -> None:
        """Opens the file. If it cannot be created, a warning is printed once and appends fail.

        complete_bytes: returns the size of the whole records at the beginning of a partial write; 0 if each
        append is one record.
        """
        self.path = path
        self._complete_bytes = complete_bytes
        try:
            streams = os.path.dirname(path)
            make_folder(streams, private_parent=os.path.dirname(streams))
            self.descriptor = open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        except OSError as error:
            self.descriptor = -1
            self.full_disk_error(error)

    def append(self, data: bytes) -> bool:
        """Writes all of `data`. Returns False, after one warning, if that fails."""
        try:
            written = os.write(self.descriptor, data)
        except OSError as error:
            self.full_disk_error(error)
            return False
        return written == len(data) or self.truncate_partial_record(data[:written])

    def truncate_partial_record(self, written: bytes) -> bool:
        """Removes the partial record after a write that stored only `written` because the disk was full.

        Without it the next record of another process would follow a partial one. Whole records stay, for they
        may have been shipped. Always returns False: data is lost.
        """
        try:
            end = os.lseek(self.descriptor, 0, os.SEEK_CUR)
            if os.fstat(self.descriptor).st_size == end:
                os.ftruncate(self.descriptor, end - len(written) + self._complete_bytes(written))
        except OSError as error:
            self.full_disk_error(error)
        self.full_disk_error(OSError(28, "No space left on device"))
        return False

    def full_disk_error(self, error: OSError) -> None:
        warn_once(
            f"cannot write {self.path} ({error.strerror}); the script continues, but these records are lost",
            kind=self.path,
        )

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class EventStream:
    """The `events` stream: what a script declares and does, one JSON object per line."""

    __slots__ = ("_file",)

    def __init__(self, path: str) -> None:
        self._file = StreamFile(path)

    def append(self, kind: str, **fields: Any) -> bool:
        """Appends one event with a timestamp."""
        line = json.dumps(
            {"t": round(time.time(), 6), "kind": kind, **fields}, separators=(",", ":"), default=str
        )
        return self._file.append(line.encode() + b"\n")

    def close(self) -> None:
        self._file.close()


def stream_sizes(folder: str) -> dict[str, int]:
    """Returns the current size in bytes of each stream in `folder`."""
    sizes: dict[str, int] = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    sizes[entry.name] = entry.stat(follow_symlinks=False).st_size
    except OSError:
        pass
    return sizes
