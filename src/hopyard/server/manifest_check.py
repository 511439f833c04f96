"""Checks that all blobs of a manifest are stored. Each submission needs this, so the result is cached."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from hopyard.controller.manifests import ManifestDecoder, ManifestSize
from hopyard.domain.ids import Digest
from hopyard.errors import IntegrityError, MissingBlobs, NotFound, SpecError
from hopyard.interfaces.blobs import Blobs
from hopyard.interfaces.storage_store import StorageStore
from hopyard.server.remote_blobs import RemoteBlobs

_MAX_CACHED_MANIFESTS = 4096
MAX_NAMED_DIGESTS = (
    10_000  # missing digests in one response; the client repeats the request after it has uploaded these
)
RESEND_HINT = (
    "upload the same files again (`hop run`, `hop dataset push`), or restore them from a backup; `hop "
    "doctor --verify` lists all missing blobs"
)


@dataclass(frozen=True, slots=True)
class TreeSize:
    """The size of the tree of a manifest."""

    size_bytes: int
    files: int


class ManifestCheck:
    """Checks manifests against the stored blobs."""

    def __init__(
        self, blobs: Blobs, storage: StorageStore, remote: RemoteBlobs, *, now: Callable[[], datetime]
    ) -> None:
        self._blobs, self._storage, self._remote, self._now = blobs, storage, remote, now
        self._decoder = ManifestDecoder()
        self._complete_sizes: dict[Digest, TreeSize] = {}
        self._complete_blobs: set[Digest] = set()  # complete, but their sizes were not compared
        self._damage_texts: dict[Digest, str] = {}  # errors of blobs that are no manifests
        self._present_blobs: set[Digest] = set()

    async def require_complete(self, manifest: Digest, *, subject: str) -> TreeSize:
        """Returns the size of the tree, if this server or another one of the database has all its blobs.

        Raises MissingBlobs with the missing blobs; SpecError when the blob is not a manifest. subject: what
        the tree is in messages ("code").
        """
        tree_size = self._complete_sizes.get(manifest)
        if tree_size is not None:
            return tree_size
        if (await self._remote.fetch_missing([manifest])).missing:
            raise MissingBlobs(
                f"the manifest of the {subject} is not on the server",
                digests=[manifest],
                hints=(RESEND_HINT,),
            )
        if manifest in self._damage_texts:
            raise SpecError(
                f"{subject}: blob {manifest[:12]} is not a manifest: {self._damage_texts[manifest]}"
            )
        try:
            data = await self._blobs.get(manifest)
        except (IntegrityError, NotFound) as error:  # set aside if damaged: the client uploads it again
            self.clear()
            raise MissingBlobs(
                f"the manifest of the {subject} cannot be read: {error.message}",
                digests=[manifest],
                hints=(RESEND_HINT,),
            ) from error
        try:
            tree = await self._decoder.measure(data)
        except IntegrityError as error:
            if len(self._damage_texts) >= _MAX_CACHED_MANIFESTS:
                self._damage_texts.clear()
            self._damage_texts[manifest] = error.message
            raise SpecError(
                f"{subject}: blob {manifest[:12]} is not a manifest: {error.message}", hints=error.hints
            ) from error
        missing = (await self._remote.find_missing(map(Digest, tree.blob_sizes))).missing
        if missing:
            message = f"{len(missing)} of the blobs of the {subject} are not on the server"
            raise MissingBlobs(message, digests=missing[:MAX_NAMED_DIGESTS], hints=(RESEND_HINT,))
        await self._check_sizes(tree, subject)
        await self._storage.record_tree(manifest, tree.size_bytes, now=self._now())
        if len(self._complete_sizes) >= _MAX_CACHED_MANIFESTS:
            self._complete_sizes.clear()
        tree_size = self._complete_sizes[manifest] = TreeSize(tree.size_bytes, tree.files)
        return tree_size

    async def referenced_blobs(self, manifest: Digest) -> set[Digest]:
        """Returns the manifest and the blobs that it references. Raises NotFound, IntegrityError."""
        return {
            manifest,
            *map(Digest, (await self._decoder.measure(await self._blobs.get(manifest))).blob_sizes),
        }

    async def known_damage(self, manifest: Digest) -> str:
        """Returns what a tree is known to lack without reading its bytes: damaged or missing blobs. Returns
        "" if no damage is known, or if another server may have the blobs."""
        if manifest in self._complete_sizes or manifest in self._complete_blobs:
            return ""
        try:
            search = await self._remote.find_missing([manifest])
            if not search.missing:
                if await self._blobs.find_missing([manifest]):
                    return ""  # another server has it
                tree = await self._decoder.measure(await self._blobs.get(manifest))
                search = await self._remote.find_missing(map(Digest, tree.blob_sizes))
        except (IntegrityError, NotFound) as error:
            self.clear()
            return error.message
        if search.missing and not search.unreachable:
            return f"{len(search.missing)} of its blobs are damaged or missing"
        if not search.missing:
            if len(self._complete_blobs) >= _MAX_CACHED_MANIFESTS:
                self._complete_blobs.clear()
            self._complete_blobs.add(manifest)
        return ""

    async def verify(self, manifest: Digest) -> str:
        """Reads every byte of a tree. Returns the error, or "".

        A damaged blob is set aside when it is read. Blobs that this server lacks are fetched. Raises
        BlobsOnOtherServer if that is impossible.
        """
        try:
            (await self._remote.fetch_missing([manifest])).check_reachable()
            tree = await self._decoder.measure(await self._blobs.get(manifest))
            (await self._remote.fetch_missing(map(Digest, tree.blob_sizes))).check_reachable()
            for digest in tree.blob_sizes:
                await self._blobs.get(Digest(digest))
        except (IntegrityError, NotFound) as error:
            self.clear()
            return error.message
        return ""

    async def _check_sizes(self, tree: ManifestSize, subject: str) -> None:
        """Raises SpecError if the size of a blob differs from the manifest, since no machine could unpack
        it."""
        expected = tree.blob_sizes
        for digest, size in zip(expected, await self._blobs.sizes(list(expected)), strict=True):
            # a blob that was removed meanwhile is reported when it is used
            if size is not None and size != expected[digest]:
                raise SpecError(
                    f"{subject}: its manifest says that blob {digest[:12]} has {expected[digest]} bytes, but "
                    f"it has {size}",
                    hints=("pack it again",),
                )

    async def require_blobs(
        self, digests: Iterable[Digest], *, subject: str, max_bytes: int | None = None
    ) -> None:
        """Raises MissingBlobs unless these single blobs are stored; SpecError for a blob of more than
        `max_bytes` bytes."""
        unchecked = [digest for digest in digests if digest not in self._present_blobs]
        missing = (await self._remote.find_missing(unchecked)).missing if unchecked else ()
        if missing:
            raise MissingBlobs(f"the {subject} is not on the server", digests=missing, hints=(RESEND_HINT,))
        if (
            max_bytes is not None
            and unchecked
            and any(size is not None and size > max_bytes for size in await self._blobs.sizes(unchecked))
        ):
            raise SpecError(
                f"{subject}: it exceeds the limit of {max_bytes >> 20} MiB",
                hints=("move large files into the code or a dataset",),
            )
        if len(self._present_blobs) >= _MAX_CACHED_MANIFESTS:
            self._present_blobs.clear()
        self._present_blobs.update(unchecked)

    def clear(self) -> None:
        """Clears the caches, because blobs were removed."""
        self._complete_sizes.clear()
        self._complete_blobs.clear()
        self._present_blobs.clear()
