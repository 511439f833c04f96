"""Access of a run's own token to blobs: those of its code, data, environment, checkpoints and files, and
those that it uploaded itself. For all other blobs, the run cannot even find out whether they exist."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec

from hopyard.controller.manifests import blobs_of_manifest
from hopyard.domain.ids import Digest, RunId
from hopyard.errors import Forbidden, IntegrityError, MissingBlobs, NotFound, SpecError
from hopyard.interfaces.blobs import Blobs
from hopyard.interfaces.run_store import RunStore
from hopyard.server.manifest_check import MAX_NAMED_DIGESTS, RESEND_HINT
from hopyard.server.run_blobs import RunBlobs

# Size of the cache of trees. A replica requests a tree in many parts, and its uploads are checked against all
# checkpoints of its run.
_CACHE_BYTES = 64 * 1024 * 1024
_DIGEST_BYTES = 32
_ENTRY_OVERHEAD_BYTES = 512  # about the memory of a tree beside its blobs


class BlobAccess:
    """Checks access for one server. Caches the digests of recently used trees (32 bytes per blob)."""

    def __init__(self, runs: RunStore, blobs: Blobs) -> None:
        self._runs, self._blobs = runs, blobs
        self._trees: OrderedDict[Digest, bytes] = OrderedDict()
        self._cached_bytes = 0
        self._uploads = RunBlobs()

    def record_sent(self, run: RunId, digests: Iterable[Digest]) -> None:
        """Records that the run's own token uploaded these blobs."""
        self._uploads.add(run, digests)

    async def find_unsent(self, run: RunId, digests: Iterable[Digest]) -> list[Digest]:
        """Returns the blobs that the run must upload before it may reference them, in order and without
        duplicates."""
        requested = dict.fromkeys(digests)
        unproven = [digest for digest in requested if not self._uploads.has(run, digest)]
        if unproven:
            trees, _ = await self._blobs_of_run(run, include_data=False)
            members_by_tree = [await self._readable_members(tree) for tree in trees]
            unproven = [
                digest
                for digest in unproven
                if digest not in trees
                and not any(_contains(members, bytes.fromhex(digest)) for members in members_by_tree)
            ]
        unsent = set(unproven)
        unsent.update(
            await self._blobs.find_missing([digest for digest in requested if digest not in unsent])
        )
        return [digest for digest in requested if digest in unsent]

    async def check_tree(self, run: RunId, manifest: Digest, *, subject: str) -> Iterable[Digest]:
        """Returns the tree's blobs. Raises MissingBlobs with the blobs of the tree that the run has not
        uploaded and could not read; SpecError if it is not a manifest."""
        missing, blobs = await self.find_unsent(run, [manifest]), {manifest}
        if not missing:
            try:
                data = await self._blobs.get(manifest)
            except (IntegrityError, NotFound) as error:  # damaged and thereby set aside: it is needed again
                raise MissingBlobs(
                    f"the manifest of the {subject} cannot be read: {error.message}",
                    digests=[manifest],
                    hints=(RESEND_HINT,),
                ) from error
            try:
                blobs |= await blobs_of_manifest(data)
            except IntegrityError as error:
                raise SpecError(
                    f"{subject}: blob {manifest[:12]} is not a manifest: {error.message}"
                ) from error
            missing = await self.find_unsent(run, blobs)
        if missing:
            raise MissingBlobs(
                f"the run has not uploaded {len(missing)} of the blobs of the {subject}",
                digests=missing[:MAX_NAMED_DIGESTS],
                hints=(RESEND_HINT,),
            )
        return blobs

    def record_tree(self, run: RunId, blobs: Iterable[Digest]) -> None:
        """Records that these blobs belong to a tree of the run."""
        self._uploads.mark_recorded(run, blobs)

    async def may_check_existence(self, run: RunId, digest: Digest) -> bool:
        """Returns whether the run may find out whether a single blob exists."""
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
        """Raises Forbidden unless the run may read all of these blobs; NotFound when the manifest is
        missing."""
        trees, single = await self._blobs_of_run(run)
        members_requested = [digest for digest in digests if digest != manifest]
        if manifest in trees:
            if not members_requested or _contains_all(await self._members(manifest), members_requested):
                return
        elif manifest in single and not members_requested:
            return
        raise Forbidden(
            "the token of a run permits access to its own code, data, environment and checkpoints only"
        )

    async def _blobs_of_run(
        self, run_id: RunId, *, include_data: bool = True
    ) -> tuple[set[Digest], set[Digest]]:
        """Returns the manifests and the single blobs of a run. Without `include_data`, manifests of datasets
        are omitted: a run may not reference their blobs in its own trees."""
        run = await self._runs.get(run_id)
        spec, environment = run.spec, run.spec.environment
        trees = {spec.code, run.artifact, run.run_folder, spec.initial_folder}
        if include_data:
            trees.update(ref.manifest for ref in spec.datasets)
            for other in spec.reads:
                with suppress(NotFound):
                    trees.add((await self._runs.get(other)).artifact)
        if spec.resume is not None:
            trees.add(spec.resume.manifest)
        # Damaged ones count as well. The first rank that resumes from one detects the damage, and the other
        # ranks must get the same response.
        checkpoints = await self._runs.checkpoints(run_id, damaged=True, own=True)
        trees.update(checkpoint.manifest for checkpoint in checkpoints)
        if include_data and spec.evaluation is not None:
            trees.update(await self._evaluated_checkpoints(spec.evaluation.run))
        single = {environment.requirements, environment.lock, spec.git.diff if spec.git else None}
        return {digest for digest in trees if digest}, {digest for digest in single if digest}

    async def _evaluated_checkpoints(self, run: RunId) -> set[Digest]:
        try:
            checkpoints = await self._runs.checkpoints(run, damaged=True, own=True)
        except NotFound:  # removed meanwhile
            return set()
        return {checkpoint.manifest for checkpoint in checkpoints}

    async def _readable_members(self, manifest: Digest) -> bytes:
        """As `_members`, but b"" for a tree with a damaged or lost manifest. A damaged checkpoint must not
        prevent a run from saving another one."""
        try:
            return await self._members(manifest)
        except (IntegrityError, NotFound):
            return b""

    async def _members(self, manifest: Digest) -> bytes:
        """Returns the raw digests of a tree's blobs, sorted and concatenated."""
        members = self._trees.get(manifest)
        if members is None:
            data = await self._blobs.get(manifest)
            members = await asyncio.to_thread(_sorted_members, data)
            if manifest not in self._trees:  # else another request has added it meanwhile
                self._trees[manifest] = members
                self._cached_bytes += len(members) + _ENTRY_OVERHEAD_BYTES
            while self._cached_bytes > _CACHE_BYTES and len(self._trees) > 1:
                _, evicted = self._trees.popitem(last=False)
                self._cached_bytes -= len(evicted) + _ENTRY_OVERHEAD_BYTES
        else:
            self._trees.move_to_end(manifest)
        return members


def _sorted_members(encoded: bytes) -> bytes:
    files = msgspec.json.decode(encoded)["files"]  # checked when the tree was accepted
    return b"".join(sorted({bytes.fromhex(chunk) for file in files for chunk in file[3]}))


def _contains_all(members: bytes, digests: Sequence[Digest]) -> bool:
    return all(_contains(members, bytes.fromhex(digest)) for digest in digests)


def _contains(members: bytes, raw: bytes) -> bool:
    low, high = 0, len(members) // _DIGEST_BYTES
    while low < high:
        middle = (low + high) // 2
        candidate = members[middle * _DIGEST_BYTES : (middle + 1) * _DIGEST_BYTES]
        if candidate == raw:
            return True
        low, high = (middle + 1, high) if candidate < raw else (low, middle)
    return False
