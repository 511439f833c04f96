"""Following a run: its state, output and progress as they come, until it is final.

The frames are described in docs/designs/0001-main-path.md, section 5. A follower reads the streams itself at
its own pace: nothing is queued for it, so a slow one holds no memory and misses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.run import Run
from hopyard.domain.stream_limits import OUTPUT_STREAMS
from hopyard.interfaces.run_store import RunStore
from hopyard.interfaces.streams import StreamKey, Streams
from hopyard.tracking.ingest import StreamIngest
from hopyard.tracking.run_history import RunHistory, load_history
from hopyard.tracking.run_subscriptions import RunSubscriptions, Subscription

PING_INTERVAL_S = 15.0
PROGRESS_INTERVAL_S = 1.0
_READ_BYTES = 64 * 1024  # what one follower holds of memory: there may be thousands
_Cursors = dict[tuple[AttemptId, int, str], int]


@dataclass(frozen=True, slots=True)
class FollowRequest:
    """What a follower wants: which streams, which ranks (None: all), and where it stands in each stream
    already."""

    streams: tuple[str, ...] = OUTPUT_STREAMS
    ranks: frozenset[int] | None = None
    cursors: Mapping[tuple[AttemptId, int, str], int] = field(default_factory=dict)


class RunFrameStream:
    """Yields frames. `frame(head, bytes)` is made by the caller, who knows how a run is written as JSON, and
    `readable(run)`, which is what people are to read of one."""

    def __init__(
        self, runs: RunStore, streams: Streams, ingest: StreamIngest, subscriptions: RunSubscriptions,
        *, frame: Callable[[Mapping[str, Any]], bytes], with_readable_names: Callable[[Run], Awaitable[Run]],
    ) -> None:  # fmt: skip
        self._runs, self._streams, self._ingest, self._subscriptions = runs, streams, ingest, subscriptions
        self._frame, self._with_readable_names = frame, with_readable_names

    async def frames(self, run_id: RunId, update: FollowRequest) -> AsyncIterator[bytes]:
        """Until the run is final and all its output was given, or the server ends.
        Raises NotFound at the first step."""
        with self._subscriptions.subscribe(run_id) as watch:
            cursors = dict(update.cursors)
            past = await load_history(self._runs, self._streams, run_id)
            watch.state_changed = False
            yield self._frame({"kind": "state", "run": await self._with_readable_names(past.run)})
            next_progress = 0.0
            clock = asyncio.get_running_loop().time
            everything = True
            while not watch.closed:
                if watch.state_changed:
                    watch.state_changed, everything = False, True
                    old, past = past.run, await load_history(self._runs, self._streams, run_id)
                    if _is_changed(old, past.run):
                        yield self._frame({"kind": "state", "run": await self._with_readable_names(past.run)})
                # The state was read before the streams: what a final run said is all there by now.
                grown = watch.take_stream_lengths()
                async for piece in (
                    self._all_new_output(past, update, cursors)
                    if everything
                    else self._new_output_of(past, update, cursors, grown)
                ):
                    yield piece
                everything = False
                if watch.progress_changed and (clock() >= next_progress or past.run.phase.is_final):
                    watch.progress_changed = False
                    next_progress = clock() + PROGRESS_INTERVAL_S
                    frame = self._progress(run_id)
                    if frame is not None:
                        yield frame
                if past.run.phase.is_final and not watch.state_changed:
                    yield self._frame({"kind": "end", "run": await self._with_readable_names(past.run)})
                    return
                if not await self._wait_for_news(watch, next_progress - clock()):
                    everything = True
                    yield self._frame({"kind": "ping"})

    async def _wait_for_news(self, subscription: Subscription, until_progress_s: float) -> bool:
        """Wait for something to do. False when nothing happened for so long that the line should be shown to
        be alive."""
        if subscription.progress_changed:
            await subscription.wait(max(0.0, until_progress_s))
            return True
        # Progress alone does not wake a follower more than once a second: `wait` returns, the loop looks, and
        # waits again.
        return await subscription.wait(PING_INTERVAL_S)

    async def _all_new_output(
        self, history: RunHistory, update: FollowRequest, cursors: _Cursors
    ) -> AsyncIterator[bytes]:
        """All that was not given yet."""
        ranks = range(history.run.spec.size) if update.ranks is None else sorted(update.ranks)
        for attempt in history.visible_streams.all_attempts:
            of_it = [
                stream for stream in update.streams if attempt in history.visible_streams.attempts_of(stream)
            ]
            for rank in ranks if of_it else ():
                lengths = await self._streams.lengths(attempt, rank)
                for stream in of_it:
                    async for piece in self._stream_up_to(
                        history, StreamKey(attempt, rank, stream), lengths.get(stream, 0), b"", cursors
                    ):
                        yield piece

    async def _new_output_of(
        self,
        history: RunHistory,
        update: FollowRequest,
        cursors: _Cursors,
        lengths: Mapping[StreamKey, tuple[int, bytes]],
    ) -> AsyncIterator[bytes]:
        """What was not given yet of streams that grew."""
        wished = [
            key
            for key in lengths
            if key.name in update.streams and (update.ranks is None or key.rank in update.ranks)
        ]
        for key in sorted(wished, key=lambda key: (key.rank, update.streams.index(key.name))):
            if key.attempt in history.visible_streams.attempts_of(key.name):
                async for piece in self._stream_up_to(history, key, *lengths[key], cursors):
                    yield piece

    async def _stream_up_to(
        self, history: RunHistory, key: StreamKey, length: int, tail: bytes, cursors: _Cursors
    ) -> AsyncIterator[bytes]:
        """Give a stream of this length as far as it is seen; `tail` is how it ends, as far as that is at
        hand."""
        place = (key.attempt, key.rank, key.name)
        limit, begin = history.visible_streams.visible_length_of(*place), length - len(tail)
        end = length if limit is None else min(limit, length)
        while (at := cursors.get(place, 0)) < end:
            data = (
                tail[at - begin : end - begin]
                if begin <= at
                else await self._streams.read(key, at, min(_READ_BYTES, end - at))
            )
            if not data:
                break
            cursors[place] = at + len(data)
            head = {
                "kind": "output",
                "attempt": key.attempt,
                "rank": key.rank,
                "stream": key.name,
                "offset": at,
                "size": len(data),
            }
            yield self._frame(head) + data

    def _progress(self, run_id: RunId) -> bytes | None:
        live = self._ingest.get_live_run(run_id)
        if live is None:
            return None
        progress = live.progress
        head = {
            "kind": "progress",
            "done": progress.done if progress else None,
            "total": progress.total if progress else None,
            "unit": progress.unit if progress else "",
            "latest": live.latest,
            "system": live.system.get(min(live.system)) if live.system else None,
        }
        return self._frame(head)


def _is_changed(old: Run, new: Run) -> bool:
    return (old.phase, old.position, old.hold_reason, old.hold_detail, old.stop_requested, old.exit) != (
        new.phase,
        new.position,
        new.hold_reason,
        new.hold_detail,
        new.stop_requested,
        new.exit,
    ) or (old.attempt and old.attempt.id) != (new.attempt and new.attempt.id)
