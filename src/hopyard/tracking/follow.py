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
from hopyard.interfaces.run_store import RunStore
from hopyard.interfaces.streams import StreamKey, Streams
from hopyard.tracking.hub import Hub, Watch
from hopyard.tracking.ingest import Ingest
from hopyard.tracking.past import Past, look_back

PING_S = 15.0
PROGRESS_EVERY_S = 1.0
_PIECE_BYTES = 64 * 1024  # what one follower holds of memory: there may be thousands
_Cursors = dict[tuple[AttemptId, int, str], int]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a follower wants: which streams, which ranks (None: all), and where it stands in each stream
    already."""

    streams: tuple[str, ...] = ("stdout", "stderr")
    ranks: frozenset[int] | None = None
    cursors: Mapping[tuple[AttemptId, int, str], int] = field(default_factory=dict)


class Follower:
    """Yields frames. `frame(head, bytes)` is made by the caller, who knows how a run is written as JSON, and
    `readable(run)`, which is what people are to read of one."""

    def __init__(
        self, runs: RunStore, streams: Streams, ingest: Ingest, hub: Hub,
        *, frame: Callable[[Mapping[str, Any]], bytes], readable: Callable[[Run], Awaitable[Run]],
    ) -> None:  # fmt: skip
        self._runs, self._streams, self._ingest, self._hub = runs, streams, ingest, hub
        self._frame, self._readable = frame, readable

    async def frames(self, run_id: RunId, wish: Wish) -> AsyncIterator[bytes]:
        """Until the run is final and all its output was given, or the server ends.
        Raises NotFound at the first step."""
        with self._hub.watch(run_id) as watch:
            cursors = dict(wish.cursors)
            past = await look_back(self._runs, self._streams, run_id)
            watch.state = False
            yield self._frame({"kind": "state", "run": await self._readable(past.run)})
            next_progress = 0.0
            clock = asyncio.get_running_loop().time
            everything = True
            while not watch.closed:
                if watch.state:
                    watch.state, everything = False, True
                    old, past = past.run, await look_back(self._runs, self._streams, run_id)
                    if _differs(old, past.run):
                        yield self._frame({"kind": "state", "run": await self._readable(past.run)})
                # The state was read before the streams: what a final run said is all there by now.
                grown = watch.take_grown()
                async for piece in (
                    self._output(past, wish, cursors)
                    if everything
                    else self._grown(past, wish, cursors, grown)
                ):
                    yield piece
                everything = False
                if watch.progress and (clock() >= next_progress or past.run.phase.final):
                    watch.progress = False
                    next_progress = clock() + PROGRESS_EVERY_S
                    frame = self._progress(run_id)
                    if frame is not None:
                        yield frame
                if past.run.phase.final and not watch.state:
                    yield self._frame({"kind": "end", "run": await self._readable(past.run)})
                    return
                if not await self._pause(watch, next_progress - clock()):
                    everything = True
                    yield self._frame({"kind": "ping"})

    async def _pause(self, watch: Watch, until_progress_s: float) -> bool:
        """Wait for something to do. False when nothing happened for so long that the line should be shown to
        be alive."""
        if watch.progress:
            await watch.wait(max(0.0, until_progress_s))
            return True
        # Progress alone does not wake a follower more than once a second: `wait` returns, the loop looks, and
        # waits again.
        return await watch.wait(PING_S)

    async def _output(self, past: Past, wish: Wish, cursors: _Cursors) -> AsyncIterator[bytes]:
        """All that was not given yet."""
        ranks = range(past.run.spec.size) if wish.ranks is None else sorted(wish.ranks)
        for attempt in past.view.every:
            of_it = [stream for stream in wish.streams if attempt in past.view.of(stream)]
            for rank in ranks if of_it else ():
                lengths = await self._streams.lengths(attempt, rank)
                for stream in of_it:
                    async for piece in self._up_to(
                        past, StreamKey(attempt, rank, stream), lengths.get(stream, 0), b"", cursors
                    ):
                        yield piece

    async def _grown(
        self, past: Past, wish: Wish, cursors: _Cursors, grown: Mapping[StreamKey, tuple[int, bytes]]
    ) -> AsyncIterator[bytes]:
        """What was not given yet of streams that grew."""
        wished = [
            key
            for key in grown
            if key.name in wish.streams and (wish.ranks is None or key.rank in wish.ranks)
        ]
        for key in sorted(wished, key=lambda key: (key.rank, wish.streams.index(key.name))):
            if key.attempt in past.view.of(key.name):
                async for piece in self._up_to(past, key, *grown[key], cursors):
                    yield piece

    async def _up_to(
        self, past: Past, key: StreamKey, length: int, last: bytes, cursors: _Cursors
    ) -> AsyncIterator[bytes]:
        """Give a stream of this length as far as it is seen; `last` is how it ends, as far as that is at
        hand."""
        place = (key.attempt, key.rank, key.name)
        limit, begin = past.view.limit(*place), length - len(last)
        end = length if limit is None else min(limit, length)
        while (at := cursors.get(place, 0)) < end:
            data = (
                last[at - begin : end - begin]
                if begin <= at
                else await self._streams.read(key, at, min(_PIECE_BYTES, end - at))
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
        live = self._ingest.live(run_id)
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


def _differs(old: Run, new: Run) -> bool:
    return (old.phase, old.position, old.hold_reason, old.hold_detail, old.stop_requested, old.exit) != (
        new.phase,
        new.position,
        new.hold_reason,
        new.hold_detail,
        new.stop_requested,
        new.exit,
    ) or (old.attempt and old.attempt.id) != (new.attempt and new.attempt.id)
