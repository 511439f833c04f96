"""The code of a run from a git repository."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from hopyard.config.schemas.fields import LINE, RequestModel
from hopyard.domain.git_address import check_git_host, check_git_ref, parse_git_address
from hopyard.domain.ids import Digest
from hopyard.domain.run import GitState
from hopyard.server.client_watch import cancelled_with_client
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.git_code import GitCode, fetch_git_code
from hopyard.server.keyed_locks import KeyedLocks
from hopyard.server.scratch_folder import scratch_folder
from hopyard.server.services import Services
from hopyard.server.store_blobs import store_blobs

_STORED_BYTES = 16 * 2**20  # blobs that are stored at once
_MAX_PATHS = 2000


class GitCodeIn(RequestModel):
    """address: `https://HOST/PATH`, `ssh://USER@HOST/PATH` or `USER@HOST:PATH`. ref: a branch, a tag, or all
    digits of a commit; "" for the default branch."""

    address: Annotated[str, Meta(min_length=1, max_length=2048, pattern=LINE)]
    ref: Annotated[str, Meta(max_length=255, pattern=LINE)] = ""


class ExcludedFileOut(Struct, frozen=True):
    """A file of the commit that is not part of the code, and why."""

    path: str
    reason: str


class GitCodeOut(Struct, frozen=True):
    """code: the manifest of the files. git: for the spec of the run. paths: of files, the first 2000.
    submodules: which were not fetched. left_out: other files of the commit that the code lacks.
    lfs_pointers: files that are pointers of Git LFS in place of the content. Both: the first 200."""

    code: Digest
    git: GitState
    files: int
    size_bytes: int
    paths: Sequence[str]
    submodules: Sequence[str]
    left_out: Sequence[ExcludedFileOut]
    lfs_pointers: Sequence[str]


def git_code_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    # not the lock of expensive requests: other uploads of the user do not wait for a slow git server
    fetches = KeyedLocks()

    async def fetch(request: ApiRequest[Empty, GitCodeIn]) -> GitCodeOut:
        """Fetch the files of a git repository as the code of a run.

        The server fetches one commit, as its own user, from hosts that its settings allow. It starts nothing
        of the repository, and fetches no submodules and no files of LFS. 403: the host is not allowed.
        """
        user = request.caller.user
        async with cancelled_with_client(request.request), fetches.hold(user):
            return await fetch_code(user, request.body)

    async def fetch_code(user: str, body: GitCodeIn) -> GitCodeOut:
        address = parse_git_address(body.address.strip())
        check_git_host(address, services.git.hosts)
        ref = check_git_ref(body.ref) if body.ref else ""
        await services.storage.check_quota(user)
        async with scratch_folder(services, "git-") as folder:
            found = await fetch_git_code(folder, address, ref, services.git)
            async with services.blob_collector.paused():
                await _store(services, user, found)
            paths = await asyncio.to_thread(_paths, found)
        git = GitState(found.commit, branch="" if ref == found.commit else ref, remote=address.url)
        return GitCodeOut(
            found.tree.digest,
            git,
            found.tree.files,
            found.tree.size_bytes,
            paths,
            found.submodules,
            [ExcludedFileOut(*each) for each in found.left_out],
            found.lfs_pointers,
        )

    return [
        Endpoint(
            "POST",
            "/code/git",
            fetch,
            body=GitCodeIn,
            returns=GitCodeOut,
            errors=(400, 507),
            audit="code.fetch",
        )
    ]


async def _store(services: Services, user: str, found: GitCode) -> None:
    tree = found.tree
    group: list[tuple[Digest, bytes]] = []
    size = 0
    missing = await services.blobs.find_missing(tree.blobs())
    if services.storage.has_quota:
        await services.storage.check_quota(user, added_bytes=tree.size_of(missing))
    for digest in missing:
        group.append((digest, await asyncio.to_thread(tree.read, digest)))
        size += len(group[-1][1])
        if size >= _STORED_BYTES:
            await store_blobs(services, user, group)
            group, size = [], 0
    if group:
        await store_blobs(services, user, group)


def _paths(found: GitCode) -> list[str]:
    return list(dict.fromkeys(piece.path for piece in found.tree.sources.values()))[:_MAX_PATHS]
