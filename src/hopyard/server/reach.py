"""Which blobs a run's own token may read: those of its code, data, environment, checkpoints and files. Nothing else."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from hopyard.domain.ids import Digest, RunId
from hopyard.errors import Forbidden
from hopyard.interfaces.blobs import Blobs
from hopyard.interfaces.run_store import RunStore

_KEPT = 8  # trees whose blobs are remembered: a replica asks for one in many parts
_RAW = 32


class Reach:
    """Answers for one server; remembers the blobs of trees that were asked for last (32 bytes each)."""

    def __init__(self, runs: RunStore, blobs: Blobs) -> None:
        self._runs, self._blobs = runs, blobs
        self._trees: OrderedDict[Digest, bytes] = OrderedDict()

    async def check(self, run: RunId, manifest: Digest, digests: Sequence[Digest]) -> None:
        """Raises Forbidden unless the run may read all of these; NotFound when the manifest is not here."""
        trees, single = await self._of(run)
        others = [digest for digest in digests if digest != manifest]
        if manifest in trees:
            if not others or _all_in(await self._members(manifest), others):
                return
        elif manifest in single and not others:
            return
        raise Forbidden("a run's own token may read its own code, data, environment and checkpoints only")

    async def _of(self, run_id: RunId) -> tuple[set[Digest], set[Digest]]:
        """The manifests and the single blobs that belong to a run."""
        run = await self._runs.get(run_id)
        spec, environment = run.spec, run.spec.environment
        trees = {spec.code, run.artifact, *(ref.manifest for ref in spec.datasets)}
        if spec.resume is not None:
            trees.add(spec.resume.manifest)
        trees.update(saved.manifest for saved in await self._runs.checkpoints(run_id))
        single = {environment.requirements, environment.lock, spec.git.diff if spec.git else None}
        return {digest for digest in trees if digest}, {digest for digest in single if digest}

    async def _members(self, manifest: Digest) -> bytes:
        """The raw digests of a tree's blobs, sorted, one after another."""
        found = self._trees.get(manifest)
        if found is None:
            data = await self._blobs.get(manifest)
            found = self._trees[manifest] = await asyncio.to_thread(_sorted_members, data)
            if len(self._trees) > _KEPT:
                self._trees.popitem(last=False)
        else:
            self._trees.move_to_end(manifest)
        return found


def _sorted_members(encoded: bytes) -> bytes:
    files = msgspec.json.decode(encoded)["files"]  # checked when the tree was accepted
    return b"".join(sorted({bytes.fromhex(chunk) for file in files for chunk in file[3]}))


def _all_in(members: bytes, digests: Sequence[Digest]) -> bool:
    return all(_is_in(members, bytes.fromhex(digest)) for digest in digests)


def _is_in(members: bytes, raw: bytes) -> bool:
    low, high = 0, len(members) // _RAW
    while low < high:
        middle = (low + high) // 2
        at = members[middle * _RAW : (middle + 1) * _RAW]
        if at == raw:
            return True
        low, high = (middle + 1, high) if at < raw else (low, middle)
    return False
