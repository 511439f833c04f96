"""Whether all bytes of a manifest are here: asked at every submission, so the answer is remembered."""

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
    10_000  # missing digests that one answer names; the client asks again after it has sent these
)
RESEND_HINT = (
    "send the same files again (`hop run`, `hop dataset push`), or restore them from a backup; `hop "
    "doctor --verify` lists all missing blobs"
)


@dataclass(frozen=True, slots=True)
class TreeSize:
    """What a manifest amounts to."""

    size_bytes: int
    files: int


class ManifestCheck:
    """Checks manifests against the blobs."""

    def __init__(
        self, blobs: Blobs, storage: StorageStore, remote: RemoteBlobs, *, now: Callable[[], datetime]
    ) -> None:
        self._blobs, self._storage, self._remote, self._now = blobs, storage, remote, now
        self._decoder = ManifestDecoder()
        self._complete_sizes: dict[Digest, TreeSize] = {}
        self._complete_blobs: set[Digest] = set()  # as far as is known: their sizes were not compared
        self._damage_texts: dict[Digest, str] = {}  # blobs that are no manifests: they are not decoded again
        self._present_blobs: set[Digest] = set()

    async def require_complete(self, manifest: Digest, *, subject: str) -> TreeSize:
        """The tree, once all its blobs are here, or with another server of the database. Raises MissingBlobs
        naming those that are not, SpecError when the blob is no manifest. `subject` says in the message what
        the tree is ("code")."""
        known = self._complete_sizes.get(manifest)
        if known is not None:
            return known
        if (await self._remote.fetch_missing([manifest])).missing:
            raise MissingBlobs(
                f"the manifest of the {subject} is not on the server",
                digests=[manifest],
                hints=(RESEND_HINT,),
            )
        if manifest in self._damage_texts:
            raise SpecError(f"{subject}: blob {manifest[:12]} is no manifest: {self._damage_texts[manifest]}")
        try:
            data = await self._blobs.get(manifest)
        except (IntegrityError, NotFound) as bad:  # damaged, and set aside by that: the client sends it again
            self.clear()
            raise MissingBlobs(
                f"the manifest of the {subject} cannot be read: {bad.message}",
                digests=[manifest],
                hints=(RESEND_HINT,),
            ) from bad
        try:
            tree = await self._decoder.measure(data)
        except IntegrityError as bad:
            if len(self._damage_texts) >= _MAX_CACHED_MANIFESTS:
                self._damage_texts.clear()
            self._damage_texts[manifest] = bad.message
            raise SpecError(
                f"{subject}: blob {manifest[:12]} is no manifest: {bad.message}", hints=bad.hints
            ) from bad
        missing = (await self._remote.find_missing(map(Digest, tree.blob_sizes))).missing
        if missing:
            message = f"{len(missing)} of the blobs of the {subject} are not on the server"
            raise MissingBlobs(message, digests=missing[:MAX_NAMED_DIGESTS], hints=(RESEND_HINT,))
        await self._check_sizes(tree, subject)
        await self._storage.record_tree(manifest, tree.size_bytes, now=self._now())
        if len(self._complete_sizes) >= _MAX_CACHED_MANIFESTS:
            self._complete_sizes.clear()
        found = self._complete_sizes[manifest] = TreeSize(tree.size_bytes, tree.files)
        return found

    async def referenced_blobs(self, manifest: Digest) -> set[Digest]:
        """The manifest and what it refers to; raises NotFound, IntegrityError."""
        return {
            manifest,
            *map(Digest, (await self._decoder.measure(await self._blobs.get(manifest))).blob_sizes),
        }

    async def known_damage(self, manifest: Digest) -> str:
        """What a tree is known to lack without reading its bytes: blobs that were found damaged, or are gone.
        "" where nothing is known to be wrong, also where another server may have it."""
        if manifest in self._complete_sizes or manifest in self._complete_blobs:
            return ""
        try:
            search = await self._remote.find_missing([manifest])
            if not search.missing:
                if await self._blobs.find_missing([manifest]):
                    return ""  # another server has it
                tree = await self._decoder.measure(await self._blobs.get(manifest))
                search = await self._remote.find_missing(map(Digest, tree.blob_sizes))
        except (IntegrityError, NotFound) as bad:
            self.clear()
            return bad.message
        if search.missing and not search.unreachable:
            return f"{len(search.missing)} of its blobs are damaged or gone"
        if not search.missing:
            if len(self._complete_blobs) >= _MAX_CACHED_MANIFESTS:
                self._complete_blobs.clear()
            self._complete_blobs.add(manifest)
        return ""

    async def verify(self, manifest: Digest) -> str:
        """What is wrong with a tree, once every byte of it was read; "" where nothing is. What is damaged is
        set aside by that. What is not here is fetched; raises BlobsElsewhere where it cannot be."""
        try:
            (await self._remote.fetch_missing([manifest])).check_reachable()
            tree = await self._decoder.measure(await self._blobs.get(manifest))
            (await self._remote.fetch_missing(map(Digest, tree.blob_sizes))).check_reachable()
            for digest in tree.blob_sizes:
                await self._blobs.get(Digest(digest))
        except (IntegrityError, NotFound) as bad:
            self.clear()
            return bad.message
        return ""

    async def _check_sizes(self, tree: ManifestSize, subject: str) -> None:
        """Raises SpecError where a blob has not as many bytes as the manifest says: it could be unpacked by
        no machine."""
        wanted = tree.blob_sizes
        for digest, found in zip(wanted, await self._blobs.sizes(list(wanted)), strict=True):
            # one that went meanwhile is told when it is used
            if found is not None and found != wanted[digest]:
                raise SpecError(
                    f"{subject}: its manifest says that blob {digest[:12]} has {wanted[digest]} bytes, it "
                    f"has {found}",
                    hints=("pack it again",),
                )

    async def require_blobs(
        self, digests: Iterable[Digest], *, subject: str, max_bytes: int | None = None
    ) -> None:
        """Raises MissingBlobs unless these single blobs are here, SpecError for one of more than `max_bytes`
        bytes."""
        wanted = [digest for digest in digests if digest not in self._present_blobs]
        missing = (await self._remote.find_missing(wanted)).missing if wanted else ()
        if missing:
            raise MissingBlobs(f"the {subject} is not on the server", digests=missing, hints=(RESEND_HINT,))
        if (
            max_bytes is not None
            and wanted
            and any(size is not None and size > max_bytes for size in await self._blobs.sizes(wanted))
        ):
            raise SpecError(
                f"{subject}: it has more than the {max_bytes >> 20} MiB that are allowed",
                hints=("move large files into the code or a dataset",),
            )
        if len(self._present_blobs) >= _MAX_CACHED_MANIFESTS:
            self._present_blobs.clear()
        self._present_blobs.update(wanted)

    def clear(self) -> None:
        """Blobs went: nothing is known any more."""
        self._complete_sizes.clear()
        self._complete_blobs.clear()
        self._present_blobs.clear()
