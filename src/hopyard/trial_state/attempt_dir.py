"""The folder of one attempt's states, and the removal of what dead attempts and processes left."""

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

# Reserved for other programs: this share of the file system, but at most this many bytes. So a large disk
# that is
# nearly full still has space for states.
_RESERVED_SHARE, _MAX_RESERVED_BYTES = 0.05, 1 << 30


def _prefix() -> str:
    return f"hopyard-{os.getuid()}-"


@cache
def host_id() -> str:
    """Returns an id that all processes on this host share until it reboots, including those in its
    containers."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:13]
    except OSError:
        return socket.gethostname()


class AttemptDir:
    """Created if it does not exist, and locked from now on. owner: the prefix of this process's own files."""

    def __init__(self, parent: Path, name: str) -> None:
        self.path = parent / f"{_prefix()}{re.sub(r'[^A-Za-z0-9._-]', '_', name)}"
        self._lock = _open_locked_dir(self.path)
        self.owner, self._owner_lock = _create_owner(self.path)

    def usable_bytes(self) -> int:
        """Returns how much of the file system states may still use. Negative if other programs need the free
        space."""
        disk = os.statvfs(self.path)
        return usable_bytes(disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize)

    def remove_stale_slots(self) -> None:
        """Removes slots without a state whose owner has ended."""
        with os.scandir(self.path) as listing:
            slots = [entry.name for entry in listing if entry.name.startswith("slot-")]
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
        # if several processes close at once, the last one gets the exclusive lock
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self.path, ignore_errors=True)
        except BlockingIOError:
            pass  # other processes use it
        os.close(self._lock)


def usable_bytes(free_bytes: int, size_bytes: int) -> int:
    """Returns how much states may use of a file system of `size_bytes` with `free_bytes` free."""
    return free_bytes - min(int(size_bytes * _RESERVED_SHARE), _MAX_RESERVED_BYTES)


def remove_dead_attempts(parent: Path) -> None:
    """Removes the folders of this user's attempts that have no live process."""
    with suppress(OSError):
        for path in parent.glob(f"{_prefix()}*"):
            with suppress(OSError):
                if path.is_dir() and not path.is_symlink():
                    _remove_unlocked(path)


def _remove_unlocked(path: Path) -> None:
    with try_lock(path / "lock", os.O_RDWR | os.O_NOFOLLOW) as acquired:
        if acquired:
            shutil.rmtree(path, ignore_errors=True)


def _open_locked_dir(path: Path) -> int:
    """Creates and locks the folder. It retries if another process removes the folder between the
    two steps."""
    while True:
        make_folder(path)
        stat_result = path.lstat()
        if (
            stat_result.st_uid != os.getuid()
            or not stat.S_ISDIR(stat_result.st_mode)
            or stat_result.st_mode & 0o077
        ):
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
