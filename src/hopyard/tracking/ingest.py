"""Takes in what replicas ship: appends bytes at exact offsets, reads events and metrics as they pass.

The streams are the truth. What is kept in memory is made again from them after a restart, and nothing that a
stream holds can break the taking in: a line or record that makes no sense is skipped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hopyard.config.units import bytes_in_words
from hopyard.domain.ids import AttemptId, RunId, split_attempt
from hopyard.domain.stream_limits import UNLIMITED, StreamLimits
from hopyard.errors import Conflict, HopyardError, NotFound, StorageFull
from hopyard.interfaces.run_store import RunStore
from hopyard.interfaces.streams import Segment, StreamKey, Streams
from hopyard.tracking.hub import Hub
from hopyard.tracking.lines import LineReader
from hopyard.tracking.live import LiveRun, read_sample
from hopyard.tracking.past import look_back
from hopyard.tracking.points import PointReader
from hopyard.tracking.view import JOURNAL

STREAMS = ("stdout", "stderr", "metrics", "tensorboard", "events", "system", "journal")
_OUTPUT = frozenset({"stdout", "stderr", "events", "journal"})
_WRITE_EVERY_S = 2.0
_KEPT_OVER = 64  # runs that are over and still in memory, for their followers
_REREAD_BYTES = 1024 * 1024
log = logging.getLogger("hopyard.tracking")


@dataclass(slots=True)
class _Replica:
    """What is remembered of one replica's streams between two syncs.
    superseded: by a later attempt of its run. limits: what is kept."""

    attempt: AttemptId
    rank: int
    live: LiveRun
    offline: bool
    superseded: bool = False
    limits: StreamLimits = UNLIMITED
    lengths: dict[str, int] = field(default_factory=dict)
    # streams beyond their limit: up to where their bytes came
    refused: dict[str, int] = field(default_factory=dict)
    lines: dict[str, LineReader] = field(
        default_factory=lambda: {"events": LineReader(), "system": LineReader()}
    )
    points: dict[str, PointReader] = field(
        default_factory=lambda: {"metrics": PointReader(), "tensorboard": PointReader()}
    )
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    ready: bool = False


class Ingest:
    """One per server. All calls belong to one event loop.
    limits: of the streams of each replica; a run may have smaller ones."""

    def __init__(
        self, runs: RunStore, streams: Streams, hub: Hub, *, limits: StreamLimits = UNLIMITED
    ) -> None:
        self._runs, self._streams, self._hub, self._limits = runs, streams, hub, limits
        self._live: dict[RunId, LiveRun] = {}  # of the newest attempt of each run
        # while what is seen before an attempt is read
        self._begun: dict[AttemptId, asyncio.Task[LiveRun]] = {}
        self._replicas: dict[tuple[AttemptId, int], _Replica] = {}
        self._over: dict[RunId, None] = {}  # runs that ended, oldest first
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def take(
        self, attempt: AttemptId, rank: int, segments: Sequence[Segment], *, over: bool = False
    ) -> Mapping[str, int]:
        """Append what comes in order; the length of each of the replica's streams afterwards, whether or not
        all was taken.

        over: the run has ended: what is held already is acknowledged, and more raises Conflict. What a
        superseded attempt still ships is kept, and counts for nothing; its journal is not, since a later
        attempt resumes from what stood there. Bytes beyond the limit of a stream are acknowledged and not
        kept, so that no replica waits for ever. Raises NotFound for an attempt that its run never had,
        StorageFull."""
        replica = await self._replica(attempt, rank)
        async with replica.lock:
            await self._reread(replica)
            sent, segments = (
                segments,
                [_within(one, replica.limits.most_bytes(one.stream)) for one in segments],
            )
            if over and any(
                one.offset + len(one.data) > replica.lengths.get(one.stream, 0)
                for one in segments
                if one.data
            ):
                raise Conflict(
                    f"run {split_attempt(attempt)[0]} is over: nothing is added to what it wrote",
                    hints=("`hop fork` runs it again",),
                )
            taken = [one for one in segments if one.stream != JOURNAL] if replica.superseded else segments
            dropped = {
                one.stream: one.offset + len(one.data)
                for one in sent
                if one.stream == JOURNAL and replica.superseded
            }
            try:
                lengths = await self._streams.append(attempt, rank, taken) if taken else ()
                self._look_at(replica, taken, lengths)
            except (StorageFull, OSError):
                held = await self._streams.lengths(attempt, rank)
                self._look_at(replica, taken, [held.get(segment.stream, 0) for segment in taken])
                raise
            await self._refuse(replica, sent)
            return {**replica.lengths, **replica.refused, **dropped}

    async def _refuse(self, replica: _Replica, sent: Sequence[Segment]) -> None:
        """Acknowledge what came beyond the limit of a stream, and say once for each that it is not kept."""
        passed: dict[str, int] = {}
        for segment in sent:
            most, end = replica.limits.most_bytes(segment.stream), segment.offset + len(segment.data)
            before = max(
                passed.get(segment.stream, 0),
                replica.refused.get(segment.stream, 0),
                replica.lengths.get(segment.stream, 0),
            )
            if most is not None and end > most and before >= max(most, segment.offset):
                passed[segment.stream] = max(before, end)
        for stream in sorted(passed.keys() - replica.refused.keys()):
            run, most = replica.live.run, replica.limits.most_bytes(stream)
            text = (
                f"{stream} of replica {replica.rank} is longer than a replica sends "
                f"({bytes_in_words(most or 0)}): the server keeps no more of it"
            )
            log.warning("run %s: %s", run, text)
            await self._runs.record_unstored(run, [text])
            self._hub.state_changed(run)
        replica.refused |= passed

    def _look_at(self, replica: _Replica, segments: Sequence[Segment], lengths: Sequence[int]) -> None:
        """Read what is new in segments of streams that are this long now, and tell followers."""
        run, told = replica.live.run, False
        for segment, length in zip(segments, lengths, strict=True):
            before = replica.lengths.get(segment.stream, 0)
            after = min(length, segment.offset + len(segment.data))
            if after <= before:
                continue
            replica.lengths[segment.stream] = after
            fresh = bytes(segment.data[before - segment.offset : after - segment.offset])
            if segment.stream in _OUTPUT:
                self._hub.output_grew(
                    run, StreamKey(replica.attempt, replica.rank, segment.stream), after, fresh
                )
            told |= self._look(replica, segment.stream, fresh)
        if told:
            self._hub.progressed(run)
        if replica.live.dirty:
            self._write_soon()

    async def settle(self, attempt: AttemptId, rank: int) -> None:
        """Make all that was taken of this replica durable, and the store up to date with it."""
        replica = await self._replica(attempt, rank)
        async with replica.lock:
            await self._reread(replica)
            await self._streams.sync(attempt, rank)
            if not replica.superseded:
                await replica.live.write(self._runs)

    async def limits(self, attempt: AttemptId, rank: int) -> StreamLimits:
        """Of the streams of this replica. Raises NotFound as `take`."""
        return (await self._replica(attempt, rank)).limits

    async def offline(self, attempt: AttemptId, rank: int) -> bool:
        """Whether these are the streams of a run that was recorded without a server.
        Raises NotFound as `take`."""
        return (await self._replica(attempt, rank)).offline

    def live(self, run: RunId) -> LiveRun | None:
        """What a run says now; None when nothing of it was heard since the server started (the store then
        knows all)."""
        return self._live.get(run)

    def latest(
        self, stored: Mapping[RunId, Mapping[str, tuple[int, float]]]
    ) -> dict[RunId, dict[str, tuple[int, float]]]:
        """The store's latest metrics, overlaid with newer ones that are still only in memory."""
        return {
            run: {**told, **(self._live[run].latest if run in self._live else {})}
            for run, told in stored.items()
        }

    async def retire(self, run: RunId) -> None:
        """The run is over: write what it said last. Its memory goes when that of enough later ones came."""
        live = self._live.get(run)
        if live is not None:
            await live.write(self._runs)
            self._over[run] = None
            while len(self._over) > _KEPT_OVER:
                self.forget(next(iter(self._over)))

    def forget(self, run: RunId) -> None:
        """Give a run's memory back. The next sync, if any, reads the streams again."""
        self._over.pop(run, None)
        self._live.pop(run, None)
        for key in [key for key, replica in self._replicas.items() if replica.live.run == run]:
            del self._replicas[key]

    async def close(self) -> None:
        """Write what is still only in memory."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        await self._write()

    async def _replica(self, attempt: AttemptId, rank: int) -> _Replica:
        found = self._replicas.get((attempt, rank))
        if found is not None:
            return found
        run_id, number = split_attempt(attempt)
        run = await self._runs.get(run_id)
        numbers = {1} if run.offline else {one.number for one in await self._runs.attempts(run_id)}
        if number not in numbers or rank >= run.spec.size:
            raise NotFound(f"run {run_id} has no attempt {number} with a replica {rank}")
        live = LiveRun(run_id, attempt) if number < max(numbers) else await self._begin(attempt)
        superseded = self._live.get(run_id) is not live
        limits = self._limits.of_run(run.spec)
        return self._replicas.setdefault(
            (attempt, rank), _Replica(attempt, rank, live, run.offline, superseded, limits)
        )

    async def _begin(self, attempt: AttemptId) -> LiveRun:
        """What the run says now, of which this is the newest attempt.
        All of its replicas wait for the first one to look back."""
        run, number = split_attempt(attempt)
        live = self._live.get(run)
        if live is not None and live.attempt == attempt:
            return live
        if number > 1:
            begun = self._begun.get(attempt)
            if begun is None:
                begun = self._begun[attempt] = asyncio.get_running_loop().create_task(
                    self._look_back(attempt)
                )
                begun.add_done_callback(lambda _: self._begun.pop(attempt, None))
            live = await asyncio.shield(begun)
        else:
            live = LiveRun(run, attempt)
        known = self._live.get(run)
        # another replica was quicker
        if known is not None and known.attempt is not None and split_attempt(known.attempt)[1] >= number:
            return known if known.attempt == attempt else live
        self._live[run] = live
        if known is not None:
            for (other, _), replica in self._replicas.items():
                replica.superseded |= replica.live.run == run and other != attempt
        return live

    async def _look_back(self, attempt: AttemptId) -> LiveRun:
        """What is seen of the attempts before this one: its points are counted on from there, and what is
        rolled back is said no longer. And what its replicas said themselves, where this server is a new one:
        they come one by one."""
        run, _ = split_attempt(attempt)
        live, past = LiveRun(run, attempt, anew=True), await look_back(self._runs, self._streams, run)
        keys = await self._streams.list(run)
        for rank in sorted({key.rank for key in keys}):
            last = live.began_at.setdefault(rank, {})
            for seen in past.view.attempts:
                replica = _Replica(seen, rank, live, offline=False)
                for stream in ("events", *replica.points):
                    if StreamKey(seen, rank, stream) not in keys:
                        continue
                    if stream in replica.points:
                        replica.points[stream] = PointReader(last)
                    await self._read(replica, stream, past.view.limit(seen, rank, stream))
                    if stream in replica.points and seen != attempt:
                        last.update(replica.points[stream].last)
        return live

    async def _reread(self, replica: _Replica) -> None:
        """After a restart: look again at what was taken before it."""
        if replica.ready:
            return
        replica.lengths = dict(await self._streams.lengths(replica.attempt, replica.rank))
        last = replica.live.began_at.get(replica.rank)
        replica.lines = {"events": LineReader(), "system": LineReader()}
        replica.points = {"metrics": PointReader(last), "tensorboard": PointReader(last)}
        for stream in () if replica.superseded else (*replica.lines, *replica.points):
            length = replica.lengths.get(stream, 0)
            if await self._read(replica, stream, length) < length:
                raise Conflict(f"stream {stream} of {replica.attempt} is shorter than it was")
        replica.ready = True

    async def _read(self, replica: _Replica, stream: str, limit: int | None) -> int:
        """Look at the first `limit` bytes of a stream, at all of it where that is None; how many there
        were."""
        key, at = StreamKey(replica.attempt, replica.rank, stream), 0
        while limit is None or at < limit:
            data = await self._streams.read(
                key, at, _REREAD_BYTES if limit is None else min(_REREAD_BYTES, limit - at)
            )
            if not data:
                break
            self._look(replica, stream, data)
            at += len(data)
            await asyncio.sleep(0)
        return at

    def _look(self, replica: _Replica, stream: str, data: bytes) -> bool:
        """Read new bytes; whether they said something about the run. Never raises for what they hold."""
        if replica.superseded:
            return False
        live, rank = replica.live, replica.rank
        if stream in replica.points:
            return live.take_points(rank, replica.points[stream].feed(data))
        told = False
        if stream == "events":
            for event in replica.lines[stream].feed(data):
                told |= live.take_event(rank, event)
        elif stream == "system":
            for line in replica.lines[stream].feed(data):
                sample = read_sample(line, rank)
                told |= sample is not None and live.take_system(rank, sample)
        return told

    # -- writing to the store, at most every two seconds
    # ----------------------------------------------------------

    def _write_soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WRITE_EVERY_S, self._start_writing)

    def _start_writing(self) -> None:
        self._timer = None
        if self._writing is not None and not self._writing.done():
            self._write_soon()
            return
        self._writing = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        for live in list(self._live.values()):
            if not live.dirty:
                continue
            try:
                await live.write(self._runs)
            except NotFound:
                self.forget(live.run)
            except HopyardError as error:
                log.warning("latest values of run %s are not written: %s", live.run, error)
                self._write_soon()
            except Exception:
                log.exception("latest values of run %s are not written", live.run)
                self._write_soon()


def _within(segment: Segment, most: int | None) -> Segment:
    """What of a segment is within the limit of its stream."""
    if most is None or segment.offset + len(segment.data) <= most:
        return segment
    return Segment(segment.stream, segment.offset, segment.data[: max(0, most - segment.offset)])
