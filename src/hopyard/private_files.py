"""Folders and files that only their owner can read, independent of the umask of the process.

Everything that Hopyard writes below a home folder is created here (`tests/house/test_private_files.py` checks
it). Standard library only: the SDK uses this module inside users' processes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

FOLDER_MODE, FILE_MODE, GROUP_AND_OTHERS_BITS = 0o700, 0o600, 0o077
RESERVED_FILE_BYTES = 4096
P = TypeVar("P", str, Path)


def make_folder(path: P, *, private_parent: str | Path = "") -> P:
    """Creates a folder and its missing parents with mode 0700. Existing folders are unchanged. Raises
    OSError.

    private_parent: an ancestor that must exist. If it was removed, FileNotFoundError is raised and it is not
    created again.
    """
    missing = []
    ancestor, required = os.fspath(path), os.fspath(private_parent)
    while ancestor and not os.path.isdir(ancestor):
        if ancestor == required:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), required)
        missing.append(ancestor)
        ancestor = os.path.dirname(ancestor)
    for folder in reversed(missing):
        try:
            os.mkdir(folder, FOLDER_MODE)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise
        else:
            os.chmod(folder, FOLDER_MODE)  # a umask such as 0277 removes bits of the owner
    return path


def open_file(path: str | Path, flags: int, *, folder: int | None = None) -> int:
    """Returns a descriptor as `os.open` does. A new file has mode 0600.

    folder: a descriptor of the folder that a relative path starts from. Also usable as the `opener` of
    `open`. Raises OSError.
    """
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE, dir_fd=folder)


def open_no_follow(path: str | Path, flags: int, *, folder: int | None = None) -> int:
    """Returns a descriptor of a file or folder that other programs may replace. A link, pipe or device counts
    as missing: a link would lead to another file, and a pipe or device would block.

    folder: as in `open_file`. Raises OSError.
    """
    missing = FileNotFoundError(
        errno.ENOENT, "a link, a pipe or a device, not a file or folder", os.fspath(path)
    )
    try:
        descriptor = open_file(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, folder=folder)
    except OSError as error:
        is_other_kind = error.errno in (errno.ELOOP, errno.ENXIO) or (
            error.errno == errno.ENOTDIR and _is_link(path, folder)
        )
        raise missing if is_other_kind else error from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return descriptor
    os.close(descriptor)
    raise missing


def open_below(folder: Path, path: str, flags: int) -> int:
    """As `open_no_follow`, for a path below `folder`. No folder on the way may be a link, and no file is made
    or emptied through one. The parent of `folder` must be private."""
    if flags & (os.O_CREAT | os.O_TRUNC):
        with _parent_below(folder, path) as (parent, name):
            return open_no_follow(name, flags, folder=parent)
    # with one descriptor: a server that has hardly any left still looks at its replicas
    real_path = os.path.normpath(f"{os.path.realpath(folder.parent)}/{folder.name}/{path}")
    descriptor = open_no_follow(real_path, flags)
    if os.readlink(f"/proc/self/fd/{descriptor}") == real_path:
        return descriptor
    os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "reached only through a link", real_path)


def create_below(folder: Path, path: str, flags: int) -> int:
    """As `open_below`, and creates a missing file. A link, pipe or device in its place is removed, because it
    cannot be the file. Raises OSError."""
    with _parent_below(folder, path) as (parent, name):
        try:
            return open_no_follow(name, flags | os.O_CREAT, folder=parent)
        except FileNotFoundError:
            os.unlink(name, dir_fd=parent)
            return open_no_follow(name, flags | os.O_CREAT | os.O_EXCL, folder=parent)


def make_folder_below(folder: Path, name: str) -> int:
    """Returns a descriptor of the folder `name` of a folder that other programs write to, and creates it if
    it is missing. A link in its place is removed. Raises OSError."""
    with _parent_below(folder, name) as (parent, own):
        if _is_link(own, parent):
            os.unlink(own, dir_fd=parent)
        with suppress(FileExistsError):
            os.mkdir(own, FOLDER_MODE, dir_fd=parent)
        return open_no_follow(own, os.O_RDONLY | os.O_DIRECTORY, folder=parent)


def remove_below(folder: Path, path: str) -> None:
    """Removes a file or a folder below `folder`, as `remove_tree` does, if no link leads to it.

    A folder gets another name first. So a reader finds all of it or nothing, also after a crash.
    """
    with suppress(OSError), _parent_below(folder, path) as (parent, name):
        try:
            os.unlink(name, dir_fd=parent)
        except IsADirectoryError:
            hidden = f".gone-{os.urandom(8).hex()}"
            os.rename(name, hidden, src_dir_fd=parent, dst_dir_fd=parent)
            _remove_tree(hidden, parent)


def move_below(folder: Path, path: str, target: Path) -> None:
    """Moves a file or a folder below `folder`, if no link leads to it. target: where no other program writes.
    Raises OSError."""
    with _parent_below(folder, path) as (parent, name):
        os.rename(name, target, src_dir_fd=parent)


def _is_link(path: str | Path, folder: int | None) -> bool:
    try:
        return stat.S_ISLNK(os.stat(path, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False


@contextmanager
def _parent_below(folder: Path, path: str) -> Iterator[tuple[int, str]]:
    """Yields a descriptor of the folder that contains a path below `folder`, and the path's name in it. It
    stays that folder, even if it is replaced meanwhile."""
    root = os.path.realpath(folder.parent)
    *parents, name = os.path.normpath(f"{folder.name}/{path}").split("/")
    descriptor = -1
    try:
        descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for parent in parents:
            inner = _open_parent(parent, descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor, name
    except OSError as error:
        if error.filename is not None:
            error.filename = os.path.join(root, *parents, name)
        raise
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _open_parent(name: str, folder: int) -> int:
    try:
        return os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except NotADirectoryError:
        if not _is_link(name, folder):
            raise
        raise FileNotFoundError(errno.ENOENT, "reached only through a link", name) from None


def read_below(folder: Path, path: str, *, max_bytes: int = 16 * 2**20) -> bytes:
    """Returns the content of a small file below `folder`, at most `max_bytes`. Raises OSError as
    `open_below`."""
    with os.fdopen(open_below(folder, path, os.O_RDONLY), "rb") as file:
        return file.read(max_bytes)


def write_below(folder: Path, name: str, data: bytes) -> None:
    """Replaces the file `name` of a folder that other programs write to, as `write_atomically` does.

    The file is written to that very folder, even if it is moved meanwhile, and never through a link. Raises
    OSError; FileNotFoundError if the folder is missing.
    """
    folder_descriptor = open_below(folder.parent, folder.name, os.O_RDONLY | os.O_DIRECTORY)
    temporary = f".{name}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        with os.fdopen(
            open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder=folder_descriptor), "wb"
        ) as file:
            file.write(data)
        os.replace(temporary, name, src_dir_fd=folder_descriptor, dst_dir_fd=folder_descriptor)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=folder_descriptor)
        raise
    finally:
        os.close(folder_descriptor)


def write_atomically(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Replaces the content of `path` atomically: a reader sees the old or the new content, never a part.
    Creates a missing folder."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    descriptor = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def overwrite(path: Path, text: bytes) -> None:
    """Overwrites a small existing file with text, padded with spaces, for a disk without space for a second
    file. A reader may see a part of it. Raises OSError."""
    descriptor = open_below(path.parent, path.name, os.O_WRONLY)
    try:
        os.pwrite(descriptor, text.ljust(os.fstat(descriptor).st_size), 0)
    finally:
        os.close(descriptor)


def reserve_file_space(folder: Path, name: str) -> None:
    """Reserves disk space for the small file `name`, which `write_to_reserved_space` uses on a full disk.
    Raises OSError."""
    try:
        descriptor = open_below(folder, _reserved_space_name(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return
    try:
        if os.write(descriptor, b" " * RESERVED_FILE_BYTES) < RESERVED_FILE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)


def write_to_reserved_space(folder: Path, name: str, text: bytes) -> None:
    """Replaces the file `name` by text, padded with spaces, in the space of `reserve_file_space`. This works
    once. A reader sees the old or the new content. Raises OSError; FileNotFoundError if no space is reserved.
    """
    descriptor = open_below(folder, _reserved_space_name(name), os.O_WRONLY)
    try:
        os.pwrite(descriptor, text.ljust(RESERVED_FILE_BYTES), 0)
    finally:
        os.close(descriptor)
    with _parent_below(folder, name) as (parent, own):
        os.replace(_reserved_space_name(name), own, src_dir_fd=parent, dst_dir_fd=parent)


def _reserved_space_name(name: str) -> str:
    return f".{name}.spare"


def remove_other_access(path: str, mode: int) -> bool:
    """Removes all rights of group and others from a file or folder with this mode. Returns whether there were
    any. Raises OSError."""
    if not mode & GROUP_AND_OTHERS_BITS or stat.S_ISLNK(mode):
        return False
    os.chmod(path, stat.S_IMODE(mode) & FOLDER_MODE)
    return True


def remove_other_access_in_tree(folder: str, *, excluded: frozenset[str] = frozenset()) -> Iterator[str]:
    """Removes all rights of group and others from everything below `folder`. Yields the path of each entry
    after its step. Links are not followed.

    excluded: names of folders whose content is not changed. Entries that vanish or may not be changed are
    skipped.
    """
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        try:
            info = entry.stat(follow_symlinks=False)
            remove_other_access(entry.path, info.st_mode)
        except OSError:
            continue
        yield entry.path
        if stat.S_ISDIR(info.st_mode) and entry.name not in excluded:
            yield from remove_other_access_in_tree(entry.path, excluded=excluded)


def remove_tree(folder: Path) -> None:
    """Removes a folder of any depth, regardless of its modes. What cannot be removed remains.

    Inner folders are moved up before they are read: a path may be too long for the kernel, and too deep for
    recursion.
    """
    _remove_tree(folder, None)


def _remove_tree(folder: str | Path, parent: int | None) -> None:
    """parent: a descriptor of the folder that contains it, if `folder` is a name."""
    if _is_link(folder, parent):
        return  # the mode of another folder must not change
    with suppress(OSError):
        os.chmod(folder, FOLDER_MODE, dir_fd=parent)
    try:
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    except OSError:
        return
    try:
        names = _empty(top, top)
        while names:
            name = names.pop()
            with suppress(OSError):
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
                try:
                    names += _empty(inner, top)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    with suppress(OSError):
        os.rmdir(folder, dir_fd=parent)


def _empty(folder: int, top: int) -> list[str]:
    """Removes the files of a folder, and moves its folders to `top`. Returns their names there."""
    moved: list[str] = []
    entries: list[os.DirEntry[str]] = []
    with suppress(OSError), os.scandir(folder) as listing:
        entries = list(listing)
    for entry in entries:
        with suppress(OSError):
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=folder)
                continue
            os.chmod(entry.name, FOLDER_MODE, dir_fd=folder)
            name = f".{os.urandom(8).hex()}"
            os.rename(entry.name, name, src_dir_fd=folder, dst_dir_fd=top)
            moved.append(name)
    return moved
