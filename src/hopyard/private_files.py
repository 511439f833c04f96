"""Folders and files that only their owner can read, whatever the umask of the process is.

Everything that Hopyard writes below a home folder is made here (`tests/house/test_private_files.py` checks
it). Standard library only: the SDK uses it inside users' processes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

FOLDER_MODE, FILE_MODE, GROUP_AND_OTHERS_BITS = 0o700, 0o600, 0o077
RESERVED_FILE_BYTES = 4096
P = TypeVar("P", str, Path)


def make_folder(path: P, *, private_parent: str | Path = "") -> P:
    """Makes a folder and its missing parents, each with mode 0700; one that exists is left as it is.
    Raises OSError.

    private_parent: a folder above it that has to be there: FileNotFoundError where it was removed, which it
    then stays.
    """
    missing = []
    above, top = os.fspath(path), os.fspath(private_parent)
    while above and not os.path.isdir(above):
        if above == top:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), top)
        missing.append(above)
        above = os.path.dirname(above)
    for folder in reversed(missing):
        try:
            os.mkdir(folder, FOLDER_MODE)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise
        else:
            os.chmod(folder, FOLDER_MODE)  # a umask such as 0277 took bits of the owner
    return path


def open_file(path: str | Path, flags: int, *, folder: int | None = None) -> int:
    """A descriptor as `os.open` gives one; a file that is made has mode 0600.
    folder: a descriptor of that which the path begins in. Also an `opener` of `open`. Raises OSError."""
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE, dir_fd=folder)


def open_no_follow(path: str | Path, flags: int, *, folder: int | None = None) -> int:
    """A descriptor of a file or folder that other programs may replace by anything. A link, pipe or device
    there counts as nothing: the first would lead elsewhere, the others would hold us up. folder: as of
    `open_file`. Raises OSError."""
    missing = FileNotFoundError(
        errno.ENOENT, "only a link, a pipe or a device is in its place", os.fspath(path)
    )
    try:
        descriptor = open_file(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, folder=folder)
    except OSError as failed:
        in_its_place = failed.errno in (errno.ELOOP, errno.ENXIO) or (
            failed.errno == errno.ENOTDIR and os.path.islink(path)
        )
        raise missing if in_its_place else failed from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return descriptor
    os.close(descriptor)
    raise missing


def open_below(folder: Path, path: str, flags: int) -> int:
    """As `open_plain`, below `folder`, in which no folder on the way may be a link either.
    `folder` itself stands in a folder of ours."""
    wanted = os.path.normpath(f"{os.path.realpath(folder.parent)}/{folder.name}/{path}")
    descriptor = open_no_follow(wanted, flags)
    if os.readlink(f"/proc/self/fd/{descriptor}") == wanted:
        return descriptor
    os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "only a link leads to it", wanted)


def read_below(folder: Path, path: str, *, max_bytes: int = 16 * 2**20) -> bytes:
    """What a small file below `folder` holds, at most so many bytes. Raises OSError as `open_inside` does."""
    with os.fdopen(open_below(folder, path, os.O_RDONLY), "rb") as file:
        return file.read(max_bytes)


def write_below(folder: Path, name: str, data: bytes) -> None:
    """Replaces the file `name` of a folder that other programs write to, as `write_atomically` does: in that
    folder itself, wherever it is moved meanwhile, and through no link in its place. Raises OSError;
    FileNotFoundError where the folder is not there."""
    inside = open_below(folder.parent, folder.name, os.O_RDONLY | os.O_DIRECTORY)
    scratch = f".{name}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        with os.fdopen(open_file(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder=inside), "wb") as file:
            file.write(data)
        os.replace(scratch, name, src_dir_fd=inside, dst_dir_fd=inside)
    except BaseException:
        with suppress(OSError):
            os.unlink(scratch, dir_fd=inside)
        raise
    finally:
        os.close(inside)


def write_atomically(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Replaces `path` by `data` so that a reader sees the old or the new content, never a part.
    Makes the folder where it is missing."""
    make_folder(path.parent)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = open_file(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def overwrite(path: Path, text: bytes) -> None:
    """Writes text (padded with spaces) over a small file that is there, for a disk without room for a second
    one. A reader may see a part of it. Raises OSError."""
    descriptor = open_no_follow(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, text.ljust(os.fstat(descriptor).st_size), 0)
    finally:
        os.close(descriptor)


def reserve_file_space(folder: Path, name: str) -> None:
    """Sets disk space aside for the small file `name`, which `write_from_spare` uses on a full disk.
    Raises OSError."""
    try:
        descriptor = open_file(folder / _reserved_space_name(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return
    try:
        if os.write(descriptor, b" " * RESERVED_FILE_BYTES) < RESERVED_FILE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


def write_to_reserved_space(folder: Path, name: str, text: bytes) -> None:
    """Replaces the file `name` by text (padded with spaces) that takes the space that `make_spare` set aside,
    once. A reader sees the old or the new content. Raises OSError; FileNotFoundError where nothing is set
    aside."""
    descriptor = open_below(folder, _reserved_space_name(name), os.O_WRONLY)
    try:
        os.pwrite(descriptor, text.ljust(RESERVED_FILE_BYTES), 0)
    finally:
        os.close(descriptor)
    (folder / _reserved_space_name(name)).replace(folder / name)


def _reserved_space_name(name: str) -> str:
    return f".{name}.spare"


def remove_other_access(path: str, mode: int) -> bool:
    """Takes all rights of group and others from a file or folder with this mode.
    Returns whether there were any. Raises OSError."""
    if not mode & GROUP_AND_OTHERS_BITS or stat.S_ISLNK(mode):
        return False
    os.chmod(path, stat.S_IMODE(mode) & FOLDER_MODE)
    return True


def remove_other_access_in_tree(folder: str, *, excluded: frozenset[str] = frozenset()) -> Iterator[str]:
    """Takes all rights of group and others from everything below `folder`, one step for each entry, whose
    path is yielded. Links are not followed. excluded: names of folders that are left as they are. What
    vanishes meanwhile, or may not be changed, is passed over."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        try:
            about = entry.stat(follow_symlinks=False)
            remove_other_access(entry.path, about.st_mode)
        except OSError:
            continue
        yield entry.path
        if stat.S_ISDIR(about.st_mode) and entry.name not in excluded:
            yield from remove_other_access_in_tree(entry.path, excluded=excluded)
