"""Blobs by digest: find missing ones, upload, fetch, verify."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.responses import Response, StreamingResponse

from hopyard.config.schemas.fields import Hex, RequestModel
from hopyard.domain.access import Scope
from hopyard.domain.ids import Digest
from hopyard.errors import IntegrityError, NotFound
from hopyard.interfaces.blob_locator import BlobLocator
from hopyard.server.authorization import check_owner, storage_user
from hopyard.server.blob_frames import (
    FRAMES_DESCRIPTION,
    MAX_FRAMES,
    FramesResponse,
    FrameWriter,
    split_frames,
    stream_frames,
)
from hopyard.server.endpoint import ApiRequest, BinaryBody, Empty, Endpoint
from hopyard.server.remote_blobs import RemoteLookup
from hopyard.server.services import Services
from hopyard.server.store_blobs import store_blobs

# a chunk of a file has at most 8 MiB, but the manifest of two million files is larger
MAX_BLOB_BYTES = 256 * 1024 * 1024
MAX_PACK_BYTES = 64 * 1024 * 1024
# a response up to this size is read completely before it begins, so that damage is reported as an error
_BATCH_BYTES = 12 * 1024 * 1024

_MISSING_HINTS = (
    "push the same dataset or submit the same code again, or restore them from a backup",
    "list all missing blobs with `hop doctor --verify`",
)
_MAX_LISTED_LOST = 1000
_READ_ONLY_REASON = "it changes nothing"
_BYTES_REASON = "bytes that are not referenced yet"


class MissingIn(RequestModel):
    digests: Annotated[tuple[Hex, ...], Meta(max_length=60_000)]


class MissingOut(Struct, frozen=True):
    """In the requested order, without duplicates."""

    missing: Sequence[Digest]


class ScrubIn(RequestModel):
    after: Hex | None = None


class ScrubOut(Struct, frozen=True):
    """size_bytes: how many bytes were read. last: where to continue; null at the end. Only then, lost has the
    blobs that are in use but missing, the first thousand of `lost_count`."""

    size_bytes: int
    damaged: Sequence[Digest]
    last: Digest | None
    lost: Sequence[Digest]
    lost_count: int


class FetchIn(RequestModel):
    """manifest: the tree of the requested blobs, or the single requested blob."""

    manifest: Hex
    digests: Annotated[tuple[Hex, ...], Meta(max_length=60_000)]


class LocateOut(Struct, frozen=True):
    """A path for each requested blob, in order; null for a blob without a file of its own."""

    paths: Sequence[str | None]


class VerifyOut(Struct, frozen=True):
    """ok: the server has a valid copy. Otherwise the blob was missing, or damaged and is now set aside;
    upload it again."""

    ok: bool


def blob_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    blob_access = services.blob_access

    async def check_storage(request: ApiRequest[Any, Any]) -> None:
        """Raises QuotaExceeded for a user beyond the quota, and for a run whose user stores twice the
        quota."""
        if request.caller.run is None:
            await services.storage.check_quota(request.caller.user)
        elif services.storage.has_quota:
            await services.storage.check_run_quota(await storage_user(request.caller, services.runs))

    async def store(request: ApiRequest[Any, Any], blobs: Sequence[tuple[Digest, bytes]]) -> None:
        """Stores blobs and counts them toward the storage of the user."""
        user = await storage_user(request.caller, services.runs) if services.storage.has_quota else ""
        await store_blobs(services, user, blobs)
        if request.caller.run is not None:
            blob_access.record_sent(request.caller.run, [digest for digest, _ in blobs])

    async def missing(request: ApiRequest[Empty, MissingIn]) -> MissingOut:
        """Return which of these blobs the server lacks.
        With the token of a run, all blobs count as missing except its uploads and the blobs of the run."""
        if request.caller.run is not None:
            return MissingOut(
                await blob_access.find_unsent(request.caller.run, map(Digest, request.body.digests))
            )
        return MissingOut(
            await services.blobs.find_missing([Digest(digest) for digest in request.body.digests])
        )

    async def put(request: ApiRequest[Empty, Empty]) -> Empty:
        """Store one blob; it is durable when the response arrives.
        422 `damaged`: the bytes have another digest."""
        await check_storage(request)
        digest, data = Digest(request.path["digest"]), await request.read_body(MAX_BLOB_BYTES)
        await check_storage(request)  # other uploads of the user may have completed meanwhile
        await store(request, [(digest, data)])
        return Empty()

    async def put_pack(request: ApiRequest[Empty, Empty]) -> Empty:
        """Store many small blobs, all or none; they are durable when the response arrives.
        422 `damaged`: a blob has another digest."""
        await check_storage(request)
        body = await request.read_body(MAX_PACK_BYTES)
        blobs = await asyncio.to_thread(split_frames, body)
        await store(request, blobs)
        return Empty()

    async def fetch(request: ApiRequest[Empty, FetchIn]) -> Response:
        """Return these blobs in the requested order, checked.
        Blobs of another server of the database are fetched from there.

        409 `missing_blobs` lists the blobs that no server has; `blobs_elsewhere`: an unreachable server may
        have them. The token of a run can request only blobs of the run.
        """
        manifest, digests = Digest(request.body.manifest), [Digest(digest) for digest in request.body.digests]
        if request.caller.run is not None:
            await blob_access.check_readable(request.caller.run, manifest, digests)
        if request.caller.server:
            lookup = RemoteLookup(await services.blobs.find_missing(digests))
        else:
            lookup = await services.remote_blobs.fetch_missing(digests)
        lookup.check_found("requested blobs", hints=_MISSING_HINTS)
        await request.lease.reserve_response(_BATCH_BYTES)
        frames, remaining = FrameWriter(), services.blobs.get_many(digests)
        try:
            async for digest, data in remaining:
                frames.add(digest, data)
                if frames.size >= _BATCH_BYTES:
                    await request.lease.reserve_response(frames.size)
                    return StreamingResponse(
                        _logging_damage(services, stream_frames(frames, remaining)),
                        media_type="application/octet-stream",
                    )
        except (IntegrityError, NotFound):
            services.manifests.clear()
            raise
        return FramesResponse(frames.take_pieces())

    async def locate(request: ApiRequest[Empty, FetchIn]) -> LocateOut:
        """Return the paths of these blobs on the server's machine, for readers on the same machine.

        Readers must check the digests. The token of a run can request only blobs of the run.
        """
        manifest, digests = Digest(request.body.manifest), [Digest(digest) for digest in request.body.digests]
        if request.caller.run is not None:
            await blob_access.check_readable(request.caller.run, manifest, digests)
        paths = (
            await services.blobs.locate(digests)
            if isinstance(services.blobs, BlobLocator)
            else [None] * len(digests)
        )
        return LocateOut(paths)

    async def verify(request: ApiRequest[Empty, Empty]) -> VerifyOut:
        """Read and check a blob. A damaged blob is set aside, so that the next push replaces it.

        For the token of a run, only blobs of the run exist.
        """
        if request.caller.run is not None and not await blob_access.may_check_existence(
            request.caller.run, Digest(request.path["digest"])
        ):
            return VerifyOut(False)
        try:
            await services.blobs.get(Digest(request.path["digest"]))
        except (IntegrityError, NotFound):
            services.manifests.clear()
            return VerifyOut(False)
        return VerifyOut(True)

    async def scrub(request: ApiRequest[Empty, ScrubIn]) -> ScrubOut:
        """Read and check stored blobs in the order of their digests, some per request: the next request
        continues after `last`. Damaged blobs are set aside, so that the next push replaces them. The last
        response lists the referenced blobs that are missing. Only for the owner of the server."""
        check_owner(request.caller, services.queue_cache.owner, "checks its blobs")
        result = await services.blobs.scrub(
            None if request.body.after is None else Digest(request.body.after)
        )
        if result.damaged:
            services.manifests.clear()
        lost = await _find_lost(services) if result.last is None else ()
        return ScrubOut(result.size_bytes, result.damaged, result.last, lost[:_MAX_LISTED_LOST], len(lost))

    blob_body = BinaryBody("the blob's bytes")
    pack_body = BinaryBody(f"at most {MAX_PACK_BYTES >> 20} MiB and {MAX_FRAMES} blobs; {FRAMES_DESCRIPTION}")
    return [
        Endpoint(
            "POST",
            "/blobs/missing",
            missing,
            body=MissingIn,
            returns=MissingOut,
            auth="run",
            scope=Scope.READ,
            unaudited_reason=_READ_ONLY_REASON,
            is_heavy=True,
        ),
        Endpoint(
            "POST",
            "/blobs/pack",
            put_pack,
            body=pack_body,
            auth="run",
            errors=(507,),
            rate="upload_bytes",
            unaudited_reason=_BYTES_REASON,
        ),
        Endpoint(
            "POST",
            "/blobs/fetch",
            fetch,
            body=FetchIn,
            returns=BinaryBody(FRAMES_DESCRIPTION),
            auth="run",
            errors=(404, 409),
            scope=Scope.READ,
            unaudited_reason=_READ_ONLY_REASON,
        ),
        Endpoint(
            "POST",
            "/blobs/locate",
            locate,
            body=FetchIn,
            returns=LocateOut,
            auth="run",
            errors=(404,),
            scope=Scope.READ,
            unaudited_reason=_READ_ONLY_REASON,
            is_heavy=True,
        ),
        Endpoint(
            "POST",
            "/blobs/scrub",
            scrub,
            body=ScrubIn,
            returns=ScrubOut,
            scope=Scope.ADMIN,
            unaudited_reason=_READ_ONLY_REASON,
        ),
        Endpoint(
            "PUT",
            "/blobs/{digest}",
            put,
            body=blob_body,
            auth="run",
            errors=(507,),
            rate="upload_bytes",
            unaudited_reason=_BYTES_REASON,
        ),
        Endpoint(
            "POST",
            "/blobs/{digest}/verify",
            verify,
            returns=VerifyOut,
            auth="run",
            scope=Scope.READ,
            unaudited_reason=_READ_ONLY_REASON,
        ),
    ]


async def _find_lost(services: Services) -> Sequence[Digest]:
    """Returns blobs that are in use and that no server has; () while a server is unreachable, since it may
    have them."""
    lookup = await services.remote_blobs.find_missing(await services.blob_collector.find_lost())
    return () if lookup.unreachable else lookup.missing


async def _logging_damage(services: Services, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Clears the cache of manifests on damage. A response that has begun cannot report an error: the
    connection is aborted, and the client requests `verify`."""
    try:
        async for piece in frames:
            yield piece
    except (IntegrityError, NotFound):
        services.manifests.clear()
        raise
