"""Folders that are held open: what is done below one is done in that very folder, whatever other users do to
its path meanwhile, and never through a link."""

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
    """One folder. May be used from several threads; closed at the end of its `with` block."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def open_path(cls, path: Path) -> OpenFolder:
        """The folder at a path that the user named, links and all."""
        return cls(os.open(path, _FOLDER_FLAGS))

    @classmethod
    def open_private(cls, path: Path) -> OpenFolder:
        """A folder that no other user may write to. Raises SpecError for any other, and for a link."""
        return cls(os.open(path, _FOLDER_FLAGS | os.O_NOFOLLOW))._check_private(str(path))

    def create_folder(self, name: str) -> OpenFolder:
        """A new, empty folder of this user alone. Raises FileExistsError, and SpecError where another user
        put theirs in its place."""
        os.mkdir(name, 0o700, dir_fd=self.descriptor)
        made = self.enter_private(name)
        if os.listdir(made.descriptor):
            made.close()
            raise SpecError(
                f"`{name}` was exchanged by another user", hints=("name a folder that only you can write to",)
            )
        return made

    def enter_private(self, name: str) -> OpenFolder:
        """A folder in this one that no other user may read or write.
        Raises SpecError for any other, OSError."""
        return OpenFolder(
            os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=self.descriptor)
        )._check_private(name, require_private=True)

    def _check_private(self, name: str, *, require_private: bool = False) -> OpenFolder:
        about = os.fstat(self.descriptor)
        if about.st_uid != os.geteuid() or about.st_mode & (0o077 if require_private else 0o022):
            self.close()
            raise SpecError(
                f"`{name}` is not a folder of yours alone",
                hints=("name a folder that only you can write to",),
            )
        return self

    def close(self) -> None:
        os.close(self.descriptor)

    def __enter__(self) -> OpenFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- below it --------------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return os.listdir(self.descriptor)

    def open(self, path: str, flags: int, mode: int = 0o666) -> int:
        """A descriptor of what is at a relative path without `..`.
        Raises OSError, ELOOP or ENOTDIR where a link is on the way."""
        flags |= os.O_CLOEXEC | os.O_NOFOLLOW
        if "/" not in path:
            return os.open(path, flags, mode, dir_fd=self.descriptor)
        found = _open_beneath(self.descriptor, path, flags, mode)
        if found is not None:
            return found
        head, _, name = path.rpartition("/")
        parent = self._walk(head)
        try:
            return os.open(name, flags, mode, dir_fd=parent)
        finally:
            os.close(parent)

    def make_folders(self, paths: Iterable[str]) -> None:
        """Make these and what is above them, as far as they are not there."""
        made: set[str] = set()
        for path in sorted(paths):
            steps = path.split("/")
            for depth in range(1, len(steps) + 1):
                at = "/".join(steps[:depth])
                if at not in made:
                    made.add(at)
                    with suppress(FileExistsError):
                        self._write_beside(at, lambda name, parent: os.mkdir(name, dir_fd=parent))

    def make_link(self, target: str, path: str) -> None:
        """Make a symbolic link in place of one that is there."""

        def put(name: str, parent: int) -> None:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=parent)
            os.symlink(target, name, dir_fd=parent)

        self._write_beside(path, put)

    def ensure_folder(self, name: str) -> OpenFolder:
        """The folder of this name, made where it is not there.
        Raises OSError where it is a link or no folder."""
        with suppress(FileExistsError):
            os.mkdir(name, dir_fd=self.descriptor)
        return OpenFolder(os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=self.descriptor))

    def write(self, name: str, data: Iterable[bytes]) -> int:
        """Put a file with these bytes in place of whatever file has the name, never through a link; how many
        they were."""
        new = f".{name}.{os.urandom(8).hex()}"
        descriptor = os.open(
            new,
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o666,
            dir_fd=self.descriptor,
        )
        try:
            with os.fdopen(descriptor, "wb") as file:
                size = sum(map(file.write, data))
            os.rename(new, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        except BaseException:
            os.unlink(new, dir_fd=self.descriptor)
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
        """A descriptor of a folder below, entered step by step."""
        at = os.dup(self.descriptor)
        try:
            for step in path.split("/"):
                below = os.open(step, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=at)
                os.close(at)
                at = below
        except BaseException:
            os.close(at)
            raise
        return at


_libc = ctypes.CDLL(None, use_errno=True)
_has_openat2: bool | None = None


def _open_beneath(folder: int, path: str, flags: int, mode: int) -> int | None:
    """As `open`, in one call, where the kernel has openat2 and lets us use it; else None."""
    global _has_openat2
    if _has_openat2 is None:
        probe = _openat2(folder, b".", _FOLDER_FLAGS, 0)
        _has_openat2 = probe >= 0
        if probe >= 0:
            os.close(probe)
    if not _has_openat2:
        return None
    while True:
        found = _openat2(folder, os.fsencode(path), flags, mode if flags & os.O_CREAT else 0)
        if found >= 0:
            return found
        failed = ctypes.get_errno()
        if failed not in (errno.EINTR, errno.EAGAIN):
            raise OSError(failed, os.strerror(failed), path)


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
