"""Bytes by their digest: ask what is missing, put, fetch, verify."""

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

# parts of files have 8 MiB at most; the manifest of two million files is larger
MAX_BLOB_BYTES = 256 * 1024 * 1024
MAX_PACK_BYTES = 64 * 1024 * 1024
# an answer up to this size is read whole before it begins, so that damage is told as what it is
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
    """In the order asked for, each once."""

    missing: Sequence[Digest]


class ScrubIn(RequestModel):
    after: Hex | None = None


class ScrubOut(Struct, frozen=True):
    """size_bytes: how much was read. last: where to go on; null when there are no more, and only then: lost,
    blobs that are in use and not here, the first thousand of `lost_count`."""

    size_bytes: int
    damaged: Sequence[Digest]
    last: Digest | None
    lost: Sequence[Digest]
    lost_count: int


class FetchIn(RequestModel):
    """manifest: the tree that the blobs belong to, or the one blob that is asked for."""

    manifest: Hex
    digests: Annotated[tuple[Hex, ...], Meta(max_length=60_000)]


class LocateOut(Struct, frozen=True):
    """For each blob asked for, in order, a path; null where it is no file of its own."""

    paths: Sequence[str | None]


class VerifyOut(Struct, frozen=True):
    """ok: a good copy is here. Otherwise there was none, or a damaged one that is set aside now: push it
    again."""

    ok: bool


def blob_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    reach = services.blob_access

    async def check_storage(ask: ApiRequest[Any, Any]) -> None:
        """Raises QuotaExceeded for a user who stores too much already, and for a run of a user who stores
        twice as much as allowed."""
        if ask.caller.run is None:
            await services.storage.check_quota(ask.caller.user)
        elif services.storage.has_quota:
            await services.storage.check_run_quota(await storage_user(ask.caller, services.runs))

    async def store(ask: ApiRequest[Any, Any], blobs: Sequence[tuple[Digest, bytes]]) -> None:
        """What a user or one of the user's runs sends counts to the user's storage from then on."""
        new = (
            set(await services.blobs.find_missing([digest for digest, _ in blobs]))
            if services.storage.has_quota
            else set()
        )
        if len(blobs) == 1:
            await services.blobs.put(*blobs[0])
        else:
            await services.blobs.put_many(blobs)
        if new:
            await services.storage.record_uploads(
                await storage_user(ask.caller, services.runs),
                [(digest, len(data)) for digest, data in blobs if digest in new],
            )
        if ask.caller.run is not None:
            reach.record_sent(ask.caller.run, [digest for digest, _ in blobs])

    async def missing(ask: ApiRequest[Empty, MissingIn]) -> MissingOut:
        """Return which of these blobs the server lacks.
        With the token of a run, all blobs count as missing except its uploads and the blobs of the run."""
        if ask.caller.run is not None:
            return MissingOut(await reach.find_unsent(ask.caller.run, map(Digest, ask.body.digests)))
        return MissingOut(await services.blobs.find_missing([Digest(digest) for digest in ask.body.digests]))

    async def put(ask: ApiRequest[Empty, Empty]) -> Empty:
        """Store one blob; it is durable when the response arrives.
        422 `damaged`: the bytes have another digest."""
        await check_storage(ask)
        digest, data = Digest(ask.path["digest"]), await ask.read_body(MAX_BLOB_BYTES)
        await check_storage(ask)  # others of the user came meanwhile
        await store(ask, [(digest, data)])
        return Empty()

    async def put_pack(ask: ApiRequest[Empty, Empty]) -> Empty:
        """Store many small blobs, all or none; they are durable when the response arrives.
        422 `damaged`: a blob has another digest."""
        await check_storage(ask)
        body = await ask.read_body(MAX_PACK_BYTES)
        blobs = await asyncio.to_thread(split_frames, body)
        await store(ask, blobs)
        return Empty()

    async def fetch(ask: ApiRequest[Empty, FetchIn]) -> Response:
        """Return these blobs in the requested order, checked.
        Blobs of another server of the database are fetched from there.

        409 `missing_blobs` lists the blobs that no server has; `blobs_elsewhere`: an unreachable server may
        have them. The token of a run can request only blobs of the run.
        """
        manifest, digests = Digest(ask.body.manifest), [Digest(digest) for digest in ask.body.digests]
        if ask.caller.run is not None:
            await reach.check_readable(ask.caller.run, manifest, digests)
        if ask.caller.server:
            found = RemoteLookup(await services.blobs.find_missing(digests))
        else:
            found = await services.remote_blobs.fetch_missing(digests)
        found.check_found("blobs asked for", hints=_MISSING_HINTS)
        await ask.lease.reserve_response(_BATCH_BYTES)
        frames, rest = FrameWriter(), services.blobs.get_many(digests)
        try:
            async for digest, data in rest:
                frames.add(digest, data)
                if frames.size >= _BATCH_BYTES:
                    await ask.lease.reserve_response(frames.size)
                    return StreamingResponse(
                        _logging_damage(services, stream_frames(frames, rest)),
                        media_type="application/octet-stream",
                    )
        except (IntegrityError, NotFound):
            services.manifests.clear()
            raise
        return FramesResponse(frames.take_pieces())

    async def locate(ask: ApiRequest[Empty, FetchIn]) -> LocateOut:
        """Return the paths of these blobs on the server's machine, for readers on the same machine.

        Readers must check the digests. The token of a run can request only blobs of the run.
        """
        manifest, digests = Digest(ask.body.manifest), [Digest(digest) for digest in ask.body.digests]
        if ask.caller.run is not None:
            await reach.check_readable(ask.caller.run, manifest, digests)
        found = (
            await services.blobs.locate(digests)
            if isinstance(services.blobs, BlobLocator)
            else [None] * len(digests)
        )
        return LocateOut(found)

    async def verify(ask: ApiRequest[Empty, Empty]) -> VerifyOut:
        """Read and check a blob. A damaged blob is set aside, so that the next push replaces it.

        For the token of a run, only blobs of the run exist.
        """
        if ask.caller.run is not None and not await reach.may_know_presence(
            ask.caller.run, Digest(ask.path["digest"])
        ):
            return VerifyOut(False)
        try:
            await services.blobs.get(Digest(ask.path["digest"]))
        except (IntegrityError, NotFound):
            services.manifests.clear()
            return VerifyOut(False)
        return VerifyOut(True)

    async def scrub(ask: ApiRequest[Empty, ScrubIn]) -> ScrubOut:
        """Read and check stored blobs in the order of their digests, some per request: the next request
        continues after `last`. Damaged blobs are set aside, so that the next push replaces them. The last
        response lists the referenced blobs that are missing. Only for the owner of the server."""
        check_owner(ask.caller, services.queue_cache.owner, "checks its blobs")
        found = await services.blobs.scrub(None if ask.body.after is None else Digest(ask.body.after))
        if found.damaged:
            services.manifests.clear()
        lost = await _find_lost(services) if found.last is None else ()
        return ScrubOut(found.size_bytes, found.damaged, found.last, lost[:_MAX_LISTED_LOST], len(lost))

    one = BinaryBody("the blob's bytes")
    pack = BinaryBody(f"at most {MAX_PACK_BYTES >> 20} MiB and {MAX_FRAMES} blobs; {FRAMES_DESCRIPTION}")
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
            body=pack,
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
            body=one,
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
    """Blobs that are in use and that no server has. While one cannot be asked, none is known to be lost."""
    search = await services.remote_blobs.find_missing(await services.blob_collector.find_lost())
    return () if search.unreachable else search.missing


async def _logging_damage(services: Services, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """An answer that has begun cannot tell of damage any more: the connection breaks off, and the client asks
    `verify`."""
    try:
        async for piece in frames:
            yield piece
    except (IntegrityError, NotFound):
        services.manifests.clear()
        raise
