"""Files copied so that a reader, or a crash, sees the old or the new one, never a part."""

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

SCRATCH_FOLDER = ".copying"  # the folder, in that which is copied to, of files that are not whole yet
_COPY_BYTES = 4 * 1024 * 1024
_PAGES_PER_STEP = 2048


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """An empty folder on the disk of `folder`, which is gone afterwards.
    One that an earlier copy left is cleared."""
    scratch = folder / SCRATCH_FOLDER
    shutil.rmtree(scratch, ignore_errors=True)
    make_folder(scratch)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def is_up_to_date(source: Path, copy: Path) -> bool:
    """Whether a copy needs no other, as far as sizes and times tell."""
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
    """Its bytes; 0 for a link, which is copied as a link.
    A file that is gone meanwhile is passed over (0): its run was removed."""
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
            while piece := reading.read(_COPY_BYTES):
                writing.write(piece)
                size += len(piece)
                progress.advance(len(piece))
            writing.flush()
            os.fchmod(writing.fileno(), stat.S_IMODE(before.st_mode) & FOLDER_MODE)
            os.fsync(writing.fileno())
    os.utime(part, ns=(before.st_atime_ns, before.st_mtime_ns))
    make_folder(copy.parent)
    part.replace(copy)
    return size


def remove_blocking_links(top: Path, files: Iterable[Path]) -> None:
    """What is copied to these places below `top` lands there, though an earlier copy has links where their
    folders are."""
    for folder in {above for path in files for above in path.parents}:
        if (top / folder).is_symlink() and folder != Path():
            (top / folder).unlink()


def copy_times(source: Path, copy: Path) -> None:
    """The copy counts as the same from now on, see `is_same`."""
    about = source.stat()
    os.utime(copy, ns=(about.st_atime_ns, about.st_mtime_ns))


def copy_database(source: Path, copy: Path, scratch: Path) -> None:
    """An SQLite file of one moment, while others write to it.
    Raises IntegrityError where it is damaged or stays locked, OSError."""
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
    except sqlite3.Error as bad:
        if getattr(bad, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(copy)) from bad
        raise IntegrityError(
            f"{source} cannot be copied: {bad}", hints=("run `hop doctor` to check the database",)
        ) from bad
    fsync_path(part)
    make_folder(copy.parent)
    part.replace(copy)


def fsync_path(path: Path) -> None:
    """What was written to a file, or the names in a folder, is on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folders(top: Path, files: Iterable[Path]) -> None:
    """The names of these files below `top`, relative to it, and of the folders that they are in, are on
    disk."""
    for folder in {above for path in files for above in path.parents}:
        with suppress(FileNotFoundError):  # of a file that was gone before it was copied
            fsync_path(top / folder)


def remove_empty_folders(top: Path) -> None:
    for path in sorted((one for one in top.rglob("*") if one.is_dir()), reverse=True):
        if not any(path.iterdir()):
            path.rmdir()
