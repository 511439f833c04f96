"""The folder of one attempt's states, and what dead attempts and dead processes left."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path

from hopyard.file_locks import is_locked, try_lock
from hopyard.private_files import make_folder, open_file

# Left free for others: this share of the file system, but no more than so many bytes. A large disk that is
# nearly full still has space for states.
_RESERVED_SHARE, _MAX_RESERVED_BYTES = 0.05, 1 << 30


def _prefix() -> str:
    return f"hopyard-{os.getuid()}-"


@cache
def host_id() -> str:
    """The same for all processes on this host until it starts again, and in all its containers."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:13]
    except OSError:
        return socket.gethostname()


class AttemptDir:
    """Made where it is not there yet, and held from now on.
    owner: what this process's own files are named by."""

    def __init__(self, parent: Path, name: str) -> None:
        self.path = parent / f"{_prefix()}{re.sub(r'[^A-Za-z0-9._-]', '_', name)}"
        self._lock = _open_locked_dir(self.path)
        self.owner, self._owner_lock = _create_owner(self.path)

    def usable_bytes(self) -> int:
        """How much states may still take of the file system. Negative where others need what is free."""
        disk = os.statvfs(self.path)
        return usable_bytes(disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize)

    def remove_stale_slots(self) -> None:
        """Remove slots without a state whose owner is gone."""
        with os.scandir(self.path) as listing:
            slots = [one.name for one in listing if one.name.startswith("slot-")]
        for owner in {name.split("-")[1] for name in slots} - {self.owner}:
            if is_locked(f"{self.path}/owner-{owner}"):
                continue
            for path in (self.path / name for name in slots if name.split("-")[1] == owner):
                with suppress(FileNotFoundError):
                    if path.stat().st_nlink == 1:
                        path.unlink()

    def close(self) -> None:
        with suppress(FileNotFoundError):
            (self.path / f"owner-{self.owner}").unlink()
        os.close(self._owner_lock)
        # if several processes close at once, the last one finds no other
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self.path, ignore_errors=True)
        except BlockingIOError:
            pass  # others use it
        os.close(self._lock)


def usable_bytes(free_bytes: int, size_bytes: int) -> int:
    """Of a file system of `size_bytes`, of which `free_bytes` are free: how much states may take."""
    return free_bytes - min(int(size_bytes * _RESERVED_SHARE), _MAX_RESERVED_BYTES)


def remove_dead_attempts(parent: Path) -> None:
    """Remove the folders of this user's attempts of which no process is alive."""
    with suppress(OSError):
        for path in parent.glob(f"{_prefix()}*"):
            with suppress(OSError):
                if path.is_dir() and not path.is_symlink():
                    _remove_unlocked(path)


def _remove_unlocked(path: Path) -> None:
    with try_lock(path / "lock", os.O_RDWR | os.O_NOFOLLOW) as free:
        if free:
            shutil.rmtree(path, ignore_errors=True)


def _open_locked_dir(path: Path) -> int:
    """The folder, there for certain: another process may sweep it away between making and holding it."""
    while True:
        make_folder(path)
        found = path.lstat()
        if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077:
            raise PermissionError(f"{path} is not a private folder of this user")
        try:
            fd = open_file(path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue
        fcntl.flock(fd, fcntl.LOCK_SH)
        try:
            if (path / "lock").stat().st_ino == os.fstat(fd).st_ino:
                return fd
        except FileNotFoundError:
            pass
        os.close(fd)


def _create_owner(folder: Path) -> tuple[str, int]:
    token = os.urandom(6).hex()
    fd = open_file(folder / f"owner-{token}", os.O_RDWR | os.O_CREAT | os.O_EXCL)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return token, fd
