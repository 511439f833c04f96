"""Takes in what replicas ship: appends bytes at exact offsets, reads events and metrics as they pass.

The streams are the truth. What is kept in memory is made again from them after a restart, and nothing that a
stream holds can break the taking in: a line or record that makes no sense is skipped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hopyard.config.units import format_bytes
from hopyard.domain.ids import AttemptId, RunId, split_attempt
from hopyard.domain.stream_limits import NO_LIMITS, StreamLimits
from hopyard.errors import Conflict, HopyardError, NotFound, StorageFull
from hopyard.interfaces.run_store import RunStore
from hopyard.interfaces.streams import Segment, StreamKey, Streams
from hopyard.tracking.json_lines import LineReader
from hopyard.tracking.latest_metrics import LatestMetrics
from hopyard.tracking.live_run import LiveRun, parse_sample
from hopyard.tracking.rollback import JOURNAL_STREAM
from hopyard.tracking.run_history import load_history
from hopyard.tracking.run_subscriptions import RunSubscriptions

_OUTPUT_STREAMS = frozenset({"stdout", "stderr", "events", "journal"})
_WRITE_INTERVAL_S = 2.0
_MAX_RETIRED_RUNS = 64  # runs that are over and still in memory, for their followers
_REREAD_BYTES = 1024 * 1024
log = logging.getLogger("hopyard.tracking")


@dataclass(slots=True)
class _ReplicaStreams:
    """What is remembered of one replica's streams between two syncs.
    superseded: by a later attempt of its run. limits: what is kept."""

    attempt: AttemptId
    rank: int
    live_run: LiveRun
    offline: bool
    superseded: bool = False
    limits: StreamLimits = NO_LIMITS
    lengths: dict[str, int] = field(default_factory=dict)
    # streams beyond their limit: up to where their bytes came
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
    """One per server. All calls belong to one event loop.
    limits: of the streams of each replica; a run may have smaller ones."""

    def __init__(
        self,
        runs: RunStore,
        streams: Streams,
        subscriptions: RunSubscriptions,
        *,
        limits: StreamLimits = NO_LIMITS,
    ) -> None:
        self._runs, self._streams, self._subscriptions, self._limits = runs, streams, subscriptions, limits
        self._live_runs: dict[RunId, LiveRun] = {}  # of the newest attempt of each run
        # while what is seen before an attempt is read
        self._load_tasks: dict[AttemptId, asyncio.Task[LiveRun]] = {}
        self._replicas: dict[tuple[AttemptId, int], _ReplicaStreams] = {}
        self._retired_runs: dict[RunId, None] = {}  # runs that ended, oldest first
        self._write_task: asyncio.Task[None] | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    async def append(
        self, attempt: AttemptId, rank: int, segments: Sequence[Segment], *, run_ended: bool = False
    ) -> Mapping[str, int]:
        """Append what comes in order; the length of each of the replica's streams afterwards, whether or not
        all was taken.

        run_ended: the run has ended: what is held already is acknowledged, and more raises Conflict. What a
        superseded attempt still ships is kept, and counts for nothing; its journal is not, since a later
        attempt resumes from what stood there. Bytes beyond the limit of a stream are acknowledged and not
        kept, so that no replica waits for ever. Raises NotFound for an attempt that its run never had,
        StorageFull."""
        replica = await self._replica(attempt, rank)
        async with replica.lock:
            await self._reread_streams(replica)
            sent, segments = (
                segments,
                [_cut_to_limit(one, replica.limits.max_sent_bytes(one.stream)) for one in segments],
            )
            if run_ended and any(
                one.offset + len(one.data) > replica.lengths.get(one.stream, 0)
                for one in segments
                if one.data
            ):
                raise Conflict(
                    f"run {split_attempt(attempt)[0]} is over: nothing is added to what it wrote",
                    hints=("`hop fork` runs it again",),
                )
            taken = (
                [one for one in segments if one.stream != JOURNAL_STREAM] if replica.superseded else segments
            )
            dropped = {
                one.stream: one.offset + len(one.data)
                for one in sent
                if one.stream == JOURNAL_STREAM and replica.superseded
            }
            try:
                lengths = await self._streams.append(attempt, rank, taken) if taken else ()
                self._read_segments(replica, taken, lengths)
            except (StorageFull, OSError):
                held = await self._streams.lengths(attempt, rank)
                self._read_segments(replica, taken, [held.get(segment.stream, 0) for segment in taken])
                raise
            await self._drop_over_limit(replica, sent)
            return {**replica.lengths, **replica.dropped_bytes, **dropped}

    async def _drop_over_limit(self, replica: _ReplicaStreams, segments: Sequence[Segment]) -> None:
        """Acknowledge what came beyond the limit of a stream, and say once for each that it is not kept."""
        passed: dict[str, int] = {}
        for segment in segments:
            most, end = replica.limits.max_sent_bytes(segment.stream), segment.offset + len(segment.data)
            before = max(
                passed.get(segment.stream, 0),
                replica.dropped_bytes.get(segment.stream, 0),
                replica.lengths.get(segment.stream, 0),
            )
            if most is not None and end > most and before >= max(most, segment.offset):
                passed[segment.stream] = max(before, end)
        for stream in sorted(passed.keys() - replica.dropped_bytes.keys()):
            run, most = replica.live_run.run, replica.limits.max_sent_bytes(stream)
            text = (
                f"{stream} of replica {replica.rank} is longer than a replica sends "
                f"({format_bytes(most or 0)}): the server keeps no more of it"
            )
            log.warning("run %s: %s", run, text)
            await self._runs.record_unstored(run, [text])
            self._subscriptions.notify_state(run)
        replica.dropped_bytes |= passed

    def _read_segments(
        self, replica: _ReplicaStreams, segments: Sequence[Segment], lengths: Sequence[int]
    ) -> None:
        """Read what is new in segments of streams that are this long now, and tell followers."""
        run, told = replica.live_run.run, False
        for segment, length in zip(segments, lengths, strict=True):
            before = replica.lengths.get(segment.stream, 0)
            after = min(length, segment.offset + len(segment.data))
            if after <= before:
                continue
            replica.lengths[segment.stream] = after
            fresh = bytes(segment.data[before - segment.offset : after - segment.offset])
            if segment.stream in _OUTPUT_STREAMS:
                self._subscriptions.notify_output(
                    run, StreamKey(replica.attempt, replica.rank, segment.stream), after, fresh
                )
            told |= self._parse(replica, segment.stream, fresh)
        if told:
            self._subscriptions.notify_progress(run)
        if replica.live_run.is_dirty:
            self._schedule_write()

    async def flush(self, attempt: AttemptId, rank: int) -> None:
        """Make all that was taken of this replica durable, and the store up to date with it."""
        replica = await self._replica(attempt, rank)
        async with replica.lock:
            await self._reread_streams(replica)
            await self._streams.sync(attempt, rank)
            if not replica.superseded:
                await replica.live_run.write(self._runs)

    async def limits(self, attempt: AttemptId, rank: int) -> StreamLimits:
        """Of the streams of this replica. Raises NotFound as `take`."""
        return (await self._replica(attempt, rank)).limits

    async def is_offline(self, attempt: AttemptId, rank: int) -> bool:
        """Whether these are the streams of a run that was recorded without a server.
        Raises NotFound as `take`."""
        return (await self._replica(attempt, rank)).offline

    def get_live_run(self, run: RunId) -> LiveRun | None:
        """What a run says now; None when nothing of it was heard since the server started (the store then
        knows all)."""
        return self._live_runs.get(run)

    def latest_metrics(
        self, stored: Mapping[RunId, Mapping[str, tuple[int, float]]]
    ) -> dict[RunId, dict[str, tuple[int, float]]]:
        """The store's latest metrics, overlaid with newer ones that are still only in memory."""
        return {
            run: {**told, **(self._live_runs[run].latest if run in self._live_runs else {})}
            for run, told in stored.items()
        }

    async def retire(self, run: RunId) -> None:
        """The run is over: write what it said last. Its memory goes when that of enough later ones came."""
        live = self._live_runs.get(run)
        if live is not None:
            await live.write(self._runs)
            self._retired_runs[run] = None
            while len(self._retired_runs) > _MAX_RETIRED_RUNS:
                self.forget(next(iter(self._retired_runs)))

    def forget(self, run: RunId) -> None:
        """Give a run's memory back. The next sync, if any, reads the streams again."""
        self._retired_runs.pop(run, None)
        self._live_runs.pop(run, None)
        for key in [key for key, replica in self._replicas.items() if replica.live_run.run == run]:
            del self._replicas[key]

    async def flush_all(self) -> None:
        """Write what is still only in memory."""
        if self._write_timer is not None:
            self._write_timer.cancel()
        if self._write_task is not None:
            await asyncio.wait([self._write_task])
        await self._write_all()

    async def _replica(self, attempt: AttemptId, rank: int) -> _ReplicaStreams:
        found = self._replicas.get((attempt, rank))
        if found is not None:
            return found
        run_id, number = split_attempt(attempt)
        run = await self._runs.get(run_id)
        numbers = {1} if run.offline else {one.number for one in await self._runs.attempts(run_id)}
        if number not in numbers or rank >= run.spec.size:
            raise NotFound(f"run {run_id} has no attempt {number} with a replica {rank}")
        live = LiveRun(run_id, attempt) if number < max(numbers) else await self._load_live_run(attempt)
        superseded = self._live_runs.get(run_id) is not live
        limits = self._limits.for_run(run.spec)
        return self._replicas.setdefault(
            (attempt, rank), _ReplicaStreams(attempt, rank, live, run.offline, superseded, limits)
        )

    async def _load_live_run(self, attempt: AttemptId) -> LiveRun:
        """What the run says now, of which this is the newest attempt.
        All of its replicas wait for the first one to look back."""
        run, number = split_attempt(attempt)
        live = self._live_runs.get(run)
        if live is not None and live.attempt == attempt:
            return live
        if number > 1:
            begun = self._load_tasks.get(attempt)
            if begun is None:
                begun = self._load_tasks[attempt] = asyncio.get_running_loop().create_task(
                    self._load_history(attempt)
                )
                begun.add_done_callback(lambda _: self._load_tasks.pop(attempt, None))
            live = await asyncio.shield(begun)
        else:
            live = LiveRun(run, attempt)
        known = self._live_runs.get(run)
        # another replica was quicker
        if known is not None and known.attempt is not None and split_attempt(known.attempt)[1] >= number:
            return known if known.attempt == attempt else live
        self._live_runs[run] = live
        if known is not None:
            for (other, _), replica in self._replicas.items():
                replica.superseded |= replica.live_run.run == run and other != attempt
        return live

    async def _load_history(self, attempt: AttemptId) -> LiveRun:
        """What is seen of the attempts before this one: its points are counted on from there, and what is
        rolled back is said no longer. And what its replicas said themselves, where this server is a new one:
        they come one by one."""
        run, _ = split_attempt(attempt)
        live, past = (
            LiveRun(run, attempt, replace_metrics=True),
            await load_history(self._runs, self._streams, run),
        )
        keys = await self._streams.list(run)
        for rank in sorted({key.rank for key in keys}):
            last = live.began_at.setdefault(rank, {})
            for seen in past.visible_streams.attempts:
                replica = _ReplicaStreams(seen, rank, live, offline=False)
                for stream in ("events", *replica.metric_readers):
                    if StreamKey(seen, rank, stream) not in keys:
                        continue
                    if stream in replica.metric_readers:
                        replica.metric_readers[stream] = LatestMetrics(last)
                    await self._reread_stream(
                        replica, stream, past.visible_streams.visible_length_of(seen, rank, stream)
                    )
                    if stream in replica.metric_readers and seen != attempt:
                        last.update(replica.metric_readers[stream].last_steps)
        return live

    async def _reread_streams(self, replica: _ReplicaStreams) -> None:
        """After a restart: look again at what was taken before it."""
        if replica.ready:
            return
        replica.lengths = dict(await self._streams.lengths(replica.attempt, replica.rank))
        last = replica.live_run.began_at.get(replica.rank)
        replica.line_readers = {"events": LineReader(), "system": LineReader()}
        replica.metric_readers = {"metrics": LatestMetrics(last), "tensorboard": LatestMetrics(last)}
        for stream in () if replica.superseded else (*replica.line_readers, *replica.metric_readers):
            length = replica.lengths.get(stream, 0)
            if await self._reread_stream(replica, stream, length) < length:
                raise Conflict(f"stream {stream} of {replica.attempt} is shorter than it was")
        replica.ready = True

    async def _reread_stream(self, replica: _ReplicaStreams, stream: str, limit: int | None) -> int:
        """Look at the first `limit` bytes of a stream, at all of it where that is None; how many there
        were."""
        key, at = StreamKey(replica.attempt, replica.rank, stream), 0
        while limit is None or at < limit:
            data = await self._streams.read(
                key, at, _REREAD_BYTES if limit is None else min(_REREAD_BYTES, limit - at)
            )
            if not data:
                break
            self._parse(replica, stream, data)
            at += len(data)
            await asyncio.sleep(0)
        return at

    def _parse(self, replica: _ReplicaStreams, stream: str, data: bytes) -> bool:
        """Read new bytes; whether they said something about the run. Never raises for what they hold."""
        if replica.superseded:
            return False
        live, rank = replica.live_run, replica.rank
        if stream in replica.metric_readers:
            return live.apply_points(rank, replica.metric_readers[stream].feed(data))
        told = False
        if stream == "events":
            for event in replica.line_readers[stream].feed(data):
                told |= live.apply_event(rank, event)
        elif stream == "system":
            for line in replica.line_readers[stream].feed(data):
                sample = parse_sample(line, rank)
                told |= sample is not None and live.apply_system(rank, sample)
        return told

    # -- writing to the store, at most every two seconds -----------------------------------------------------

    def _schedule_write(self) -> None:
        if self._write_timer is None:
            self._write_timer = asyncio.get_running_loop().call_later(
                _WRITE_INTERVAL_S, self._start_write_task
            )

    def _start_write_task(self) -> None:
        self._write_timer = None
        if self._write_task is not None and not self._write_task.done():
            self._schedule_write()
            return
        self._write_task = asyncio.get_running_loop().create_task(self._write_all())

    async def _write_all(self) -> None:
        for live in list(self._live_runs.values()):
            if not live.is_dirty:
                continue
            try:
                await live.write(self._runs)
            except NotFound:
                self.forget(live.run)
            except HopyardError as error:
                log.warning("latest values of run %s are not written: %s", live.run, error)
                self._schedule_write()
            except Exception:
                log.exception("latest values of run %s are not written", live.run)
                self._schedule_write()


def _cut_to_limit(segment: Segment, max_length: int | None) -> Segment:
    """What of a segment is within the limit of its stream."""
    if max_length is None or segment.offset + len(segment.data) <= max_length:
        return segment
    return Segment(segment.stream, segment.offset, segment.data[: max(0, max_length - segment.offset)])
