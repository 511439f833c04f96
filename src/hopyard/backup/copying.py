"""Files copied so that a reader, or a crash, sees the old or the new one, never a part."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from hopyard.datasets.progress import Progress
from hopyard.private_files import make_folder, open_file

PART = ".part"
_PIECE = 4 * 1024 * 1024
_PAGES = 2048


def is_same(source: Path, copy: Path) -> bool:
    """Whether a copy needs no other: blobs never change, and what grows has another size and time."""
    try:
        old, new = copy.stat(), source.stat()
    except FileNotFoundError:
        return False
    return old.st_size == new.st_size and old.st_mtime_ns == new.st_mtime_ns


def copy_file(source: Path, copy: Path, progress: Progress) -> int:
    """Its bytes. A file that is gone meanwhile is passed over (0): its run was removed."""
    part = copy.with_name(copy.name + PART)
    size = 0
    try:
        with source.open("rb") as reading:
            make_folder(copy.parent)
            before = os.fstat(reading.fileno())
            with open(open_file(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW), "wb") as writing:
                while piece := reading.read(_PIECE):
                    writing.write(piece)
                    size += len(piece)
                    progress.advance(len(piece))
                writing.flush()
                os.fsync(writing.fileno())
    except FileNotFoundError:
        part.unlink(missing_ok=True)
        return 0
    os.utime(part, ns=(before.st_atime_ns, before.st_mtime_ns))
    part.replace(copy)
    return size


def copy_database(source: Path, copy: Path) -> None:
    """An SQLite file of one moment, while others write to it."""
    part = copy.with_name(copy.name + PART)
    part.unlink(missing_ok=True)
    os.close(open_file(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    with closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=60)) as reading, closing(sqlite3.connect(part)) as writing:
        reading.backup(writing, pages=_PAGES)
        writing.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
    flush(part)
    part.replace(copy)


def write_file(path: Path, data: bytes) -> None:
    part = path.with_name(path.name + PART)
    with open(open_file(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW), "wb") as writing:
        writing.write(data)
        writing.flush()
        os.fsync(writing.fileno())
    part.replace(path)
    flush(path.parent)


def flush(path: Path) -> None:
    """What was written to a file, or the names in a folder, is on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_empty_folders(top: Path) -> None:
    for path in sorted((one for one in top.rglob("*") if one.is_dir()), reverse=True):
        if not any(path.iterdir()):
            path.rmdir()


def free_bytes(folder: Path) -> int:
    place = next(one for one in (folder, *folder.parents) if one.exists())
    return shutil.disk_usage(place).free
