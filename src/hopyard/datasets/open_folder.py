"""Holds folders open, so that operations below them apply to the very folder that was opened. Other users may
move its path meanwhile. Links are never followed."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from hopyard.errors import SpecError

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_SYS_OPENAT2 = 437  # the same on all machines
_RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x04, 0x08


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class OpenFolder:
    """One open folder. Can be used from several threads; closed at the end of its `with` block."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def open_path(cls, path: Path) -> OpenFolder:
        """Opens the folder at a path that the user set; follows links."""
        return cls(os.open(path, _FOLDER_FLAGS))

    @classmethod
    def open_private(cls, path: Path) -> OpenFolder:
        """Opens a folder that no other user can write to. Raises SpecError for any other folder, and for a
        link."""
        return cls(os.open(path, _FOLDER_FLAGS | os.O_NOFOLLOW))._check_private(str(path))

    def create_folder(self, name: str) -> OpenFolder:
        """Creates an empty folder for this user alone.

        Raises FileExistsError, and SpecError if another user replaced the folder.
        """
        os.mkdir(name, 0o700, dir_fd=self.descriptor)
        folder = self.enter_private(name)
        if os.listdir(folder.descriptor):
            folder.close()
            raise SpecError(
                f"`{name}` was replaced by another user",
                hints=("choose a folder that only you can write to",),
            )
        return folder

    def enter_private(self, name: str) -> OpenFolder:
        """Opens a folder in this one that no other user can read or write.

        Raises SpecError for any other folder, and OSError.
        """
        return OpenFolder(
            os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=self.descriptor)
        )._check_private(name, require_private=True)

    def _check_private(self, name: str, *, require_private: bool = False) -> OpenFolder:
        folder_stat = os.fstat(self.descriptor)
        if folder_stat.st_uid != os.geteuid() or folder_stat.st_mode & (0o077 if require_private else 0o022):
            self.close()
            raise SpecError(
                f"`{name}` is not a folder of yours alone",
                hints=("choose a folder that only you can write to",),
            )
        return self

    def close(self) -> None:
        os.close(self.descriptor)

    def __enter__(self) -> OpenFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- entries below the folder ----------------------------------------------------------------------------

    def names(self) -> list[str]:
        return os.listdir(self.descriptor)

    def open(self, path: str, flags: int, mode: int = 0o666) -> int:
        """Returns a descriptor of the file at a relative path without `..`.

        Raises OSError, with ELOOP or ENOTDIR if the path contains a link.
        """
        flags |= os.O_CLOEXEC | os.O_NOFOLLOW
        if "/" not in path:
            return os.open(path, flags, mode, dir_fd=self.descriptor)
        descriptor = _open_beneath(self.descriptor, path, flags, mode)
        if descriptor is not None:
            return descriptor
        head, _, name = path.rpartition("/")
        parent = self._walk(head)
        try:
            return os.open(name, flags, mode, dir_fd=parent)
        finally:
            os.close(parent)

    def make_folders(self, paths: Iterable[str]) -> None:
        """Creates missing folders and their parents."""
        created: set[str] = set()
        for path in sorted(paths):
            steps = path.split("/")
            for depth in range(1, len(steps) + 1):
                folder = "/".join(steps[:depth])
                if folder not in created:
                    created.add(folder)
                    with suppress(FileExistsError):
                        self._write_beside(folder, lambda name, parent: os.mkdir(name, dir_fd=parent))

    def make_link(self, target: str, path: str) -> None:
        """Creates a symbolic link; replaces an existing one."""

        def replace_link(name: str, parent: int) -> None:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=parent)
            os.symlink(target, name, dir_fd=parent)

        self._write_beside(path, replace_link)

    def ensure_folder(self, name: str) -> OpenFolder:
        """Returns the folder of this name, created if missing. Raises OSError if it is a link or no
        folder."""
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=self.descriptor)
        return OpenFolder(os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=self.descriptor))

    def enter(self, path: str) -> OpenFolder:
        """Opens a folder below this one; "" is this folder. Raises OSError if the path contains a link."""
        return OpenFolder(self._walk(path) if path else os.dup(self.descriptor))

    def write(self, name: str, data: Iterable[bytes], *, executable: bool = False) -> int:
        """Writes a file, or replaces the file of this name; never follows a link. Returns the size in
        bytes."""
        temporary_name = f".{name[:32]}.{os.urandom(8).hex()}"
        descriptor = os.open(
            temporary_name,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o777 if executable else 0o666,
            dir_fd=self.descriptor,
        )
        try:
            with os.fdopen(descriptor, "wb") as file:
                size = sum(map(file.write, data))
            os.rename(temporary_name, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except BaseException:
            os.unlink(temporary_name, dir_fd=self.descriptor)
            raise
        return size

    def _write_beside(self, path: str, write: Callable[[str, int], None]) -> None:
        head, _, name = path.rpartition("/")
        parent = self._walk(head) if head else os.dup(self.descriptor)
        try:
            write(name, parent)
        finally:
            os.close(parent)

    def _walk(self, path: str) -> int:
        """Returns a descriptor of a folder below this one, opened one component at a time."""
        current = os.dup(self.descriptor)
        try:
            for step in path.split("/"):
                child = os.open(step, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=current)
                os.close(current)
                current = child
        except BaseException:
            os.close(current)
            raise
        return current


_libc = ctypes.CDLL(None, use_errno=True)
_has_openat2: bool | None = None


def _open_beneath(folder: int, path: str, flags: int, mode: int) -> int | None:
    """Works like `OpenFolder.open` in one system call. Returns None if the kernel has no openat2 or denies
    it."""
    global _has_openat2
    if _has_openat2 is None:
        probe = _openat2(folder, b".", _FOLDER_FLAGS, 0)
        _has_openat2 = probe >= 0
        if probe >= 0:
            os.close(probe)
    if not _has_openat2:
        return None
    while True:
        descriptor = _openat2(folder, os.fsencode(path), flags, mode if flags & os.O_CREAT else 0)
        if descriptor >= 0:
            return descriptor
        error_number = ctypes.get_errno()
        if error_number not in (errno.EINTR, errno.EAGAIN):
            raise OSError(error_number, os.strerror(error_number), path)


def _openat2(folder: int, path: bytes, flags: int, mode: int) -> int:
    how = _OpenHow(flags, mode, _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH)
    return int(
        _libc.syscall(
            _SYS_OPENAT2,
            ctypes.c_int(folder),
            ctypes.c_char_p(path),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
    )
