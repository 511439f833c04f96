"""Scans the folder of a run: every file and link, with the reason why it cannot be stored.

The processes of the run may change the folder meanwhile. So each folder is opened below the one that lists
it, never through a link, and an entry that was removed is skipped.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from hopyard.datasets.ignore_rules import CACHE_FOLDERS, REPOSITORY_FOLDERS, SECRET_FILES
from hopyard.domain.path_check import is_bare_repository, is_repository_name

_BYTECODE_SUFFIXES = (".pyc", ".pyo", ".nbi", ".nbc")  # files of Python and Numba in `__pycache__`
_MAX_PATH_BYTES = 3072  # the kernel takes 4096, with the path of the folder itself
# with the current one: a deeper tree needs no more descriptors
_MAX_OPEN_FOLDERS = 64
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class UnstoredReason(StrEnum):
    """Why a file is not stored, in the words of the run's events."""

    LENGTH = "their paths are too long"
    UNREADABLE = "they are not readable"
    LINK = "they are links out of the folder of the run, or broken links"
    FOLDER_LINK = "they are links to folders of the run that have no stored files, or to its whole folder"
    SECRET = "they contain passwords and keys"
    TOOLS = "they are virtual environments, `node_modules` or repositories"
    CACHE = "they are caches of tools"
    SPECIAL = "they are pipes, sockets or devices"


FileScan = tuple[str, os.stat_result, UnstoredReason | None]


def scan_files(root: Path) -> Iterator[FileScan]:
    """Yields files and links, with the reason why they cannot be stored. Of a folder that is left out as a
    whole, only the folder itself. Caches of bytecode are skipped."""
    try:
        stack = [_OpenFolder(os.open(root, _FOLDER_FLAGS), "")]
    except OSError:
        return
    try:
        while stack:
            folder = stack[-1]
            entry = next(folder.entries, None)
            if entry is None:
                _leave(stack)
                continue
            name, is_folder = entry
            path = folder.prefix + name
            try:
                stat_result = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
            except OSError:  # a process of the run removed it
                continue
            if _is_bytecode(path, name):
                continue
            reason = _unstored_reason(folder.descriptor, name, path, stat_result.st_mode)
            if not is_folder or reason is not None:
                yield path, stat_result, reason
                continue
            try:
                child = os.open(name, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=folder.descriptor)
                stack.append(_OpenFolder(child, path + "/"))
            except FileNotFoundError:
                continue
            except OSError as error:
                if not _is_replaced(error):
                    yield path, stat_result, UnstoredReason.UNREADABLE
                continue
            if len(stack) > _MAX_OPEN_FOLDERS:
                stack[-_MAX_OPEN_FOLDERS - 1].close()
            if is_bare_repository(stack[-1].names):
                _leave(stack)
                yield path, stat_result, UnstoredReason.TOOLS
    finally:
        for folder in stack:
            folder.close()


def _leave(stack: list[_OpenFolder]) -> None:
    """Removes the last folder, and the ones around it that cannot be entered again: a process of the run
    moved or removed them."""
    last = stack.pop()
    if stack and not stack[-1].is_open and not stack[-1].reopen_above(last):
        while stack and not stack[-1].is_open:
            stack.pop()
    last.close()


class _OpenFolder:
    """A folder and the names in it, sorted. It stays open while its entries are scanned, unless it is far
    above: then it is opened again as the folder around the one below it."""

    def __init__(self, descriptor: int, prefix: str) -> None:
        """Raises OSError if the folder cannot be listed; the descriptor is closed then."""
        self.descriptor, self.prefix, self.is_open = descriptor, prefix, True
        try:
            with os.scandir(descriptor) as listing:
                found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing)
            self._identity = self._read_identity()
        except BaseException:
            self.close()
            raise
        self.names, self.entries = [name for name, _ in found], iter(found)

    def reopen_above(self, below: _OpenFolder) -> bool:
        """Returns whether the folder is still the one around `below`, and is open again."""
        try:
            self.descriptor = os.open("..", _FOLDER_FLAGS, dir_fd=below.descriptor)
        except OSError:
            return False
        self.is_open = True
        if self._read_identity() == self._identity:
            return True
        self.close()
        return False

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            os.close(self.descriptor)

    def _read_identity(self) -> tuple[int, int]:
        stat_result = os.fstat(self.descriptor)
        return stat_result.st_dev, stat_result.st_ino


def _is_replaced(error: OSError) -> bool:
    """Returns whether the folder has become a link or a file since it was listed."""
    return error.errno in (errno.ELOOP, errno.ENOTDIR)


def _is_bytecode(path: str, name: str) -> bool:
    return f"/{path}".endswith(f"/__pycache__/{name}") and any(
        f"{suffix}." in f"{name}." for suffix in _BYTECODE_SUFFIXES
    )


def _unstored_reason(folder: int, name: str, path: str, mode: int) -> UnstoredReason | None:
    """folder: descriptor of the folder that has the entry `name`."""
    if name in CACHE_FOLDERS:
        return UnstoredReason.CACHE
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        return UnstoredReason.SPECIAL
    if name in SECRET_FILES:
        return UnstoredReason.SECRET
    if name in REPOSITORY_FOLDERS or is_repository_name(name):
        return UnstoredReason.TOOLS
    if stat.S_ISDIR(mode) and (name == "node_modules" or _is_file(folder, f"{name}/pyvenv.cfg")):
        return UnstoredReason.TOOLS
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        return UnstoredReason.LENGTH
    needed = os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.R_OK
    if not stat.S_ISLNK(mode) and not os.access(name, needed, dir_fd=folder):
        return UnstoredReason.UNREADABLE
    return None


def _is_file(folder: int, path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path, dir_fd=folder).st_mode)
    except (OSError, ValueError):
        return False
