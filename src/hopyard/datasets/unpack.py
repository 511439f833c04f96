"""Writes the blobs of a tree to its files, in any order and from several threads."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from typing import NamedTuple

from blake3 import blake3

from hopyard.datasets.open_folder import OpenFolder
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import CHUNK_BYTES, FileEntry, Manifest
from hopyard.errors import SpecError, StorageFull

_DIRECT_BYTES = 64 * 1024 * 1024  # a file of this size or more is written past the page cache
_WRITE_BYTES = 1024 * 1024
_thread_buffers = threading.local()


class _BlobPosition(NamedTuple):
    file: FileEntry
    offset: int
    size: int


class TreeWriter:
    """Fills the folder `into` with the content of `manifest`.

    Never writes outside the folder. The paths were checked when the manifest was decoded, no entry is below a
    link, and links are created last and never followed. name: the folder's name, for messages. Raises
    StorageFull, SpecError.
    """

    def __init__(self, into: OpenFolder, manifest: Manifest, *, name: str) -> None:
        self._into, self._root, self._manifest = into, name, manifest
        self._positions: dict[Digest, list[_BlobPosition]] = {}
        for file in manifest.files:
            for number, digest in enumerate(file.chunks):
                offset = number * CHUNK_BYTES
                self._positions.setdefault(digest, []).append(
                    _BlobPosition(file, offset, min(CHUNK_BYTES, file.size - offset))
                )

    def path_of(self, digest: Digest) -> str:
        """Returns a file that contains the blob, for messages."""
        return self._positions[digest][0].file.path

    def missing_digests(self) -> list[tuple[Digest, int]]:
        """Creates folders and empty files; returns the blobs to fetch with their sizes. Skips blobs that are
        already present and correct."""
        with write_errors_below(self._root):
            is_empty = not self._into.names()
            if is_empty:
                self._check_disk_space()
            self._make_folders()
            present = (
                set()
                if is_empty
                else {
                    digest
                    for digest, positions in self._positions.items()
                    if all(map(self._has_content, positions, [digest] * len(positions)))
                }
            )
            for file in self._manifest.files:
                if not file.chunks:
                    os.close(self._open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
                elif len(file.chunks) > 1:
                    self._reserve(file)
        return [
            (digest, positions[0].size)
            for digest, positions in self._positions.items()
            if digest not in present
        ]

    def write_blob(self, digest: Digest, data: bytes | memoryview) -> None:
        """Writes one blob, checked by the caller, at all its positions in the tree. A memoryview must be
        page-aligned memory."""
        with write_errors_below(self._root):
            for position in self._positions[digest]:
                if len(data) != position.size:
                    raise SpecError(
                        f"the size of `{position.file.path}` in the manifest differs from its blobs"
                    )
                self._write(position, data)

    def finish(self) -> None:
        """Sets modes and creates links."""
        with write_errors_below(self._root):
            for file in self._manifest.files:
                if file.executable:
                    self._make_executable(file)
            for link in self._manifest.links:
                self._into.make_link(link.target, link.path)

    # -- files -----------------------------------------------------------------------------------------------

    def _make_folders(self) -> None:
        folders = set(self._manifest.folders)
        for path in (
            *(file.path for file in self._manifest.files),
            *(link.path for link in self._manifest.links),
        ):
            head, slash, _ = path.rpartition("/")
            if slash:
                folders.add(head)
        self._into.make_folders(folders)

    def _check_disk_space(self) -> None:
        """Raises OSError if the disk is too small. A small manifest may name one blob many times, so this is
        checked before the disk is filled."""
        disk_stat = os.fstatvfs(self._into.descriptor)
        if self._manifest.size_bytes > disk_stat.f_bavail * disk_stat.f_frsize:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _make_executable(self, file: FileEntry) -> None:
        descriptor = self._open(file, os.O_RDONLY)
        try:
            mode = os.fstat(descriptor).st_mode
            os.fchmod(descriptor, mode | (mode & 0o444) >> 2)
        finally:
            os.close(descriptor)

    def _open(self, file: FileEntry, flags: int) -> int:
        return self._into.open(file.path, flags)

    def _reserve(self, file: FileEntry) -> None:
        """Reserves the space at once: a full disk is detected before the download, and parts can be written
        in any order."""
        descriptor = self._open(file, os.O_WRONLY | os.O_CREAT)
        try:
            os.ftruncate(descriptor, file.size)
            try:
                os.posix_fallocate(descriptor, 0, file.size)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    raise
        finally:
            os.close(descriptor)

    def _has_content(self, position: _BlobPosition, digest: Digest) -> bool:
        try:
            descriptor = self._open(position.file, os.O_RDONLY)
        except OSError:
            return False
        try:
            if os.fstat(descriptor).st_size != position.file.size:
                return False
            return blake3(os.pread(descriptor, position.size, position.offset)).hexdigest() == digest
        finally:
            os.close(descriptor)

    def _write(self, position: _BlobPosition, data: bytes | memoryview) -> None:
        if (
            position.file.size >= _DIRECT_BYTES
            and position.size == CHUNK_BYTES
            and self._write_direct(position, data)
        ):
            return
        truncate = os.O_TRUNC if len(position.file.chunks) == 1 else 0
        descriptor = self._open(position.file, os.O_WRONLY | os.O_CREAT | truncate)
        try:
            written = os.pwrite(descriptor, data, position.offset)
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], position.offset + written)
        finally:
            os.close(descriptor)

    def _write_direct(self, place: _BlobPosition, data: bytes | memoryview) -> bool:
        """Writes past the page cache: a large file does not evict other pages, and writes are faster. Returns
        False if direct writes are not supported."""
        try:
            descriptor = self._open(place.file, os.O_WRONLY | os.O_DIRECT)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return False
            raise
        try:
            if isinstance(data, memoryview):  # aligned already
                return os.pwrite(descriptor, data, place.offset) == len(data)
            buffer: mmap.mmap | None = getattr(_thread_buffers, "buffer", None)
            if buffer is None:
                buffer = _thread_buffers.buffer = mmap.mmap(-1, _WRITE_BYTES)
            for start in range(0, len(data), _WRITE_BYTES):
                buffer[:] = data[start : start + _WRITE_BYTES]
                if os.pwrite(descriptor, buffer, place.offset + start) != _WRITE_BYTES:
                    return False
            return True
        except OSError as error:
            if error.errno == errno.EINVAL:
                return False
            raise
        finally:
            os.close(descriptor)


class write_errors_below:
    """`with write_errors_below(root):` converts a full disk, or a denied write, into a clear error."""

    def __init__(self, root: str) -> None:
        self._root = root

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OSError):
            return
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(
                f"no space left below {self._root}",
                hints=("free some space and try again: transferred files are kept",),
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise SpecError(
                f"`{error.filename or self._root}` cannot be written: permission denied",
                hints=("choose a folder of yours",),
            ) from error
