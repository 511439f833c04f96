"""Ingests what replicas ship: appends bytes at exact offsets, and parses events and metrics on the way.

The streams are the source of truth. State in memory is rebuilt from them after a restart. No content of a
stream can break ingestion: a malformed line or record is skipped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hopyard.config.units import format_bytes
from hopyard.domain.ids import AttemptId, RunId, split_attempt
from hopyard.domain.restart_policy import MAX_RESTARTS
from hopyard.domain.run import RunEventKind
from hopyard.domain.stream_limits import LOGGED_STREAM, METRIC_STREAMS, NO_LIMITS, StreamLimits
from hopyard.errors import Conflict, HopyardError, NotFound, StorageFull
from hopyard.interfaces.command_store import CommandStore
from hopyard.interfaces.notification_store import NotificationStore
from hopyard.interfaces.run_store import RunStore
from hopyard.interfaces.streams import Segment, StreamKey, Streams
from hopyard.tracking.json_lines import LineReader
from hopyard.tracking.latest_metrics import LatestMetrics
from hopyard.tracking.live_run import SAFE_POINT_EVENTS, LiveRun, parse_sample
from hopyard.tracking.process_restarts import add_restart, may_restart, read_spans, restartable_ranks
from hopyard.tracking.rollback import JOURNAL_STREAM, StreamSegment, VisibleStreams
from hopyard.tracking.run_history import find_evaluators, load_history
from hopyard.tracking.run_subscriptions import RunSubscriptions

_OUTPUT_STREAMS = frozenset({"stdout", "stderr", "events", "journal"})
_WRITE_INTERVAL_S = 2.0
_ANSWER_WRITE_DELAY_S = 0.02  # users wait for the answers to their commands
_MAX_RETIRED_RUNS = 64  # ended runs that stay in memory for their followers
_REREAD_BYTES = 1024 * 1024
log = logging.getLogger("hopyard.tracking")


@dataclass(slots=True)
class _ReplicaStreams:
    """The state of one replica's streams between two syncs.
    superseded: a later attempt of the run exists. limits: how many bytes are stored. may_restart: by the
    restart policy of its role. is_outdated: a restart or a purge may have hidden metrics that were
    applied."""

    attempt: AttemptId
    rank: int
    live_run: LiveRun
    offline: bool
    superseded: bool = False
    may_restart: bool = False
    restart_count: int = 0
    is_outdated: bool = False
    limits: StreamLimits = NO_LIMITS
    lengths: dict[str, int] = field(default_factory=dict)
    # streams beyond their limit: the end offset of the bytes received
    dropped_bytes: dict[str, int] = field(default_factory=dict)
    line_readers: dict[str, LineReader] = field(
        default_factory=lambda: {"events": LineReader(), "system": LineReader()}
    )
    metric_readers: dict[str, LatestMetrics] = field(
        default_factory=lambda: {"metrics": LatestMetrics(), "tensorboard": LatestMetrics()}
    )
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    ready: bool = False


class StreamIngest:
    """Ingests the streams of all replicas. One per server; all calls belong to one event loop. limits: of the
    streams of each replica; a run may have smaller ones. commands: where answers to commands are recorded.
    notifications: where alerts are."""

    def __init__(
        self,
        runs: RunStore,
        streams: Streams,
        subscriptions: RunSubscriptions,
        *,
        limits: StreamLimits = NO_LIMITS,
        commands: CommandStore | None = None,
        notifications: NotificationStore | None = None,
    ) -> None:
        self._commands, self._notifications = commands, notifications
        self._runs, self._streams, self._subscriptions, self._limits = runs, streams, subscriptions, limits
        self._live_runs: dict[RunId, LiveRun] = {}  # of the newest attempt of each run
        # reads of the visible part of earlier attempts
        self._load_tasks: dict[AttemptId, asyncio.Task[LiveRun]] = {}
        self._replicas: dict[tuple[AttemptId, int], _ReplicaStreams] = {}
        self._retired_runs: dict[RunId, None] = {}  # runs that ended, oldest first
        self._write_task: asyncio.Task[None] | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    async def append(
        self, attempt: AttemptId, rank: int, segments: Sequence[Segment], *, run_ended: bool = False
    ) -> Mapping[str, int]:
        """Appends the segments that continue a stream. Returns the length of each of the replica's streams,
        whether or not all segments were accepted.

        run_ended: the run has ended. Bytes that are already stored are acknowledged; further bytes raise
        Conflict.

        Output of a superseded attempt is stored but not parsed. Its journal is not stored, since a later
        attempt resumes from the journal as it was. Bytes beyond the limit of a stream are acknowledged and
        not stored, so that no replica waits forever. Raises NotFound for an attempt that the run never had,
        StorageFull.
        """
        replica = await self._replica(attempt, rank)
        async with replica.lock:
            await self._reread_streams(replica)
            received, segments = (
                segments,
                [
                    _cut_to_limit(segment, replica.limits.max_sent_bytes(segment.stream))
                    for segment in segments
                ],
            )
            if run_ended and any(
                segment.offset + len(segment.data) > replica.lengths.get(segment.stream, 0)
                for segment in segments
                if segment.data
            ):
                raise Conflict(
                    f"run {split_attempt(attempt)[0]} has ended and accepts no more output",
                    hints=("run it again with `hop fork`",),
                )
            accepted = (
                [segment for segment in segments if segment.stream != JOURNAL_STREAM]
                if replica.superseded
                else segments
            )
            dropped = {
                segment.stream: segment.offset + len(segment.data)
                for segment in received
                if segment.stream == JOURNAL_STREAM and replica.superseded
            }
            try:
                lengths = await self._streams.append(attempt, rank, accepted) if accepted else ()
                self._read_segments(replica, accepted, lengths)
            except (StorageFull, OSError):
                stored_lengths = await self._streams.lengths(attempt, rank)
                self._read_segments(
                    replica, accepted, [stored_lengths.get(segment.stream, 0) for segment in accepted]
                )
                raise
            await self._drop_over_limit(replica, received)
            if replica.is_outdated:
                await self._reread_metrics(replica)
            return {**replica.lengths, **replica.dropped_bytes, **dropped}

    async def _drop_over_limit(self, replica: _ReplicaStreams, segments: Sequence[Segment]) -> None:
        """Acknowledges bytes beyond the limit of a stream, and records once per stream that they are not
        stored."""
        dropped_ends: dict[str, int] = {}
        for segment in segments:
            limit, end = replica.limits.max_sent_bytes(segment.stream), segment.offset + len(segment.data)
            received_end = max(
                dropped_ends.get(segment.stream, 0),
                replica.dropped_bytes.get(segment.stream, 0),
                replica.lengths.get(segment.stream, 0),
            )
            if limit is not None and end > limit and received_end >= max(limit, segment.offset):
                dropped_ends[segment.stream] = max(received_end, end)
        for stream in sorted(dropped_ends.keys() - replica.dropped_bytes.keys()):
            run, limit = replica.live_run.run, replica.limits.max_sent_bytes(stream)
            text = (
                f"{stream} of replica {replica.rank} exceeds the limit "
                f"({format_bytes(limit or 0)}): the server stores no more of it"
            )
            log.warning("run %s: %s", run, text)
            await self._runs.record_unstored(run, [text])
            self._subscriptions.notify_state(run)
        replica.dropped_bytes |= dropped_ends

    def _read_segments(
        self, replica: _ReplicaStreams, segments: Sequence[Segment], lengths: Sequence[int]
    ) -> None:
        """Parses the new bytes of segments, and notifies followers. lengths: of their streams after the
        append."""
        run, has_news = replica.live_run.run, False
        for segment, length in zip(segments, lengths, strict=True):
            old_length = replica.lengths.get(segment.stream, 0)
            new_length = min(length, segment.offset + len(segment.data))
            if new_length <= old_length:
                continue
            replica.lengths[segment.stream] = new_length
            data = bytes(segment.data[old_length - segment.offset : new_length - segment.offset])
            if segment.stream in _OUTPUT_STREAMS:
                self._subscriptions.notify_output(
                    run, StreamKey(replica.attempt, replica.rank, segment.stream), new_length, data
                )
            has_news |= self._parse(replica, segment.stream, data)
        if has_news:
            self._subscriptions.notify_progress(run)
        if replica.live_run.is_dirty:
            self._schedule_write(urgent=bool(replica.live_run.answers))

    async def flush(self, attempt: AttemptId, rank: int) -> None:
        """Makes the accepted bytes of this replica durable, and brings the store up to date."""
        replica = await self._replica(attempt, rank)
        async with replica.lock:
            await self._reread_streams(replica)
            await self._streams.sync(attempt, rank)
            if not replica.superseded:
                await replica.live_run.write(self._runs, self._commands, self._notifications)

    async def limits(self, attempt: AttemptId, rank: int) -> StreamLimits:
        """Returns the limits of the streams of this replica. Raises NotFound as `append`."""
        return (await self._replica(attempt, rank)).limits

    async def is_offline(self, attempt: AttemptId, rank: int) -> bool:
        """Returns whether these are the streams of a run that was recorded without a server. Raises NotFound
        as `append`."""
        return (await self._replica(attempt, rank)).offline

    def find_live_run(self, run: RunId) -> LiveRun | None:
        """Returns the live state of a run; None when nothing of it was received since the server started. The
        store is then complete."""
        return self._live_runs.get(run)

    def has_safe_points(self, attempt: AttemptId, size: int) -> bool | None:
        """Returns whether the script of a live attempt has announced safe points, at which it applies
        commands. One of its `size` replicas is enough: a parameter server or an evaluator may have none. None
        if that is not known, as before all of them have connected."""
        live = self._live_runs.get(split_attempt(attempt)[0])
        if live is not None and attempt in live.safe_points_of:
            return True
        replicas = (self._replicas.get((attempt, rank)) for rank in range(size))
        return False if all(replica is not None and replica.ready for replica in replicas) else None

    def latest_metrics(
        self, stored: Mapping[RunId, Mapping[str, tuple[int, float]]]
    ) -> dict[RunId, dict[str, tuple[int, float]]]:
        """Returns the store's latest metrics, overlaid with newer ones that are still only in memory."""
        return {
            run: {**metrics, **(self._live_runs[run].latest if run in self._live_runs else {})}
            for run, metrics in stored.items()
        }

    async def write_received(self, run: RunId) -> None:
        """Writes what was received of a run to the stores, which otherwise are up to some seconds behind."""
        live = self._live_runs.get(run)
        if live is not None:
            await live.write(self._runs, self._commands, self._notifications)

    async def retire(self, run: RunId) -> None:
        """Writes the final state of an ended run. Its memory is released once enough later runs have
        ended."""
        live = self._live_runs.get(run)
        if live is not None:
            await live.write(self._runs, self._commands, self._notifications)
            self._retired_runs[run] = None
            while len(self._retired_runs) > _MAX_RETIRED_RUNS:
                self.forget(next(iter(self._retired_runs)))

    def forget(self, run: RunId) -> None:
        """Releases a run's memory. The next append, if any, reads the streams again."""
        self._retired_runs.pop(run, None)
        self._live_runs.pop(run, None)
        for key in [key for key, replica in self._replicas.items() if replica.live_run.run == run]:
            del self._replicas[key]

    async def flush_all(self) -> None:
        """Writes everything that is still only in memory."""
        if self._write_timer is not None:
            self._write_timer.cancel()
        if self._write_task is not None:
            await asyncio.wait([self._write_task])
        await self._write_all()

    async def _replica(self, attempt: AttemptId, rank: int) -> _ReplicaStreams:
        replica = self._replicas.get((attempt, rank))
        if replica is not None:
            return replica
        run_id, number = split_attempt(attempt)
        run = await self._runs.get(run_id)
        numbers = {1} if run.offline else {recorded.number for recorded in await self._runs.attempts(run_id)}
        if number not in numbers or rank >= run.spec.size:
            raise NotFound(f"run {run_id} has no attempt {number} with a replica {rank}")
        live = (
            LiveRun(run_id, attempt)
            if number < max(numbers)
            else await self._load_live_run(attempt, needs_history=run.spec.size > 1 or may_restart(run.spec))
        )
        live.evaluated = None if run.spec.evaluation is None else run.spec.evaluation.run
        superseded = self._live_runs.get(run_id) is not live
        limits = self._limits.for_run(run.spec)
        return self._replicas.setdefault(
            (attempt, rank),
            _ReplicaStreams(
                attempt,
                rank,
                live,
                run.offline,
                superseded,
                may_restart=rank in restartable_ranks(run.spec),
                limits=limits,
            ),
        )

    async def _load_live_run(self, attempt: AttemptId, *, needs_history: bool) -> LiveRun:
        """Returns the live state of a run, of which this is the newest attempt. All of its replicas wait
        while the first one reads the streams. needs_history: the streams matter in a first attempt, too."""
        run, number = split_attempt(attempt)
        live = self._live_runs.get(run)
        if live is not None and live.attempt == attempt:
            return live
        if number > 1 or needs_history:
            load_task = self._load_tasks.get(attempt)
            if load_task is None:
                load_task = self._load_tasks[attempt] = asyncio.get_running_loop().create_task(
                    self._load_history(attempt)
                )
                load_task.add_done_callback(lambda _: self._load_tasks.pop(attempt, None))
            live = await asyncio.shield(load_task)
        else:
            live = LiveRun(run, attempt)
        current = self._live_runs.get(run)
        # another replica has loaded it meanwhile
        if (
            current is not None
            and current.attempt is not None
            and split_attempt(current.attempt)[1] >= number
        ):
            return current if current.attempt == attempt else live
        self._live_runs[run] = live
        if current is not None:
            for (other_attempt, _), replica in self._replicas.items():
                replica.superseded |= replica.live_run.run == run and other_attempt != attempt
        return live

    async def _load_history(self, attempt: AttemptId) -> LiveRun:
        """Builds the live state from the visible parts of the earlier attempts and of this one.

        Points without a step are numbered on from there, and rolled-back values disappear. The parts of this
        attempt matter after a restart of the server, since its replicas connect again one by one, and those
        that have ended do not. The events of a first attempt are in the store.
        """
        run, number = split_attempt(attempt)
        is_repeated, history = number > 1, await load_history(self._runs, self._streams, run)
        restarts, restartable = dict(history.visible_streams.restarts), restartable_ranks(history.run.spec)
        live = LiveRun(run, attempt, replace_metrics=is_repeated or bool(restarts), restarts=restarts)
        if is_repeated and history.visible_streams.attempts == (attempt,):
            live.earlier = dict((await self._runs.latest_metrics([run]))[run])
        live.evaluations = await self._read_evaluations(run)
        keys = await self._streams.list(run)
        for rank in sorted({key.rank for key in keys}):
            last_steps = live.initial_steps.setdefault(rank, {})
            for visible_attempt in history.visible_streams.attempts:
                replica = _ReplicaStreams(
                    visible_attempt, rank, live, offline=False, may_restart=rank in restartable
                )
                for stream in (*(("events",) if is_repeated else ()), *replica.metric_readers):
                    if StreamKey(visible_attempt, rank, stream) not in keys:
                        continue
                    if stream in replica.metric_readers:
                        replica.metric_readers[stream] = LatestMetrics(last_steps)
                    await self._reread_stream(
                        replica,
                        stream,
                        history.visible_streams.visible_length_of(visible_attempt, rank, stream),
                    )
                if visible_attempt != attempt:
                    for stream in reversed(METRIC_STREAMS):  # those of `hop.log` count
                        last_steps.update(replica.metric_readers[stream].last_steps)
        return live

    async def _read_evaluations(self, run: RunId) -> dict[str, tuple[int, float]]:
        evaluators = await find_evaluators(self._runs, run)
        found = await self._runs.latest_metrics(evaluators) if evaluators else {}
        return {name: point for latest in found.values() for name, point in latest.items()}

    async def _reread_streams(self, replica: _ReplicaStreams) -> None:
        """Parses the stored streams of a replica again, after a restart of the server."""
        if replica.ready:
            return
        replica.lengths = dict(await self._streams.lengths(replica.attempt, replica.rank))
        last_steps = replica.live_run.initial_steps.get(replica.rank)
        replica.line_readers = {"events": LineReader(), "system": LineReader()}
        replica.metric_readers = {
            "metrics": LatestMetrics(last_steps),
            "tensorboard": LatestMetrics(last_steps),
        }
        for stream in () if replica.superseded else (*replica.line_readers, *replica.metric_readers):
            length = replica.lengths.get(stream, 0)
            if await self._reread_stream(replica, stream, length) < length:
                raise Conflict(f"stream {stream} of {replica.attempt} is shorter than before")
        replica.ready = True

    async def _reread_metrics(self, replica: _ReplicaStreams) -> None:
        """Parses the stored metrics of a replica again, without the part that its next process repeats."""
        live, replica.is_outdated = replica.live_run, False
        names = live.forget_points(replica.rank)
        last_steps = live.initial_steps.get(replica.rank)
        for stream in replica.metric_readers:
            replica.metric_readers[stream] = LatestMetrics(last_steps)
            await self._reread_stream(replica, stream, replica.lengths.get(stream, 0))
        live.evaluations = await self._read_evaluations(live.run)
        others = [each for each in self._replicas.values() if each.live_run is live and each is not replica]
        live.replace_points(
            names,
            [
                (each.rank, reader)
                for each in sorted(others, key=lambda each: each.rank)
                for reader in each.metric_readers.values()
            ],
        )
        self._schedule_write()

    async def _reread_stream(self, replica: _ReplicaStreams, stream: str, limit: int | None) -> int:
        """Parses the first `limit` bytes of a stream; all of it when None. Returns how many bytes there
        were."""
        key, position = StreamKey(replica.attempt, replica.rank, stream), 0
        lengths = {} if limit is None else {(replica.attempt, replica.rank, stream): limit}
        restarts = replica.live_run.restarts if stream in replica.metric_readers else {}
        view = VisibleStreams((replica.attempt,), lengths, restarts=restarts)
        async for span, data in read_spans(self._streams, key, view, block_bytes=_REREAD_BYTES):
            self._parse(replica, stream, data, span)
            position += len(data)
            await asyncio.sleep(0)
        return position

    def _parse(
        self, replica: _ReplicaStreams, stream: str, data: bytes, span: StreamSegment | None = None
    ) -> bool:
        """Parses new bytes. Returns whether they changed the live state. Never raises because of their
        content. span: of stored bytes."""
        if replica.superseded:
            return False
        live, rank = replica.live_run, replica.rank
        if stream in replica.metric_readers:
            if span is not None and span.is_restart:
                replica.metric_readers[stream].restart()
            if span is not None and span.is_hidden:
                replica.metric_readers[stream].feed(data, hidden=True)
                return False
            logged = replica.metric_readers[LOGGED_STREAM].names if stream != LOGGED_STREAM else ()
            reader = replica.metric_readers[stream]
            is_changed = live.apply_points(rank, reader, data, logged=logged)
            if span is None and reader.has_purge:
                replica.is_outdated = True
            reader.has_purge = False
            return is_changed
        changed = False
        if stream == "events":
            for event in replica.line_readers[stream].feed(data):
                if event.get("kind") in SAFE_POINT_EVENTS:
                    live.safe_points_of.add(replica.attempt)
                if event.get("kind") == RunEventKind.RESTARTED:
                    # any script can write such a line
                    if not replica.may_restart or replica.restart_count >= MAX_RESTARTS:
                        continue
                    replica.restart_count += 1
                    if replica.ready:
                        add_restart(live.restarts, replica.attempt, rank, event)
                        replica.is_outdated = True
                if event.get("kind") == "command":
                    changed |= live.apply_command_result(replica.attempt, event)
                else:
                    changed |= live.apply_event(rank, event)
        elif stream == "system":
            for line in replica.line_readers[stream].feed(data):
                sample = parse_sample(line, rank)
                changed |= sample is not None and live.apply_system(rank, sample)
        return changed

    # -- writing to the store, at most every two seconds -----------------------------------------------------

    def _schedule_write(self, *, urgent: bool = False) -> None:
        if urgent and self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self._write_timer is None:
            self._write_timer = asyncio.get_running_loop().call_later(
                _ANSWER_WRITE_DELAY_S if urgent else _WRITE_INTERVAL_S, self._start_write_task
            )

    def _start_write_task(self) -> None:
        self._write_timer = None
        if self._write_task is not None and not self._write_task.done():
            self._schedule_write(urgent=any(live.answers for live in self._live_runs.values()))
            return
        self._write_task = asyncio.get_running_loop().create_task(self._write_all())

    async def _write_all(self) -> None:
        for live in list(self._live_runs.values()):
            if not live.is_dirty:
                continue
            has_answers = bool(live.answers)
            try:
                await live.write(self._runs, self._commands, self._notifications)
                if has_answers:
                    self._subscriptions.notify_state(live.run)
            except NotFound:
                self.forget(live.run)
            except HopyardError as error:
                log.warning("latest values of run %s are not written: %s", live.run, error)
                self._schedule_write()
            except Exception:
                log.exception("latest values of run %s are not written", live.run)
                self._schedule_write()


def _cut_to_limit(segment: Segment, max_length: int | None) -> Segment:
    """Returns the part of a segment that is within the limit of its stream."""
    if max_length is None or segment.offset + len(segment.data) <= max_length:
        return segment
    return Segment(segment.stream, segment.offset, segment.data[: max(0, max_length - segment.offset)])
