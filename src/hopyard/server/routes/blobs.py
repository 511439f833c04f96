"""Bytes by their digest: ask what is missing, put, fetch, verify."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct
from starlette.responses import Response, StreamingResponse

from hopyard.domain.access import Scope
from hopyard.domain.ids import Digest
from hopyard.errors import IntegrityError, NotFound
from hopyard.interfaces.locates_blobs import LocatesBlobs
from hopyard.server.endpoint import Ask, Endpoint, Nothing, Raw
from hopyard.server.fields import Hex, In
from hopyard.server.frames import (
    FRAMES,
    MOST_FRAMES,
    FramesResponse,
    FrameWriter,
    split_frames,
    stream_frames,
)
from hopyard.server.parts import Parts
from hopyard.server.remote_blobs import Search
from hopyard.server.rights import check_owner, user_of

# parts of files have 8 MiB at most; the manifest of two million files is larger
BLOB_LIMIT = 256 * 1024 * 1024
PACK_LIMIT = 64 * 1024 * 1024
# an answer up to this size is read whole before it begins, so that damage is told as what it is
_AT_ONCE = 12 * 1024 * 1024

_MISSING_HINTS = (
    "push the same dataset, or submit the same code, again; or restore them from a backup",
    "`hop doctor --verify` names all that is missing",
)
_NAMED_LOST = 1000
_READS = "it changes nothing"
_BYTES = "bytes that nothing refers to yet"


class MissingIn(In):
    digests: Annotated[tuple[Hex, ...], Meta(max_length=60_000)]


class MissingOut(Struct, frozen=True):
    """In the order asked for, each once."""

    missing: Sequence[Digest]


class ScrubIn(In):
    after: Hex | None = None


class ScrubOut(Struct, frozen=True):
    """size_bytes: how much was read. last: where to go on; null when there are no more, and only then: lost,
    blobs that are in use and not here, the first thousand of `lost_count`."""

    size_bytes: int
    damaged: Sequence[Digest]
    last: Digest | None
    lost: Sequence[Digest]
    lost_count: int


class FetchIn(In):
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


def blob_endpoints(parts: Parts) -> Sequence[Endpoint[Any, Any]]:
    reach = parts.reach

    async def check_storage(ask: Ask[Any, Any]) -> None:
        """Raises QuotaExceeded for a user who stores too much already, and for a run of a user who stores
        twice as much as allowed."""
        if ask.caller.run is None:
            await parts.storage.check(ask.caller.user)
        elif parts.storage.limited:
            await parts.storage.check_run(await user_of(ask.caller, parts.runs))

    async def store(ask: Ask[Any, Any], blobs: Sequence[tuple[Digest, bytes]]) -> None:
        """What a user or one of the user's runs sends counts to the user's storage from then on."""
        new = (
            set(await parts.blobs.missing([digest for digest, _ in blobs]))
            if parts.storage.limited
            else set()
        )
        if len(blobs) == 1:
            await parts.blobs.put(*blobs[0])
        else:
            await parts.blobs.put_many(blobs)
        if new:
            await parts.storage.uploaded(
                await user_of(ask.caller, parts.runs),
                [(digest, len(data)) for digest, data in blobs if digest in new],
            )
        if ask.caller.run is not None:
            reach.sent(ask.caller.run, [digest for digest, _ in blobs])

    async def missing(ask: Ask[Nothing, MissingIn]) -> MissingOut:
        """Tell which of these blobs the server lacks. To a run's own token all lack but those that it sent,
        and those of the run."""
        if ask.caller.run is not None:
            return MissingOut(await reach.lacking(ask.caller.run, map(Digest, ask.body.digests)))
        return MissingOut(await parts.blobs.missing([Digest(digest) for digest in ask.body.digests]))

    async def put(ask: Ask[Nothing, Nothing]) -> Nothing:
        """Store one blob; it is durable when this is answered.
        422 `damaged`: the bytes have another digest."""
        await check_storage(ask)
        digest, data = Digest(ask.path["digest"]), await ask.read_body(BLOB_LIMIT)
        await check_storage(ask)  # others of the user came meanwhile
        await store(ask, [(digest, data)])
        return Nothing()

    async def put_pack(ask: Ask[Nothing, Nothing]) -> Nothing:
        """Store many small blobs, all or none; durable when this is answered.
        422 `damaged`: one has another digest."""
        await check_storage(ask)
        body = await ask.read_body(PACK_LIMIT)
        blobs = await asyncio.to_thread(split_frames, body)
        await store(ask, blobs)
        return Nothing()

    async def fetch(ask: Ask[Nothing, FetchIn]) -> Response:
        """Send these blobs in the order asked for, checked.
        Those that are not here are fetched from another server of the database.

        409 `missing_blobs` names those that no server has; `blobs_elsewhere`: a server that cannot be asked
        now may have them. A run's own token may ask for what belongs to the run only.
        """
        manifest, digests = Digest(ask.body.manifest), [Digest(digest) for digest in ask.body.digests]
        if ask.caller.run is not None:
            await reach.check(ask.caller.run, manifest, digests)
        if ask.caller.server:
            found = Search(await parts.blobs.missing(digests))
        else:
            found = await parts.remote.bring(digests)
        found.check("blobs asked for", hints=_MISSING_HINTS)
        await ask.lease.reserve(_AT_ONCE)
        frames, rest = FrameWriter(), parts.blobs.get_many(digests)
        try:
            async for digest, data in rest:
                frames.add(digest, data)
                if frames.size >= _AT_ONCE:
                    await ask.lease.reserve(frames.size)
                    return StreamingResponse(
                        _watched(parts, stream_frames(frames, rest)), media_type="application/octet-stream"
                    )
        except (IntegrityError, NotFound):
            parts.trees.forget()
            raise
        return FramesResponse(frames.take())

    async def locate(ask: Ask[Nothing, FetchIn]) -> LocateOut:
        """Tell where on the server's machine these blobs lie as files, for readers on the same machine.

        They have to check what they read. A run's own token may ask for what belongs to the run only.
        """
        manifest, digests = Digest(ask.body.manifest), [Digest(digest) for digest in ask.body.digests]
        if ask.caller.run is not None:
            await reach.check(ask.caller.run, manifest, digests)
        found = (
            await parts.blobs.locate(digests)
            if isinstance(parts.blobs, LocatesBlobs)
            else [None] * len(digests)
        )
        return LocateOut(found)

    async def verify(ask: Ask[Nothing, Nothing]) -> VerifyOut:
        """Read a blob and check it. A damaged one is set aside, so that the next push replaces it.

        A run's own token is told of the run's blobs alone; of all others it is told that there is none.
        """
        if ask.caller.run is not None and not await reach.may_know(
            ask.caller.run, Digest(ask.path["digest"])
        ):
            return VerifyOut(False)
        try:
            await parts.blobs.get(Digest(ask.path["digest"]))
        except (IntegrityError, NotFound):
            parts.trees.forget()
            return VerifyOut(False)
        return VerifyOut(True)

    async def scrub(ask: Ask[Nothing, ScrubIn]) -> ScrubOut:
        """Read and check stored blobs, in the order of their digests, some at a time: the next request goes
        on after `last`. Damaged ones are set aside, so that the next push replaces them. The last answer
        names what runs, versions and checkpoints refer to and is not here. Only the server's owner may."""
        check_owner(ask.caller, parts.queues.owner, "checks its blobs")
        found = await parts.blobs.scrub(None if ask.body.after is None else Digest(ask.body.after))
        if found.damaged:
            parts.trees.forget()
        lost = await _lost(parts) if found.last is None else ()
        return ScrubOut(found.size_bytes, found.damaged, found.last, lost[:_NAMED_LOST], len(lost))

    one = Raw("the blob's bytes")
    pack = Raw(f"at most {PACK_LIMIT >> 20} MiB and {MOST_FRAMES} blobs; {FRAMES}")
    return [
        Endpoint(
            "POST",
            "/blobs/missing",
            missing,
            body=MissingIn,
            returns=MissingOut,
            who="run",
            scope=Scope.READ,
            unaudited=_READS,
            heavy=True,
        ),
        Endpoint(
            "POST",
            "/blobs/pack",
            put_pack,
            body=pack,
            who="run",
            errors=(507,),
            rate="upload_bytes",
            unaudited=_BYTES,
        ),
        Endpoint(
            "POST",
            "/blobs/fetch",
            fetch,
            body=FetchIn,
            returns=Raw(FRAMES),
            who="run",
            errors=(404, 409),
            scope=Scope.READ,
            unaudited=_READS,
        ),
        Endpoint(
            "POST",
            "/blobs/locate",
            locate,
            body=FetchIn,
            returns=LocateOut,
            who="run",
            errors=(404,),
            scope=Scope.READ,
            unaudited=_READS,
            heavy=True,
        ),
        Endpoint(
            "POST", "/blobs/scrub", scrub, body=ScrubIn, returns=ScrubOut, scope=Scope.ADMIN, unaudited=_READS
        ),
        Endpoint(
            "PUT",
            "/blobs/{digest}",
            put,
            body=one,
            who="run",
            errors=(507,),
            rate="upload_bytes",
            unaudited=_BYTES,
        ),
        Endpoint(
            "POST",
            "/blobs/{digest}/verify",
            verify,
            returns=VerifyOut,
            who="run",
            scope=Scope.READ,
            unaudited=_READS,
        ),
    ]


async def _lost(parts: Parts) -> Sequence[Digest]:
    """Blobs that are in use and that no server has. While one cannot be asked, none is known to be lost."""
    search = await parts.remote.find(await parts.sweeper.lost())
    return () if search.unasked else search.lacking


async def _watched(parts: Parts, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """An answer that has begun cannot tell of damage any more: the connection breaks off, and the client asks
    `verify`."""
    try:
        async for piece in frames:
            yield piece
    except (IntegrityError, NotFound):
        parts.trees.forget()
        raise
