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
from hopyard.sdk.speak import say


class StreamFile:
    """One stream. A failing disk is told once on stderr and costs the record, never an exception in the
    user's loop."""

    __slots__ = ("_whole", "descriptor", "path")

    def __init__(self, path: str, *, whole: Callable[[bytes], int] = lambda _: 0) -> None:
        """Opens lazily failing: where the file cannot be made, appends are refused (and that is told once).

        whole: how many bytes at the beginning of what was cut off are whole records; none where each append
        is one record.
        """
        self.path = path
        self._whole = whole
        try:
            streams = os.path.dirname(path)
            make_folder(streams, below=os.path.dirname(streams))
            self.descriptor = open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        except OSError as broken:
            self.descriptor = -1
            self.trouble(broken)

    def append(self, data: bytes) -> bool:
        """Write `data` whole. False (told once) when it could not be."""
        try:
            written = os.write(self.descriptor, data)
        except OSError as broken:
            self.trouble(broken)
            return False
        return written == len(data) or self.mend(data[:written])

    def mend(self, written: bytes) -> bool:
        """After a write that took only `written` (the disk ran full): take the half record at its end back,
        so that what another process appends later does not stand behind it. The whole ones stay, for they may
        have been shipped. Always False: something is lost."""
        try:
            end = os.lseek(self.descriptor, 0, os.SEEK_CUR)
            if os.fstat(self.descriptor).st_size == end:
                os.ftruncate(self.descriptor, end - len(written) + self._whole(written))
        except OSError as broken:
            self.trouble(broken)
        self.trouble(OSError(28, "No space left on device"))
        return False

    def trouble(self, broken: OSError) -> None:
        say(
            f"cannot write {self.path} ({broken.strerror}); the script goes on, what it logs meanwhile "
            "is not kept",
            once=self.path,
        )

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Events:
    """The `events` stream: what a script declares and does, one JSON object a line."""

    __slots__ = ("_file",)

    def __init__(self, path: str) -> None:
        self._file = StreamFile(path)

    def tell(self, kind: str, **fields: Any) -> bool:
        """Append one event, stamped with the time."""
        line = json.dumps(
            {"t": round(time.time(), 6), "kind": kind, **fields}, separators=(",", ":"), default=str
        )
        return self._file.append(line.encode() + b"\n")

    def close(self) -> None:
        self._file.close()


def sizes(folder: str) -> dict[str, int]:
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
