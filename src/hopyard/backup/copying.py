"""Copies files atomically: a reader, or a crash, sees the old file or the new one, never a part."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from hopyard.datasets.progress import ProgressListener
from hopyard.errors import IntegrityError
from hopyard.private_files import FOLDER_MODE, make_folder, open_file

SCRATCH_FOLDER = ".copying"  # in the target folder: holds files that are not complete yet
_COPY_BYTES = 4 * 1024 * 1024
_PAGES_PER_STEP = 2048


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """Yields an empty folder on the disk of `folder` and removes it afterwards. Removes the scratch folder of
    an interrupted copy first."""
    scratch = folder / SCRATCH_FOLDER
    shutil.rmtree(scratch, ignore_errors=True)
    make_folder(scratch)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def is_up_to_date(source: Path, copy: Path) -> bool:
    """Returns whether a copy is unchanged, judged by size and modification time."""
    try:
        old, new = copy.lstat(), source.lstat()
        if stat.S_ISLNK(new.st_mode) or stat.S_ISLNK(old.st_mode):
            return (
                stat.S_IFMT(old.st_mode) == stat.S_IFMT(new.st_mode) and source.readlink() == copy.readlink()
            )
    except FileNotFoundError:
        return False
    return old.st_size == new.st_size and old.st_mtime_ns == new.st_mtime_ns


def copy_file(source: Path, copy: Path, scratch: Path, progress: ProgressListener) -> int:
    """Copies one file and returns its size in bytes; copies a link as a link and returns 0. Skips a file that
    was removed in the meantime, because its run was removed, and returns 0."""
    part = scratch / "file"
    size = 0
    try:
        if source.is_symlink():
            part.unlink(missing_ok=True)
            part.symlink_to(source.readlink())
            make_folder(copy.parent)
            part.replace(copy)
            return 0
        reading = source.open("rb")
    except FileNotFoundError:
        return 0
    with reading:
        before = os.fstat(reading.fileno())
        with open(open_file(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW), "wb") as writing:
            while block := reading.read(_COPY_BYTES):
                writing.write(block)
                size += len(block)
                progress.advance(len(block))
            writing.flush()
            os.fchmod(writing.fileno(), stat.S_IMODE(before.st_mode) & FOLDER_MODE)
            os.fsync(writing.fileno())
    os.utime(part, ns=(before.st_atime_ns, before.st_mtime_ns))
    make_folder(copy.parent)
    part.replace(copy)
    return size


def remove_blocking_links(top: Path, files: Iterable[Path]) -> None:
    """Removes links that an earlier copy made in place of the folders of `files` below `top`, so that copies
    are written below `top`."""
    for folder in {parent for path in files for parent in path.parents}:
        if (top / folder).is_symlink() and folder != Path():
            (top / folder).unlink()


def copy_times(source: Path, copy: Path) -> None:
    """Copies the times of `source`, so that `is_up_to_date` accepts the copy."""
    source_stat = source.stat()
    os.utime(copy, ns=(source_stat.st_atime_ns, source_stat.st_mtime_ns))


def copy_database(source: Path, copy: Path, scratch: Path) -> None:
    """Copies an SQLite database as of one moment while other connections write to it.

    Raises IntegrityError if it is damaged or stays locked, and OSError.
    """
    part = scratch / "database"
    part.unlink(missing_ok=True)
    os.close(open_file(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    try:
        with (
            closing(
                sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True, timeout=60)
            ) as reading,
            closing(sqlite3.connect(part)) as writing,
        ):
            reading.backup(writing, pages=_PAGES_PER_STEP)
            writing.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(copy)) from error
        raise IntegrityError(
            f"{source} cannot be copied: {error}", hints=("run `hop doctor` to check the database",)
        ) from error
    fsync_path(part)
    make_folder(copy.parent)
    part.replace(copy)


def fsync_path(path: Path) -> None:
    """Flushes the content of a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folders(top: Path, files: Iterable[Path]) -> None:
    """Flushes the entries of the folders that hold `files` to disk. `files` are relative to `top`."""
    for folder in {parent for path in files for parent in path.parents}:
        with suppress(FileNotFoundError):  # the file was removed before it was copied
            fsync_path(top / folder)


def remove_empty_folders(top: Path) -> None:
    for path in sorted((entry for entry in top.rglob("*") if entry.is_dir()), reverse=True):
        if not any(path.iterdir()):
            path.rmdir()
