"""Endpoints for replicas: sync of streams and status, checkpoints, artifacts, the lock of the environment."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from hopyard.config.schemas.fields import Count, Hex, Id, Int64, Key, RequestModel, Text, Time, word_pattern
from hopyard.controller.checkpoint_retention import delete_expired_checkpoints
from hopyard.domain.attempt import AttemptStatus, ReplicaPhase, ReplicaStatus, gang_state
from hopyard.domain.checkpoint import OWN_PARTS, Checkpoint
from hopyard.domain.ids import AttemptId, Digest, RunId, attempt_id, split_attempt
from hopyard.domain.metric_values import MetricValue, decode_value
from hopyard.domain.path_check import is_manifest_path
from hopyard.domain.preflight import Check
from hopyard.domain.run import MAX_REPLICAS, Run, check_not_superseded
from hopyard.domain.run_values import limit_packages
from hopyard.domain.stream_limits import STREAMS, StreamLimits
from hopyard.domain.text import escape
from hopyard.errors import Forbidden, MissingBlobs, NotFound, SpecError, StorageFull
from hopyard.interfaces.streams import Segment
from hopyard.server.artifact_merge import merge_artifact
from hopyard.server.authentication import bearer_token
from hopyard.server.authorization import check_owns_run
from hopyard.server.endpoint import ApiRequest, BinaryBody, Empty, Endpoint, decode_json
from hopyard.server.keyed_locks import KeyedLocks
from hopyard.server.manifest_check import RESEND_HINT
from hopyard.server.responses import MalformedRequest, json_response
from hopyard.server.run_folder_progress import has_new_checkpoint
from hopyard.server.schemas.checkpoints import CheckpointOut, to_checkpoint_out
from hopyard.server.schemas.runs import ReplicaStatusIn
from hopyard.server.services import Services
from hopyard.server.submit_run import MAX_NOTE_BYTES

MAX_SYNC_BYTES = 8 * 1024 * 1024  # a replica sends at most 4 MiB of streams at once
_MAX_HEAD_BYTES = 256 * 1024
MAX_CHECKPOINTS = 10_000  # limit for a run that keeps all its checkpoints


class SegmentIn(RequestModel):
    stream: Annotated[str, Meta(pattern=word_pattern(STREAMS))]
    offset: Count
    size: Annotated[int, Meta(ge=0, le=MAX_SYNC_BYTES)]


class SyncIn(RequestModel):
    """The first line of a sync; the bytes of the segments follow in order. commands: the highest number of a
    command that the replica has."""

    status: ReplicaStatusIn
    segments: Annotated[list[SegmentIn], Meta(max_length=64)] = msgspec.field(default_factory=list)
    final: bool = False
    commands: Annotated[int, Meta(ge=0, lt=2**31)] = 0


class VerifiedOut(Struct, frozen=True):
    """own: whether the run saved the checkpoint itself; false if it comes from the forked run. damaged:
    whether it cannot be read."""

    own: bool
    damaged: bool


class CommandLineOut(Struct, frozen=True):
    """A command that the replica lacks."""

    number: int
    kind: str
    arguments: Mapping[str, bool | int | float | str | None]
    user: str


class SyncOut(Struct, frozen=True):
    """offsets: the length of each stream on the server; the replica continues there. token: a new token when
    the old one is older than half of its lifetime. stop: the replica must end within `grace_s`; preempt:
    because of a preemption, so it saves a checkpoint first; signal: what its script gets,
    "" for that of an earlier order or SIGTERM. full: the server
    has no space left for the segments. Only an ending replica gets this response; others get 507. limits: of
    the streams, for clients that sync a recording. commands: to the script, after the number of the
    request."""

    offsets: Mapping[str, int]
    token: str | None
    stop: bool
    preempt: bool = False
    grace_s: float | None = None
    full: bool = False
    limits: StreamLimits | None = None
    signal: str = ""
    commands: Sequence[CommandLineOut] = ()


class CheckpointIn(RequestModel):
    """path: of a checkpoint that the script saved itself, below `run/` or `work/`. The manifest is the
    part of the run folder with its files."""

    rank: Annotated[int, Meta(ge=0, lt=MAX_REPLICAS)]
    step: Int64
    manifest: Hex
    size_bytes: Count | None = None
    created_at: Time | None = None
    metrics: Annotated[dict[Key, MetricValue | None], Meta(max_length=10_000)] = msgspec.field(
        default_factory=dict
    )
    offsets: Annotated[dict[Key, Count], Meta(max_length=64)] = msgspec.field(default_factory=dict)
    run: Id | None = None
    attempt: Text | None = None
    kept: bool = False
    best_by: Annotated[str, Meta(max_length=1024)] = ""
    path: Annotated[str, Meta(max_length=4096)] = ""


class ArtifactIn(RequestModel):
    """rank: of a replica with a working folder of its own. Its files become the folder of this rank, beside
    those of the other replicas."""

    manifest: Hex
    rank: Annotated[int, Meta(ge=0, lt=MAX_REPLICAS)] | None = None


class RunFolderIn(RequestModel):
    manifest: Hex


class PreflightFailureIn(RequestModel):
    """key: of the replica, which its script does not know. found: a sentence."""

    key: Annotated[str, Meta(max_length=128)]
    check: Check
    found: Annotated[str, Meta(max_length=4096)]


class LockIn(RequestModel):
    lock: Hex
    packages: Annotated[dict[Key, Text], Meta(max_length=100_000)] = msgspec.field(default_factory=dict)


_REPORT_REASON = "the report of a run"
_HEAD_DECODER = msgspec.json.Decoder(SyncIn)


def attempt_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    artifact_locks = KeyedLocks()  # by run: replicas of a gang often end and report files together

    async def sync(request: ApiRequest[Empty, BinaryBody]) -> Any:
        """Upload the streams and the status of a replica.

        The body is one line of JSON, `{"status": ReplicaStatus, "segments": [{"stream", "offset", "size"}],
        "final": bool}`, and after its line feed the segments' bytes. Bytes at offset n are accepted only if
        the stream has exactly n bytes; the response has the lengths. `final` with a status of `exited` makes
        the streams durable and records the exit.
        """
        attempt, rank = AttemptId(request.path["attempt"]), int(request.path["rank"])
        head, segments = parse_sync(await request.read_body(MAX_SYNC_BYTES))
        if head.status.rank != rank:
            raise SpecError(f"status.rank: {head.status.rank}, but the path names replica {rank}")
        run_ended = False
        # A run's own token was checked against the path, and expires with its run. It needs no query.
        if request.caller.run is None:
            run = await services.runs.get(RunId(split_attempt(attempt)[0]))
            check_owns_run(request.caller, run, owner=services.queue_cache.owner)
            run_ended = run.phase.is_final
        limits = None if request.caller.run is not None else await services.ingest.limits(attempt, rank)
        is_full = False
        try:
            offsets = await services.ingest.append(attempt, rank, segments, run_ended=run_ended)
        except StorageFull:
            if await services.ingest.is_offline(attempt, rank) or not services.controller.should_end(attempt):
                raise
            offsets, is_full = await services.streams.lengths(attempt, rank), True
        status = _to_replica_status(head, services.now())
        if status.phase is ReplicaPhase.EXITED:
            await services.ingest.flush(attempt, rank)
        should_stop = await _record_status(services, attempt, status)
        token = services.tokens.renew(bearer_token(request.request.headers.get("authorization")))
        if not should_stop:
            commands = () if limits is not None else await _commands_for(services, attempt, head.commands)
            return json_response(
                SyncOut(offsets, token, should_stop, full=is_full, limits=limits, commands=commands)
            )
        order = services.controller.stop_order(attempt)
        return json_response(
            SyncOut(
                offsets,
                token,
                should_stop,
                order.requests_checkpoint,
                order.grace_s,
                is_full,
                limits,
                order.signal,
            )
        )

    async def checkpoint(request: ApiRequest[Empty, CheckpointIn]) -> CheckpointOut:
        """Record a checkpoint. All its blobs must be stored; 409 `missing_blobs` lists the missing blobs.

        409 `conflict` if a later attempt of the run has started: it resumes from the earlier checkpoints.
        """
        attempt, run = await _get_attempt(services, request)
        body = request.body
        if body.run not in (None, run.id) or body.attempt not in (None, attempt):
            raise SpecError("run, attempt: they differ from the path")
        if body.path:
            _check_own_path(body.path)
        if body.rank >= run.spec.size:
            raise SpecError(f"rank: the run has {run.spec.size} replicas, ranks count from 0")
        async with services.blob_collector.paused():
            uploaded_blobs = await _check_tree_sent(
                services, request, Digest(body.manifest), subject="checkpoint"
            )
            tree = await services.manifests.require_complete(Digest(body.manifest), subject="checkpoint")
            recorded = Checkpoint(
                run=run.id,
                attempt=attempt,
                rank=body.rank,
                step=body.step,
                manifest=Digest(body.manifest),
                size_bytes=tree.size_bytes,
                created_at=min(body.created_at.astimezone(UTC), services.now())
                if body.created_at
                else services.now(),
                metrics={
                    name: decode_value(value) for name, value in body.metrics.items() if value is not None
                },
                offsets=dict(body.offsets),
                kept=body.kept,
                best_by=body.best_by,
                path=body.path,
            )
            await services.runs.record_checkpoint(recorded)
            services.blob_access.record_tree(run.id, uploaded_blobs)
        await _count_storage(services, request, run, uploaded_blobs, Digest(body.manifest))
        await delete_expired_checkpoints(
            services.runs,
            services.datasets,
            run,
            retained_count=services.keep_checkpoints or MAX_CHECKPOINTS,
        )
        return to_checkpoint_out(recorded)

    async def verify(request: ApiRequest[Empty, Empty]) -> VerifiedOut:
        """Read and check the run's checkpoint of a step.
        A damaged checkpoint is not used again: the next attempt starts from the previous checkpoint.

        409 `blobs_elsewhere`: a part of it is stored on another server that is unreachable."""
        _, run = await _get_attempt(services, request)
        step = int(request.path["step"])
        all_checkpoints = await services.runs.checkpoints(run.id, damaged=True)
        readable = await services.runs.checkpoints(run.id)
        newest = next((checkpoint for checkpoint in reversed(readable) if checkpoint.step == step), None)
        if newest is None:
            return VerifiedOut(
                own=any(checkpoint.step == step for checkpoint in all_checkpoints), damaged=True
            )
        error = await services.manifests.verify(newest.manifest)
        if not error:
            return VerifiedOut(own=True, damaged=False)
        remaining_steps = [checkpoint.step for checkpoint in readable if checkpoint.step != step]
        consequence = (
            f"the next attempt starts from step {remaining_steps[-1]}"
            if remaining_steps
            else "no earlier checkpoint exists"
        )
        await services.runs.mark_damaged(
            run.id,
            step,
            f"the checkpoint of step {step} cannot be read ({error}); {consequence}",
            now=services.now(),
        )
        services.subscriptions.notify_state(run.id)
        return VerifiedOut(own=True, damaged=True)

    async def artifact(request: ApiRequest[Empty, ArtifactIn]) -> Empty:
        """Record the files that the run created or changed. 409 `missing_blobs` if blobs are missing."""
        attempt, run = await _get_attempt(services, request)
        manifest, rank = Digest(request.body.manifest), request.body.rank
        async with artifact_locks.hold(run.id), services.blob_collector.paused():
            uploaded_blobs = await _check_tree_sent(services, request, manifest, subject="artifact")
            await services.manifests.require_complete(manifest, subject="artifact")
            if rank is not None:
                manifest = await merge_artifact(services.blobs, services.runs, run.id, rank, manifest)
                await services.manifests.require_complete(manifest, subject="artifact")
            await services.runs.record_artifact(run.id, manifest, attempt=attempt)
            services.blob_access.record_tree(run.id, uploaded_blobs)
        await _count_storage(services, request, run, uploaded_blobs, manifest)
        services.subscriptions.notify_state(run.id)
        return Empty()

    async def run_folder(request: ApiRequest[Empty, RunFolderIn]) -> Empty:
        """Record the files that the next attempt begins with. If they have a new checkpoint of the script,
        earlier losses no longer count. 409 `missing_blobs` if blobs are missing."""
        attempt, run = await _get_attempt(services, request)
        manifest = Digest(request.body.manifest)
        async with services.blob_collector.paused():
            uploaded_blobs = await _check_tree_sent(services, request, manifest, subject="run folder")
            tree = await services.manifests.require_complete(manifest, subject="run folder")
            await services.runs.record_run_folder(
                run.id,
                manifest,
                tree.size_bytes,
                attempt=attempt,
                progress=await has_new_checkpoint(services.blobs, run, manifest),
            )
            services.blob_access.record_tree(run.id, uploaded_blobs)
        await _count_storage(services, request, run, uploaded_blobs, manifest)
        return Empty()

    async def lock(request: ApiRequest[Empty, LockIn]) -> Empty:
        """Record the resolved environment, so that a fork gets the same environment."""
        attempt, run = await _get_attempt(services, request)
        async with services.blob_collector.paused():
            if request.caller.run is not None and await services.blob_access.find_unsent(
                run.id, [Digest(request.body.lock)]
            ):
                raise MissingBlobs(
                    "the run has not uploaded the lock of the environment",
                    digests=[Digest(request.body.lock)],
                    hints=(RESEND_HINT,),
                )
            await services.manifests.require_blobs(
                [Digest(request.body.lock)], subject="lock of the environment", max_bytes=MAX_NOTE_BYTES
            )
            packages = limit_packages(request.body.packages)
            await services.runs.record_lock(run.id, Digest(request.body.lock), packages, attempt=attempt)
        await _count_storage(services, request, run, [Digest(request.body.lock)])
        return Empty()

    async def preflight(request: ApiRequest[Empty, PreflightFailureIn]) -> Empty:
        """Record a failed check before the script starts, for which the node of the replica is to blame.
        A node with failures in two attempts within six hours is cordoned.

        409 `conflict` after a script of the attempt started."""
        attempt, _ = await _get_attempt(services, request)
        rank, body = int(request.path["rank"]), request.body
        key = services.tokens.preflight_secret(attempt, rank)
        if not hmac.compare_digest(body.key.encode(), key.encode()):
            raise Forbidden(
                "the key of the replica is wrong", hints=("only its replica reports failed checks",)
            )
        await services.node_failures.record(attempt, rank, body.check, escape(body.found), now=services.now())
        return Empty()

    body = BinaryBody("one line of JSON, a line feed, then the segments' bytes")
    path = "/attempts/{attempt}"
    return [
        Endpoint(
            "POST",
            path + "/replicas/{rank}/sync",
            sync,
            body=body,
            returns=SyncOut,
            auth="run",
            errors=(400, 507),
            limit=MAX_SYNC_BYTES,
            unaudited_reason=_REPORT_REASON,
        ),
        Endpoint(
            "POST",
            path + "/replicas/{rank}/preflight",
            preflight,
            body=PreflightFailureIn,
            auth="run",
            errors=(400, 403, 409),
            unaudited_reason=_REPORT_REASON,
        ),
        Endpoint(
            "POST",
            path + "/checkpoints",
            checkpoint,
            body=CheckpointIn,
            returns=CheckpointOut,
            status=201,
            auth="run",
            errors=(400, 409),
            unaudited_reason=_REPORT_REASON,
        ),
        Endpoint(
            "POST",
            path + "/checkpoints/{step}/verify",
            verify,
            returns=VerifiedOut,
            auth="run",
            errors=(409,),
            unaudited_reason=_REPORT_REASON,
        ),
        Endpoint(
            "POST",
            path + "/artifact",
            artifact,
            body=ArtifactIn,
            auth="run",
            errors=(400, 409),
            unaudited_reason=_REPORT_REASON,
        ),
        Endpoint(
            "POST",
            path + "/run-folder",
            run_folder,
            body=RunFolderIn,
            auth="run",
            errors=(400, 409),
            unaudited_reason=_REPORT_REASON,
        ),
        Endpoint(
            "POST",
            path + "/lock",
            lock,
            body=LockIn,
            auth="run",
            errors=(400, 409),
            unaudited_reason=_REPORT_REASON,
        ),
    ]


def parse_sync(data: bytes) -> tuple[SyncIn, list[Segment]]:
    """Returns the head and the segments. Raises MalformedRequest unless exactly the announced bytes follow
    the head."""
    end = data.find(b"\n", 0, _MAX_HEAD_BYTES)
    head: SyncIn = decode_json(data[: end if end >= 0 else len(data)], _HEAD_DECODER)
    offset = end + 1 if end >= 0 else len(data)
    view, segments = memoryview(data), []
    for segment_in in head.segments:
        segments.append(
            Segment(segment_in.stream, segment_in.offset, view[offset : offset + segment_in.size])
        )
        offset += segment_in.size
    if offset != len(data):
        raise MalformedRequest(f"segments: the head announces {offset} bytes, the body has {len(data)}")
    return head, segments


def _to_replica_status(head: SyncIn, now: datetime) -> ReplicaStatus:
    """Returns the reported status. A replica that has exited but still ships output counts as running until
    its streams are complete."""
    reported = head.status
    if (reported.exit is not None) != (reported.phase is ReplicaPhase.EXITED):
        raise SpecError("status.exit: set it exactly if the phase is `exited`")
    began_at, ended_at = (
        None if ago_s is None else now - timedelta(seconds=ago_s)
        for ago_s in (reported.began_s, reported.ended_s)
    )
    if reported.phase is ReplicaPhase.EXITED and not head.final:
        return ReplicaStatus(reported.rank, ReplicaPhase.RUNNING, reported.detail, began_at=began_at)
    return ReplicaStatus(reported.rank, reported.phase, reported.detail, reported.exit, began_at, ended_at)


async def _record_status(services: Services, attempt: AttemptId, status: ReplicaStatus) -> bool:
    """Records a status. Returns whether the replica must end."""
    if not await services.ingest.is_offline(attempt, status.rank):
        return await services.controller.record_status(attempt, status)
    if status.exit is not None:
        await _finish_offline(services, await services.runs.get(split_attempt(attempt)[0]), status)
    else:
        await services.runs.record_synced(split_attempt(attempt)[0], services.now())
    return False


async def _commands_for(
    services: Services, attempt: AttemptId, acknowledged: int
) -> Sequence[CommandLineOut]:
    commands = await services.pending_commands.commands_for(attempt, acknowledged)
    return [
        CommandLineOut(command.number, str(command.kind), command.arguments, command.user)
        for command in commands
    ]


async def _finish_offline(services: Services, run: Run, status: ReplicaStatus) -> None:
    phase, exit = gang_state(AttemptStatus(attempt_id(run.id, 1), (status,)), size=1)
    if exit is None:
        raise SpecError("status: an offline run has ended")
    live = services.ingest.find_live_run(run.id)
    last_event_at = live.last_at if live is not None else 0.0
    ended_at = (
        datetime.fromtimestamp(last_event_at, UTC)
        if run.submitted_at.timestamp() <= last_event_at <= services.now().timestamp()
        else services.now()
    )
    await services.runs.finish_offline(run.id, phase, exit, started_at=run.submitted_at, ended_at=ended_at)
    await services.on_run_ended(await services.runs.get(run.id))
    services.subscriptions.notify_state(run.id)


async def _check_tree_sent(
    services: Services, request: ApiRequest[Any, Any], manifest: Digest, *, subject: str
) -> Iterable[Digest]:
    """Returns the blobs of the tree if the run's own token uploaded it.

    A run may record only blobs that it uploaded or may read: otherwise it could record others' blobs and read
    them afterwards. A user may read everything. Raises MissingBlobs, SpecError.
    """
    return (
        ()
        if request.caller.run is None
        else await services.blob_access.check_tree(request.caller.run, manifest, subject=subject)
    )


async def _count_storage(
    services: Services,
    request: ApiRequest[Any, Any],
    run: Run,
    blobs: Iterable[Digest],
    tree: Digest | None = None,
) -> None:
    """Stops counting these blobs as unreferenced uploads, since the run references them now. If a user
    uploaded the tree, so do its blobs."""
    user = run.name.user if request.caller.run is not None else request.caller.user
    if services.storage.has_uploads(user):
        await services.storage.mark_referenced(
            user,
            blobs
            if tree is None or request.caller.run is not None
            else await services.manifests.referenced_blobs(tree),
        )
    services.storage.invalidate(run.name.user)


async def _get_attempt(services: Services, request: ApiRequest[Any, Any]) -> tuple[AttemptId, Run]:
    """Returns the attempt of the path and its run. Raises NotFound; Forbidden for a user who may not change
    the run; Conflict for an attempt that a later one superseded."""
    text = request.path["attempt"]
    run_id, number = split_attempt(AttemptId(text))
    run = await services.runs.get(RunId(run_id))
    if not (run.offline and number == 1) and not any(
        attempt.id == text for attempt in await services.runs.attempts(run.id)
    ):
        raise NotFound(f"run {run.name} has no attempt {number}")
    check_owns_run(request.caller, run, owner=services.queue_cache.owner)
    check_not_superseded(AttemptId(text), 0 if run.attempt is None else run.attempt.number, run=str(run.name))
    return AttemptId(text), run


def _check_own_path(path: str) -> None:
    """Raises SpecError unless the path is one of a stored run folder."""
    if path.partition("/")[0] not in OWN_PARTS or "/" not in path or not is_manifest_path(path):
        raise SpecError(f"path: `{escape(path)}` is not a path below `run/` or `work/`")
