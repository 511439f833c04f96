"""Writes a tree's blobs where they belong, in any order and from several threads."""

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
    """Fills the folder `into` with what `manifest` says. Never writes outside it: the manifest's paths were
    checked when it was decoded, nothing in it lies below a link, links are made last and never gone through.
    name: of the folder, for messages. Raises StorageFull, SpecError."""

    def __init__(self, into: OpenFolder, manifest: Manifest, *, name: str) -> None:
        self._into, self._root, self._manifest = into, name, manifest
        self._places: dict[Digest, list[_BlobPosition]] = {}
        for file in manifest.files:
            for number, digest in enumerate(file.chunks):
                offset = number * CHUNK_BYTES
                self._places.setdefault(digest, []).append(
                    _BlobPosition(file, offset, min(CHUNK_BYTES, file.size - offset))
                )

    def path_of(self, digest: Digest) -> str:
        """A file that the blob belongs to, for messages."""
        return self._places[digest][0].file.path

    def missing_digests(self) -> list[tuple[Digest, int]]:
        """Make folders and empty files, and tell which blobs are needed with their sizes: all but those that
        are there and right already."""
        with write_errors_below(self._root):
            fresh = not self._into.names()
            if fresh:
                self._check_disk_space()
            self._make_folders()
            here = (
                set()
                if fresh
                else {
                    digest
                    for digest, places in self._places.items()
                    if all(map(self._has_content, places, [digest] * len(places)))
                }
            )
            for file in self._manifest.files:
                if not file.chunks:
                    os.close(self._open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
                elif len(file.chunks) > 1:
                    self._reserve(file)
        return [(digest, places[0].size) for digest, places in self._places.items() if digest not in here]

    def write_blob(self, digest: Digest, data: bytes | memoryview) -> None:
        """Write one blob, checked by the caller, wherever the tree has it.
        A memoryview is one of page-aligned memory."""
        with write_errors_below(self._root):
            for place in self._places[digest]:
                if len(data) != place.size:
                    raise SpecError(
                        f"the manifest gives `{place.file.path}` another size than its bytes have"
                    )
                self._write(place, data)

    def finish(self) -> None:
        """Set modes and make links."""
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
        """A small manifest may name one blob many times: what it unpacks to is told before the disk is full
        of it."""
        about = os.fstatvfs(self._into.descriptor)
        if self._manifest.size_bytes > about.f_bavail * about.f_frsize:
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
        """Take the space at once: a full disk shows before the download, and parts can be written in any
        order."""
        descriptor = self._open(file, os.O_WRONLY | os.O_CREAT)
        try:
            os.ftruncate(descriptor, file.size)
            try:
                os.posix_fallocate(descriptor, 0, file.size)
            except OSError as bad:
                if bad.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    raise
        finally:
            os.close(descriptor)

    def _has_content(self, place: _BlobPosition, digest: Digest) -> bool:
        try:
            descriptor = self._open(place.file, os.O_RDONLY)
        except OSError:
            return False
        try:
            if os.fstat(descriptor).st_size != place.file.size:
                return False
            return blake3(os.pread(descriptor, place.size, place.offset)).hexdigest() == digest
        finally:
            os.close(descriptor)

    def _write(self, place: _BlobPosition, data: bytes | memoryview) -> None:
        if place.file.size >= _DIRECT_BYTES and place.size == CHUNK_BYTES and self._write_direct(place, data):
            return
        truncate = os.O_TRUNC if len(place.file.chunks) == 1 else 0
        descriptor = self._open(place.file, os.O_WRONLY | os.O_CREAT | truncate)
        try:
            done = os.pwrite(descriptor, data, place.offset)
            while done < len(data):
                done += os.pwrite(descriptor, data[done:], place.offset + done)
        finally:
            os.close(descriptor)

    def _write_direct(self, place: _BlobPosition, data: bytes | memoryview) -> bool:
        """Past the page cache: a large file need not push everything else out of memory (and writing is
        faster)."""
        try:
            descriptor = self._open(place.file, os.O_WRONLY | os.O_DIRECT)
        except OSError as bad:
            if bad.errno == errno.EINVAL:
                return False
            raise
        try:
            if isinstance(data, memoryview):  # aligned already
                return os.pwrite(descriptor, data, place.offset) == len(data)
            buffer: mmap.mmap | None = getattr(_thread_buffers, "buffer", None)
            if buffer is None:
                buffer = _thread_buffers.buffer = mmap.mmap(-1, _WRITE_BYTES)
            for at in range(0, len(data), _WRITE_BYTES):
                buffer[:] = data[at : at + _WRITE_BYTES]
                if os.pwrite(descriptor, buffer, place.offset + at) != _WRITE_BYTES:
                    return False
            return True
        except OSError as bad:
            if bad.errno == errno.EINVAL:
                return False
            raise
        finally:
            os.close(descriptor)


class write_errors_below:
    """`with writing_below(root):` turns a full disk, or a folder that may not be written, into an error that
    says so."""

    def __init__(self, root: str) -> None:
        self._root = root

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OSError):
            return
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull(
                f"no space left below {self._root}",
                hints=("free some space and try again: what came over is kept",),
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise SpecError(
                f"`{error.filename or self._root}` may not be written", hints=("name a folder of yours",)
            ) from error
