"""Follows a run: yields its state, output and progress until it is final.

docs/designs/0001-main-path.md, section 5, describes the frames. A follower reads the streams itself at its
own pace. Nothing is queued for it, so a slow follower uses no memory and misses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.run import Run
from hopyard.domain.stream_limits import OUTPUT_STREAMS
from hopyard.interfaces.run_store import RunStore
from hopyard.interfaces.streams import StreamKey, Streams
from hopyard.tracking.ingest import StreamIngest
from hopyard.tracking.output_order import OutputOrder
from hopyard.tracking.run_history import RunHistory, load_history
from hopyard.tracking.run_subscriptions import RunSubscriptions, Subscription

PING_INTERVAL_S = 15.0
PROGRESS_INTERVAL_S = 1.0
_READ_BYTES = 64 * 1024  # memory per follower: there may be thousands
_Cursors = dict[tuple[AttemptId, int, str], int]


@dataclass(frozen=True, slots=True)
class FollowRequest:
    """A follower's request: the streams, the ranks (None for all), and the offset already read of each
    stream."""

    streams: tuple[str, ...] = OUTPUT_STREAMS
    ranks: frozenset[int] | None = None
    cursors: Mapping[tuple[AttemptId, int, str], int] = field(default_factory=dict)


class RunFrameStream:
    """Yields the frames of a run.

    frame: encodes a frame from its head; the caller knows the JSON of a run. with_readable_names: replaces
    internal names in a run by readable ones.
    """

    def __init__(
        self, runs: RunStore, streams: Streams, ingest: StreamIngest, subscriptions: RunSubscriptions,
        *, frame: Callable[[Mapping[str, Any]], bytes], with_readable_names: Callable[[Run], Awaitable[Run]],
    ) -> None:  # fmt: skip
        self._runs, self._streams, self._ingest, self._subscriptions = runs, streams, ingest, subscriptions
        self._frame, self._with_readable_names = frame, with_readable_names

    async def frames(self, run_id: RunId, request: FollowRequest) -> AsyncIterator[bytes]:
        """Yields frames until the run is final and all its output was sent, or the server ends. Raises
        NotFound at the first step."""
        with self._subscriptions.subscribe(run_id) as subscription:
            cursors, order = dict(request.cursors), OutputOrder(self._streams)
            history = await load_history(self._runs, self._streams, run_id)
            subscription.state_changed = False
            yield self._frame({"kind": "state", "run": await self._with_readable_names(history.run)})
            next_progress = 0.0
            clock = asyncio.get_running_loop().time
            read_all = True
            while not subscription.closed:
                if subscription.state_changed:
                    subscription.state_changed, read_all = False, True
                    previous, history = history.run, await load_history(self._runs, self._streams, run_id)
                    if _is_changed(previous, history.run):
                        yield self._frame(
                            {"kind": "state", "run": await self._with_readable_names(history.run)}
                        )
                # The state was read before the streams, so the output of a final run is complete by now.
                new_lengths = subscription.take_stream_lengths()
                async for output_frame in (
                    self._all_new_output(history, request, cursors, order)
                    if read_all
                    else self._new_output_of(history, request, cursors, order, new_lengths)
                ):
                    yield output_frame
                read_all = False
                if subscription.progress_changed and (clock() >= next_progress or history.run.phase.is_final):
                    subscription.progress_changed = False
                    next_progress = clock() + PROGRESS_INTERVAL_S
                    frame = self._progress(run_id)
                    if frame is not None:
                        yield frame
                if history.run.phase.is_final and not subscription.state_changed:
                    yield self._frame({"kind": "end", "run": await self._with_readable_names(history.run)})
                    return
                if not await self._wait_for_change(subscription, next_progress - clock()):
                    read_all = True
                    yield self._frame({"kind": "ping"})

    async def _wait_for_change(self, subscription: Subscription, until_progress_s: float) -> bool:
        """Waits for a change. Returns False when a ping is due, because nothing changed for so long."""
        if subscription.progress_changed:
            await subscription.wait(max(0.0, until_progress_s))
            return True
        # Progress alone wakes a follower at most once a second: the caller checks the time and waits again.
        return await subscription.wait(PING_INTERVAL_S)

    async def _all_new_output(
        self, history: RunHistory, request: FollowRequest, cursors: _Cursors, order: OutputOrder
    ) -> AsyncIterator[bytes]:
        """Yields all output that was not sent yet, in order of arrival."""
        ranks = range(history.run.spec.size) if request.ranks is None else sorted(request.ranks)
        for attempt in history.visible_streams.all_attempts:
            names = [
                stream for stream in request.streams if attempt in history.visible_streams.attempts_of(stream)
            ]
            if names:
                async for output_frame in self._ordered_output(
                    history, attempt, ranks, names, cursors, order
                ):
                    yield output_frame

    async def _ordered_output(
        self,
        history: RunHistory,
        attempt: AttemptId,
        ranks: Sequence[int],
        names: Sequence[str],
        cursors: _Cursors,
        order: OutputOrder,
    ) -> AsyncIterator[bytes]:
        parts = await order.parts(history.visible_streams, attempt, ranks, names, cursors=cursors)
        for part in parts:
            cursor_key = (part.key.attempt, part.key.rank, part.key.name)
            # a gap before the part is hidden: a later process has repeated it
            cursors[cursor_key] = max(cursors.get(cursor_key, 0), part.begin)
            async for output_frame in self._stream_up_to(history, part.key, part.end, b"", cursors, part.at):
                yield output_frame

    async def _new_output_of(
        self,
        history: RunHistory,
        request: FollowRequest,
        cursors: _Cursors,
        order: OutputOrder,
        lengths: Mapping[StreamKey, tuple[int, bytes]],
    ) -> AsyncIterator[bytes]:
        """Yields the output of streams that grew, as far as it was not sent yet."""
        selected = [
            key
            for key in lengths
            if key.name in request.streams and (request.ranks is None or key.rank in request.ranks)
        ]
        names_by_replica: dict[tuple[AttemptId, int], list[str]] = {}
        for key in sorted(selected, key=lambda key: (key.rank, request.streams.index(key.name))):
            if key.attempt in history.visible_streams.attempts_of(key.name):
                names_by_replica.setdefault((key.attempt, key.rank), []).append(key.name)
        for (attempt, rank), names in names_by_replica.items():
            if len(names) > 1:
                async for output_frame in self._ordered_output(
                    history, attempt, [rank], names, cursors, order
                ):
                    yield output_frame
                continue
            key = StreamKey(attempt, rank, names[0])
            async for output_frame in self._stream_up_to(history, key, *lengths[key], cursors):
                yield output_frame

    async def _stream_up_to(
        self,
        history: RunHistory,
        key: StreamKey,
        length: int,
        tail: bytes,
        cursors: _Cursors,
        at: float | None = None,
    ) -> AsyncIterator[bytes]:
        """Yields the visible part of a stream of this length. `tail`: its last bytes, as far as they are in
        memory. at: when they arrived, if known."""
        cursor_key = (key.attempt, key.rank, key.name)
        limit, tail_begin = history.visible_streams.visible_length_of(*cursor_key), length - len(tail)
        end = length if limit is None else min(limit, length)
        while (offset := cursors.get(cursor_key, 0)) < end:
            data = (
                tail[offset - tail_begin : end - tail_begin]
                if tail_begin <= offset
                else await self._streams.read(key, offset, min(_READ_BYTES, end - offset))
            )
            if not data:
                break
            cursors[cursor_key] = offset + len(data)
            head = {
                "kind": "output",
                "attempt": key.attempt,
                "rank": key.rank,
                "stream": key.name,
                "offset": offset,
                "size": len(data),
                "at": at,
            }
            yield self._frame(head) + data

    def _progress(self, run_id: RunId) -> bytes | None:
        live = self._ingest.find_live_run(run_id)
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
