"""Reads stored trees file by file: the files by path, and parts of their bytes."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence

from hopyard.datasets.file_index import FileIndex
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import CHUNK_BYTES
from hopyard.interfaces.blobs import Blobs
from hopyard.server.byte_range import ByteRange
from hopyard.server.remote_blobs import RemoteBlobs

_CACHE_BYTES = 64 * 1024 * 1024
_CHUNKS_PER_FETCH = 8
_INLINE_BYTES = 64 * 1024  # of a manifest: takes about a millisecond
_MISSING_HINTS = (
    "push the same data again, or restore it from a backup",
    "list all missing blobs with `hop doctor --verify`",
)


class DatasetFiles:
    """The files of one server's trees. Keeps the indexes of recently used trees, 64 MiB in all. The index of
    a larger tree (about 400,000 files) is built for each request, one at a time."""

    def __init__(self, blobs: Blobs, remote: RemoteBlobs) -> None:
        self._blobs, self._remote = blobs, remote
        self._indexes: OrderedDict[Digest, FileIndex] = OrderedDict()
        self._cached_bytes = 0
        self._build_lock = asyncio.Lock()

    async def index(self, manifest: Digest) -> FileIndex:
        """Returns the files of a tree. Raises MissingBlobs, BlobsOnOtherServer, IntegrityError."""
        found = self._cached(manifest)
        if found is not None:
            return found
        async with self._build_lock:
            found = self._cached(manifest)
            if found is None:
                await self._fetch([manifest])
                data = await self._blobs.get(manifest)
                is_small = len(data) <= _INLINE_BYTES
                found = (
                    FileIndex.of_manifest(data)
                    if is_small
                    else await asyncio.to_thread(FileIndex.of_manifest, data)
                )
                self._keep(manifest, found)
            return found

    async def read(self, chunks: Sequence[Digest], part: ByteRange) -> AsyncIterator[bytes]:
        """Returns the bytes of a part of a file, a chunk at a time. `chunks`: of the whole file.

        Blobs of another server are fetched from there. Raises MissingBlobs, BlobsOnOtherServer and
        IntegrityError before the first bytes. Later, such an error ends the iteration.
        """
        first = part.begin // CHUNK_BYTES
        needed = list(chunks[first : -(-part.end // CHUNK_BYTES)]) if part.length else []
        await self._fetch(needed[:_CHUNKS_PER_FETCH])
        head = await self._blobs.get(needed[0]) if needed else b""
        return self._pieces(needed, head, part.begin - first * CHUNK_BYTES, part.length)

    async def _pieces(
        self, chunks: Sequence[Digest], head: bytes, offset: int, length: int
    ) -> AsyncIterator[bytes]:
        remaining = length
        for number, digest in enumerate(chunks):
            if number and number % _CHUNKS_PER_FETCH == 0:
                await self._fetch(chunks[number : number + _CHUNKS_PER_FETCH])
            data = await self._blobs.get(digest) if number else head
            piece = data[offset : offset + remaining] if offset or remaining < len(data) else data
            offset, remaining = 0, remaining - len(piece)
            yield piece

    async def _fetch(self, digests: Sequence[Digest]) -> None:
        lookup = await self._remote.fetch_missing(digests)
        lookup.check_found("blobs of the dataset", hints=_MISSING_HINTS)

    def _cached(self, manifest: Digest) -> FileIndex | None:
        found = self._indexes.get(manifest)
        if found is not None:
            self._indexes.move_to_end(manifest)
        return found

    def _keep(self, manifest: Digest, index: FileIndex) -> None:
        if index.memory_bytes > _CACHE_BYTES:
            return
        self._indexes[manifest] = index
        self._cached_bytes += index.memory_bytes
        while self._cached_bytes > _CACHE_BYTES:
            _, evicted = self._indexes.popitem(last=False)
            self._cached_bytes -= evicted.memory_bytes
