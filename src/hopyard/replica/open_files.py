"""Which files some process has open for writing, from Linux's /proc."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress

FileId = tuple[int, int]  # device and inode


def find_open_for_writing(files: Collection[FileId]) -> set[FileId]:
    """Returns those of the files that a process of this user has open for writing.

    Files are compared by device and inode: a process with private mounts has other paths for them.
    """
    found: set[FileId] = set()
    if not files:
        return found
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        with suppress(OSError):  # it has ended, or is of another user
            for number in os.listdir(f"/proc/{name}/fd"):
                with suppress(OSError):
                    stat = os.stat(f"/proc/{name}/fd/{number}")
                    key = (stat.st_dev, stat.st_ino)
                    if key in files and key not in found and _is_writable(name, number):
                        found.add(key)
    return found


def _is_writable(pid: str, number: str) -> bool:
    with open(f"/proc/{pid}/fdinfo/{number}", "rb", buffering=0) as file:
        for line in file.read(4096).splitlines():
            if line.startswith(b"flags:"):
                return int(line.split()[1], 8) & os.O_ACCMODE != os.O_RDONLY
    return False
