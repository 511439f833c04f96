"""Which blobs a run's own token may read and refer to: those of its code, data, environment, checkpoints and
files, and those that it sent itself. Of all others it does not even learn whether they are here."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from hopyard.controller.manifests import blobs_of_manifest
from hopyard.domain.ids import Digest, RunId
from hopyard.errors import Forbidden, IntegrityError, MissingBlobs, NotFound, SpecError
from hopyard.interfaces.blobs import Blobs
from hopyard.interfaces.run_store import RunStore
from hopyard.server.manifest_check import MAX_NAMED_DIGESTS, RESEND_HINT
from hopyard.server.run_blobs import RunBlobs

# Of trees with remembered blobs: a replica asks for one in many parts, and what it sends is looked for in all
# checkpoints of its run.
_CACHE_BYTES = 64 * 1024 * 1024
_DIGEST_BYTES = 32
_ENTRY_OVERHEAD_BYTES = 512  # about what a tree takes beside its blobs


class BlobAccess:
    """Answers for one server; remembers the blobs of trees that were asked for last (32 bytes each)."""

    def __init__(self, runs: RunStore, blobs: Blobs) -> None:
        self._runs, self._blobs = runs, blobs
        self._trees: OrderedDict[Digest, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._uploads = RunBlobs()

    def record_sent(self, run: RunId, digests: Iterable[Digest]) -> None:
        """The run's own token sent these blobs; they are stored."""
        self._uploads.add(run, digests)

    async def find_unsent(self, run: RunId, digests: Iterable[Digest]) -> list[Digest]:
        """Those of the blobs that the run has to send before it may refer to them, in order, each once."""
        asked = dict.fromkeys(digests)
        strange = [digest for digest in asked if not self._uploads.has(run, digest)]
        if strange:
            trees, _ = await self._blobs_of_run(run, include_data=False)
            held = [await self._readable_members(tree) for tree in trees]
            strange = [
                digest
                for digest in strange
                if digest not in trees
                and not any(_contains(members, bytes.fromhex(digest)) for members in held)
            ]
        unknown = set(strange)
        unknown.update(await self._blobs.find_missing([digest for digest in asked if digest not in unknown]))
        return [digest for digest in asked if digest in unknown]

    async def check_tree(self, run: RunId, manifest: Digest, *, subject: str) -> Iterable[Digest]:
        """The tree's blobs. Raises MissingBlobs naming what of the tree the run has not sent and could not
        read; SpecError where it is no manifest."""
        lacking, blobs = await self.find_unsent(run, [manifest]), {manifest}
        if not lacking:
            try:
                data = await self._blobs.get(manifest)
            except (IntegrityError, NotFound) as bad:  # damaged, and set aside by that: it is wanted again
                raise MissingBlobs(
                    f"the manifest of the {subject} cannot be read: {bad.message}",
                    digests=[manifest],
                    hints=(RESEND_HINT,),
                ) from bad
            try:
                blobs |= await blobs_of_manifest(data)
            except IntegrityError as bad:
                raise SpecError(f"{subject}: blob {manifest[:12]} is no manifest: {bad.message}") from bad
            lacking = await self.find_unsent(run, blobs)
        if lacking:
            raise MissingBlobs(
                f"the run has not uploaded {len(lacking)} of the blobs of the {subject}",
                digests=lacking[:MAX_NAMED_DIGESTS],
                hints=(RESEND_HINT,),
            )
        return blobs

    def record_tree(self, run: RunId, blobs: Iterable[Digest]) -> None:
        """They are of a tree of the run from now on."""
        self._uploads.mark_recorded(run, blobs)

    async def may_know_presence(self, run: RunId, digest: Digest) -> bool:
        """Whether the run may learn whether a single blob is here."""
        if self._uploads.has(run, digest):
            return True
        trees, single = await self._blobs_of_run(run)
        if digest in trees or digest in single:
            return True
        for tree in trees:
            if _contains(await self._readable_members(tree), bytes.fromhex(digest)):
                return True
        return False

    async def check_readable(self, run: RunId, manifest: Digest, digests: Sequence[Digest]) -> None:
        """Raises Forbidden unless the run may read all of these; NotFound when the manifest is not here."""
        trees, single = await self._blobs_of_run(run)
        others = [digest for digest in digests if digest != manifest]
        if manifest in trees:
            if not others or _contains_all(await self._members(manifest), others):
                return
        elif manifest in single and not others:
            return
        raise Forbidden(
            "the token of a run permits access to its own code, data, environment and checkpoints only"
        )

    async def _blobs_of_run(
        self, run_id: RunId, *, include_data: bool = True
    ) -> tuple[set[Digest], set[Digest]]:
        """The manifests and the single blobs that belong to a run; without `include_data` those alone of
        which its own trees may consist."""
        run = await self._runs.get(run_id)
        spec, environment = run.spec, run.spec.environment
        trees = {spec.code, run.artifact, *(ref.manifest for ref in spec.datasets if include_data)}
        if spec.resume is not None:
            trees.add(spec.resume.manifest)
        # With damaged ones: of the ranks that resume from one the first finds out, and the others are to be
        # answered alike.
        trees.update(saved.manifest for saved in await self._runs.checkpoints(run_id, damaged=True))
        single = {environment.requirements, environment.lock, spec.git.diff if spec.git else None}
        return {digest for digest in trees if digest}, {digest for digest in single if digest}

    async def _readable_members(self, manifest: Digest) -> bytes:
        """As `_members`; none of a tree with a damaged or lost manifest: a run must not lose what it saves
        for another checkpoint's fault."""
        try:
            return await self._members(manifest)
        except (IntegrityError, NotFound):
            return b""

    async def _members(self, manifest: Digest) -> bytes:
        """The raw digests of a tree's blobs, sorted, one after another."""
        found = self._trees.get(manifest)
        if found is None:
            data = await self._blobs.get(manifest)
            found = await asyncio.to_thread(_sorted_members, data)
            if manifest not in self._trees:  # else another request was faster
                self._trees[manifest] = found
                self._cached_bytes += len(found) + _ENTRY_OVERHEAD_BYTES
            while self._cached_bytes > _CACHE_BYTES and len(self._trees) > 1:
                _, forgotten = self._trees.popitem(last=False)
                self._cached_bytes -= len(forgotten) + _ENTRY_OVERHEAD_BYTES
        else:
            self._trees.move_to_end(manifest)
        return found


def _sorted_members(encoded: bytes) -> bytes:
    files = msgspec.json.decode(encoded)["files"]  # checked when the tree was accepted
    return b"".join(sorted({bytes.fromhex(chunk) for file in files for chunk in file[3]}))


def _contains_all(members: bytes, digests: Sequence[Digest]) -> bool:
    return all(_contains(members, bytes.fromhex(digest)) for digest in digests)


def _contains(members: bytes, raw: bytes) -> bool:
    low, high = 0, len(members) // _DIGEST_BYTES
    while low < high:
        middle = (low + high) // 2
        at = members[middle * _DIGEST_BYTES : (middle + 1) * _DIGEST_BYTES]
        if at == raw:
            return True
        low, high = (middle + 1, high) if at < raw else (low, middle)
    return False
