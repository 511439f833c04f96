"""What replicas send: streams with their status, checkpoints, artifacts, the lock of the environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from hopyard.controller.retention import thin_checkpoints
from hopyard.domain.attempt import AttemptStatus, ReplicaPhase, ReplicaStatus, summarise
from hopyard.domain.checkpoint import Checkpoint
from hopyard.domain.ids import AttemptId, Digest, RunId, attempt_id, split_attempt
from hopyard.domain.run import MAX_REPLICAS, Run, check_newest
from hopyard.domain.stream_limits import StreamLimits
from hopyard.errors import MissingBlobs, NotFound, SpecError, StorageFull
from hopyard.interfaces.streams import Segment
from hopyard.server.accept import MAX_NOTE_BYTES, MAX_SPEC_BYTES
from hopyard.server.answers import Malformed, answer
from hopyard.server.auth import bearer
from hopyard.server.endpoint import Ask, Endpoint, Nothing, Raw, decode_json
from hopyard.server.fields import Count, Hex, Id, In, Key, Text, Time, Whole, one_of
from hopyard.server.parts import Parts
from hopyard.server.rights import check_own
from hopyard.server.trees import HINT
from hopyard.server.wire import ReplicaStatusIn
from hopyard.tracking.ingest import STREAMS

SYNC_LIMIT = 8 * 1024 * 1024  # a replica sends at most 4 MiB of streams at once
_HEAD_LIMIT = 256 * 1024
MOST_CHECKPOINTS = 10_000  # of a run that keeps all its checkpoints


class SegmentIn(In):
    stream: Annotated[str, Meta(pattern=one_of(STREAMS))]
    offset: Count
    size: Annotated[int, Meta(ge=0, le=SYNC_LIMIT)]


class SyncIn(In):
    """The first line of a sync; the bytes of the segments follow it one after another."""

    status: ReplicaStatusIn
    segments: Annotated[list[SegmentIn], Meta(max_length=64)] = msgspec.field(default_factory=list)
    final: bool = False


class VerifiedOut(Struct, frozen=True):
    """own: whether the run saved it itself, and not the run that it was forked from.
    damaged: it cannot be read."""

    own: bool
    damaged: bool


class SyncOut(Struct, frozen=True):
    """offsets: how long each stream is here: the replica goes on from there. token: a fresh one where the old
    one has used up half of its life. stop: the replica is to end, within `grace_s`; preempt: to make room,
    after saving a checkpoint. full: the server has no space left for the segments; only one that is to end
    gets that answer, others are refused with 507. limits: of the streams, for users with a recording."""

    offsets: Mapping[str, int]
    token: str | None
    stop: bool
    preempt: bool = False
    grace_s: float | None = None
    full: bool = False
    limits: StreamLimits | None = None


class CheckpointIn(In):
    rank: Annotated[int, Meta(ge=0, lt=MAX_REPLICAS)]
    step: Whole
    manifest: Hex
    size_bytes: Count | None = None
    created_at: Time | None = None
    metrics: Annotated[dict[Key, float | None], Meta(max_length=10_000)] = msgspec.field(default_factory=dict)
    offsets: Annotated[dict[Key, Count], Meta(max_length=64)] = msgspec.field(default_factory=dict)
    run: Id | None = None
    attempt: Text | None = None
    kept: bool = False


class ArtifactIn(In):
    manifest: Hex


class LockIn(In):
    lock: Hex
    packages: Annotated[dict[Key, Text], Meta(max_length=100_000)] = msgspec.field(default_factory=dict)


_REPORT = "what a run reports of itself"
_HEAD = msgspec.json.Decoder(SyncIn)


def attempt_endpoints(parts: Parts) -> Sequence[Endpoint[Any, Any]]:
    async def sync(ask: Ask[Nothing, Raw]) -> Any:
        """Ship a replica's streams and status.

        The body is one line of JSON, `{"status": ReplicaStatus, "segments": [{"stream", "offset", "size"}],
        "final": bool}`, and after its line feed the segments' bytes. Bytes are taken at offset n only where
        the stream has exactly n; the answer tells the lengths. `final` with a status of `exited` makes the
        streams durable and records the exit.
        """
        attempt, rank = AttemptId(ask.path["attempt"]), int(ask.path["rank"])
        head, segments = parse_sync(await ask.read_body(SYNC_LIMIT))
        if head.status.rank != rank:
            raise SpecError(f"status.rank: {head.status.rank}, but the address names replica {rank}")
        over = False
        # a run's own token was checked against the address, and ends with its run: no look-up is needed
        if ask.caller.run is None:
            run = await parts.runs.get(RunId(split_attempt(attempt)[0]))
            check_own(ask.caller, run, owner=parts.queues.owner)
            over = run.phase.final
        limits = None if ask.caller.run is not None else await parts.ingest.limits(attempt, rank)
        full = False
        try:
            offsets = await parts.ingest.take(attempt, rank, segments, over=over)
        except StorageFull:
            if await parts.ingest.offline(attempt, rank) or not parts.controller.ends(attempt):
                raise
            offsets, full = await parts.streams.lengths(attempt, rank), True
        status = _status(head, parts.now())
        if status.phase is ReplicaPhase.EXITED:
            await parts.ingest.settle(attempt, rank)
        stop = await _hear(parts, attempt, status)
        token = parts.tokens.renewed(bearer(ask.request.headers.get("authorization")))
        if not stop:
            return answer(SyncOut(offsets, token, stop, full=full, limits=limits))
        grace_s = parts.controller.grace(attempt).total_seconds()
        return answer(
            SyncOut(offsets, token, stop, parts.controller.preempts(attempt), grace_s, full, limits)
        )

    async def checkpoint(ask: Ask[Nothing, CheckpointIn]) -> Checkpoint:
        """Record a checkpoint whose blobs are all here; 409 `missing_blobs` names those that are not.

        409 `conflict` where a later attempt of the run has begun: that one goes on from what was there then.
        """
        attempt, run = await _attempt(parts, ask)
        body = ask.body
        if body.run not in (None, run.id) or body.attempt not in (None, attempt):
            raise SpecError("run, attempt: they are not those of the address")
        if body.rank >= run.spec.size:
            raise SpecError(f"rank: the run has {run.spec.size} replicas, ranks count from 0")
        async with parts.sweeper.held_off():
            sent = await _sent(parts, ask, Digest(body.manifest), what="checkpoint")
            tree = await parts.trees.whole(Digest(body.manifest), what="checkpoint")
            made = Checkpoint(
                run=run.id,
                attempt=attempt,
                rank=body.rank,
                step=body.step,
                manifest=Digest(body.manifest),
                size_bytes=tree.size_bytes,
                created_at=min(body.created_at.astimezone(UTC), parts.now())
                if body.created_at
                else parts.now(),
                metrics={name: value for name, value in body.metrics.items() if value is not None},
                offsets=dict(body.offsets),
            )
            await parts.runs.record_checkpoint(made)
            parts.reach.recorded(run.id, sent)
        await _count(parts, ask, run, sent, Digest(body.manifest))
        await thin_checkpoints(parts.runs, run.id, newest=parts.keep_checkpoints or MOST_CHECKPOINTS)
        return made

    async def verify(ask: Ask[Nothing, Nothing]) -> VerifiedOut:
        """Read the run's checkpoint of a step whole. One that is damaged is not used again: the next attempt
        starts from the one before.

        409 `blobs_elsewhere`: a part of it lies with another server, which cannot be asked now."""
        _, run = await _attempt(parts, ask)
        step = int(ask.path["step"])
        saved = await parts.runs.checkpoints(run.id, damaged=True)
        whole = await parts.runs.checkpoints(run.id)
        found = next((one for one in reversed(whole) if one.step == step), None)
        if found is None:
            return VerifiedOut(own=any(one.step == step for one in saved), damaged=True)
        wrong = await parts.trees.damage(found.manifest)
        if not wrong:
            return VerifiedOut(own=True, damaged=False)
        left = [one.step for one in whole if one.step != step]
        then = f"the next attempt starts from step {left[-1]}" if left else "there is no other"
        await parts.runs.mark_damaged(
            run.id, step, f"the checkpoint of step {step} cannot be read ({wrong}); {then}", now=parts.now()
        )
        parts.hub.state_changed(run.id)
        return VerifiedOut(own=True, damaged=True)

    async def artifact(ask: Ask[Nothing, ArtifactIn]) -> Nothing:
        """Record the files that the run made or changed; all their blobs are here, else 409
        `missing_blobs`."""
        attempt, run = await _attempt(parts, ask)
        async with parts.sweeper.held_off():
            sent = await _sent(parts, ask, Digest(ask.body.manifest), what="artifact")
            await parts.trees.whole(Digest(ask.body.manifest), what="artifact")
            await parts.runs.record_artifact(run.id, Digest(ask.body.manifest), attempt=attempt)
            parts.reach.recorded(run.id, sent)
        await _count(parts, ask, run, sent, Digest(ask.body.manifest))
        parts.hub.state_changed(run.id)
        return Nothing()

    async def lock(ask: Ask[Nothing, LockIn]) -> Nothing:
        """Record the resolved environment, so that a fork gets the same one."""
        attempt, run = await _attempt(parts, ask)
        if len(msgspec.json.encode(ask.body.packages)) > MAX_SPEC_BYTES:
            raise SpecError(f"packages: they have more than the {MAX_SPEC_BYTES >> 10} KiB that are taken")
        async with parts.sweeper.held_off():
            if ask.caller.run is not None and await parts.reach.lacking(run.id, [Digest(ask.body.lock)]):
                raise MissingBlobs(
                    "the run has not sent the lock of the environment",
                    digests=[Digest(ask.body.lock)],
                    hints=(HINT,),
                )
            await parts.trees.there(
                [Digest(ask.body.lock)], what="lock of the environment", at_most=MAX_NOTE_BYTES
            )
            await parts.runs.record_lock(run.id, Digest(ask.body.lock), ask.body.packages, attempt=attempt)
        await _count(parts, ask, run, [Digest(ask.body.lock)])
        return Nothing()

    body = Raw("one line of JSON, a line feed, then the segments' bytes")
    at = "/attempts/{attempt}"
    return [
        Endpoint(
            "POST",
            at + "/replicas/{rank}/sync",
            sync,
            body=body,
            returns=SyncOut,
            who="run",
            errors=(400, 507),
            limit=SYNC_LIMIT,
            unaudited=_REPORT,
        ),
        Endpoint(
            "POST",
            at + "/checkpoints",
            checkpoint,
            body=CheckpointIn,
            returns=Checkpoint,
            status=201,
            who="run",
            errors=(400, 409),
            unaudited=_REPORT,
        ),
        Endpoint(
            "POST",
            at + "/checkpoints/{step}/verify",
            verify,
            returns=VerifiedOut,
            who="run",
            errors=(409,),
            unaudited=_REPORT,
        ),
        Endpoint(
            "POST",
            at + "/artifact",
            artifact,
            body=ArtifactIn,
            who="run",
            errors=(400, 409),
            unaudited=_REPORT,
        ),
        Endpoint("POST", at + "/lock", lock, body=LockIn, who="run", errors=(400, 409), unaudited=_REPORT),
    ]


def parse_sync(data: bytes) -> tuple[SyncIn, list[Segment]]:
    """Raises Malformed unless the body is a head and exactly the bytes that it announces."""
    end = data.find(b"\n", 0, _HEAD_LIMIT)
    head: SyncIn = decode_json(data[: end if end >= 0 else len(data)], _HEAD)
    at = end + 1 if end >= 0 else len(data)
    view, segments = memoryview(data), []
    for wanted in head.segments:
        segments.append(Segment(wanted.stream, wanted.offset, view[at : at + wanted.size]))
        at += wanted.size
    if at != len(data):
        raise Malformed(f"segments: they announce {at} bytes with the head, the body has {len(data)}")
    return head, segments


def _status(head: SyncIn, now: datetime) -> ReplicaStatus:
    """What the replica says. One that has exited and still ships counts as running: its end comes after its
    streams."""
    given = head.status
    if (given.exit is not None) != (given.phase is ReplicaPhase.EXITED):
        raise SpecError("status.exit: it is given exactly when the phase is `exited`")
    began_at, ended_at = (
        None if ago_s is None else now - timedelta(seconds=ago_s) for ago_s in (given.began_s, given.ended_s)
    )
    if given.phase is ReplicaPhase.EXITED and not head.final:
        return ReplicaStatus(given.rank, ReplicaPhase.RUNNING, given.detail, began_at=began_at)
    return ReplicaStatus(given.rank, given.phase, given.detail, given.exit, began_at, ended_at)


async def _hear(parts: Parts, attempt: AttemptId, status: ReplicaStatus) -> bool:
    """Pass a status on; whether the replica is to end."""
    if not await parts.ingest.offline(attempt, status.rank):
        return await parts.controller.hear(attempt, status)
    if status.exit is not None:
        await _finish_offline(parts, await parts.runs.get(split_attempt(attempt)[0]), status)
    else:
        await parts.runs.record_synced(split_attempt(attempt)[0], parts.now())
    return False


async def _finish_offline(parts: Parts, run: Run, status: ReplicaStatus) -> None:
    phase, told = summarise(AttemptStatus(attempt_id(run.id, 1), (status,)), size=1)
    if told is None:
        raise SpecError("status: an offline run has ended")
    live = parts.ingest.live(run.id)
    last = live.last_at if live is not None else 0.0
    ended_at = (
        datetime.fromtimestamp(last, UTC)
        if run.submitted_at.timestamp() <= last <= parts.now().timestamp()
        else parts.now()
    )
    await parts.runs.finish_offline(run.id, phase, told, started_at=run.submitted_at, ended_at=ended_at)
    await parts.run_ended(await parts.runs.get(run.id))
    parts.hub.state_changed(run.id)


async def _sent(parts: Parts, ask: Ask[Any, Any], manifest: Digest, *, what: str) -> Iterable[Digest]:
    """The blobs of a tree that the run's own token sent: with a tree that it could not read it would record
    what others sent, and read it afterwards. A user may read everything. Raises MissingBlobs, SpecError."""
    return () if ask.caller.run is None else await parts.reach.check_tree(ask.caller.run, manifest, what=what)


async def _count(
    parts: Parts, ask: Ask[Any, Any], run: Run, blobs: Iterable[Digest], tree: Digest | None = None
) -> None:
    """Something of the run refers to these blobs from now on, and to those of the tree where a user sent it:
    they are no longer uploads that nothing refers to."""
    user = run.name.user if ask.caller.run is not None else ask.caller.user
    if parts.storage.has_uploads(user):
        await parts.storage.referred(
            user, blobs if tree is None or ask.caller.run is not None else await parts.trees.blobs(tree)
        )
    parts.storage.changed(run.name.user)


async def _attempt(parts: Parts, ask: Ask[Any, Any]) -> tuple[AttemptId, Run]:
    """The attempt of an address, with its run. Raises NotFound, Forbidden for a user whose run it is not, and
    Conflict for an attempt that a later one has superseded."""
    text = ask.path["attempt"]
    run_id, number = split_attempt(AttemptId(text))
    run = await parts.runs.get(RunId(run_id))
    if not (run.offline and number == 1) and not any(
        attempt.id == text for attempt in await parts.runs.attempts(run.id)
    ):
        raise NotFound(f"run {run.name} has no attempt {number}")
    check_own(ask.caller, run, owner=parts.queues.owner)
    check_newest(AttemptId(text), 0 if run.attempt is None else run.attempt.number, run=str(run.name))
    return AttemptId(text), run
