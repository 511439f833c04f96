"""Whether all bytes of a manifest are here: asked at every submission, so the answer is remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from hopyard.controller.manifests import Decoder, Tree
from hopyard.domain.ids import Digest
from hopyard.errors import IntegrityError, MissingBlobs, NotFound, SpecError
from hopyard.interfaces.blobs import Blobs
from hopyard.interfaces.storage_store import StorageStore
from hopyard.server.remote_blobs import RemoteBlobs

_REMEMBERED = 4096
NAMED = 10_000  # missing digests that one answer names; the client asks again after it has sent these
HINT = (
    "send the same files once more (`hop run`, `hop dataset push`), or restore them from a backup; "
    "`hop doctor --verify` names all that is missing"
)


@dataclass(frozen=True, slots=True)
class TreeSize:
    """What a manifest amounts to."""

    size_bytes: int
    files: int


class Trees:
    """Checks manifests against the blobs."""

    def __init__(
        self, blobs: Blobs, storage: StorageStore, remote: RemoteBlobs, *, now: Callable[[], datetime]
    ) -> None:
        self._blobs, self._storage, self._remote, self._now = blobs, storage, remote, now
        self._decoder = Decoder()
        self._whole: dict[Digest, TreeSize] = {}
        self._complete: set[Digest] = set()  # as far as is known: their sizes were not compared
        self._bad: dict[Digest, str] = {}  # blobs that are no manifests: they are not decoded again
        self._there: set[Digest] = set()

    async def whole(self, manifest: Digest, *, what: str) -> TreeSize:
        """The tree, once all its blobs are here, or with another server of the database. Raises MissingBlobs
        naming those that are not, SpecError when the blob is no manifest. `what` says in the message what the
        tree is ("code")."""
        known = self._whole.get(manifest)
        if known is not None:
            return known
        if (await self._remote.bring([manifest])).lacking:
            raise MissingBlobs(
                f"the manifest of the {what} is not on the server", digests=[manifest], hints=(HINT,)
            )
        if manifest in self._bad:
            raise SpecError(f"{what}: blob {manifest[:12]} is no manifest: {self._bad[manifest]}")
        try:
            data = await self._blobs.get(manifest)
        except (IntegrityError, NotFound) as bad:  # damaged, and set aside by that: the client sends it again
            self.forget()
            raise MissingBlobs(
                f"the manifest of the {what} cannot be read: {bad.message}", digests=[manifest], hints=(HINT,)
            ) from bad
        try:
            tree = await self._decoder.tree(data)
        except IntegrityError as bad:
            if len(self._bad) >= _REMEMBERED:
                self._bad.clear()
            self._bad[manifest] = bad.message
            raise SpecError(
                f"{what}: blob {manifest[:12]} is no manifest: {bad.message}", hints=bad.hints
            ) from bad
        missing = (await self._remote.find(map(Digest, tree.blob_sizes))).lacking
        if missing:
            message = f"{len(missing)} of the blobs of the {what} are not on the server"
            raise MissingBlobs(message, digests=missing[:NAMED], hints=(HINT,))
        await self._check_sizes(tree, what)
        await self._storage.record_tree(manifest, tree.size_bytes, now=self._now())
        if len(self._whole) >= _REMEMBERED:
            self._whole.clear()
        found = self._whole[manifest] = TreeSize(tree.size_bytes, tree.files)
        return found

    async def blobs(self, manifest: Digest) -> set[Digest]:
        """The manifest and what it refers to; raises NotFound, IntegrityError."""
        return {
            manifest,
            *map(Digest, (await self._decoder.tree(await self._blobs.get(manifest))).blob_sizes),
        }

    async def lack(self, manifest: Digest) -> str:
        """What a tree is known to lack without reading its bytes: blobs that were found damaged, or are gone.
        "" where nothing is known to be wrong, also where another server may have it."""
        if manifest in self._whole or manifest in self._complete:
            return ""
        try:
            search = await self._remote.find([manifest])
            if not search.lacking:
                if await self._blobs.missing([manifest]):
                    return ""  # another server has it
                tree = await self._decoder.tree(await self._blobs.get(manifest))
                search = await self._remote.find(map(Digest, tree.blob_sizes))
        except (IntegrityError, NotFound) as bad:
            self.forget()
            return bad.message
        if search.lacking and not search.unasked:
            return f"{len(search.lacking)} of its blobs were damaged, or are gone"
        if not search.lacking:
            if len(self._complete) >= _REMEMBERED:
                self._complete.clear()
            self._complete.add(manifest)
        return ""

    async def damage(self, manifest: Digest) -> str:
        """What is wrong with a tree, once every byte of it was read; "" where nothing is. What is damaged is
        set aside by that. What is not here is fetched; raises BlobsElsewhere where it cannot be."""
        try:
            (await self._remote.bring([manifest])).check_elsewhere()
            tree = await self._decoder.tree(await self._blobs.get(manifest))
            (await self._remote.bring(map(Digest, tree.blob_sizes))).check_elsewhere()
            for digest in tree.blob_sizes:
                await self._blobs.get(Digest(digest))
        except (IntegrityError, NotFound) as bad:
            self.forget()
            return bad.message
        return ""

    async def _check_sizes(self, tree: Tree, what: str) -> None:
        """Raises SpecError where a blob has not as many bytes as the manifest says: it could be unpacked by
        no machine."""
        wanted = tree.blob_sizes
        for digest, found in zip(wanted, await self._blobs.sizes(list(wanted)), strict=True):
            # one that went meanwhile is told when it is used
            if found is not None and found != wanted[digest]:
                raise SpecError(
                    f"{what}: its manifest says that blob {digest[:12]} has {wanted[digest]} bytes, it "
                    f"has {found}",
                    hints=("pack it again",),
                )

    async def there(self, digests: Iterable[Digest], *, what: str, at_most: int | None = None) -> None:
        """Raises MissingBlobs unless these single blobs are here, SpecError for one of more than `at_most`
        bytes."""
        wanted = [digest for digest in digests if digest not in self._there]
        missing = (await self._remote.find(wanted)).lacking if wanted else ()
        if missing:
            raise MissingBlobs(f"the {what} is not on the server", digests=missing, hints=(HINT,))
        if (
            at_most is not None
            and wanted
            and any(size is not None and size > at_most for size in await self._blobs.sizes(wanted))
        ):
            raise SpecError(
                f"{what}: it has more than the {at_most >> 20} MiB that are taken",
                hints=("put large files into the code or a dataset",),
            )
        if len(self._there) >= _REMEMBERED:
            self._there.clear()
        self._there.update(wanted)

    def forget(self) -> None:
        """Blobs went: nothing is known any more."""
        self._whole.clear()
        self._complete.clear()
        self._there.clear()
