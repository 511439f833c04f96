"""Lists the media of a run as users see them, without the parts that later attempts rolled back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass

from hopyard.domain.ids import AttemptId, attempt_id, split_attempt
from hopyard.domain.media import MAX_LINE_BYTES, MediaRecord, decode_record
from hopyard.domain.name_pattern import compile_name_pattern
from hopyard.domain.run import Run
from hopyard.domain.stream_limits import MEDIA_DATA_STREAM, MEDIA_STREAM
from hopyard.errors import NotFound
from hopyard.interfaces.streams import StreamKey, Streams
from hopyard.tracking.json_lines import parse_line
from hopyard.tracking.media_index import MediaIndexes
from hopyard.tracking.metrics import first_step
from hopyard.tracking.rollback import VisibleStreams
from hopyard.tracking.run_history import RunHistory

_READ_BYTES = 1024 * 1024
_HINT = "list them with `hop media RUN`"


@dataclass(frozen=True, slots=True)
class MediaItem:
    """attempt, rank: which replica logged it. line_offset: the place of its line in the stream `media`."""

    record: MediaRecord
    attempt: AttemptId
    rank: int
    line_offset: int

    @property
    def id(self) -> str:
        """Returns the text that names this item in the run."""
        return f"{split_attempt(self.attempt)[1]}-{self.rank}-{self.line_offset}"


async def list_media(
    indexes: MediaIndexes, history: RunHistory, *, names: Sequence[str] | None = None, rank: int | None = None
) -> list[MediaItem]:
    """Returns the media of a run, ordered by name, step, rank and position in their panel.

    names: only these; `*` is any text. rank: only those of this replica. Items are omitted until all of
    their content has arrived. A script that resumes from its own checkpoint keeps the items of the attempt
    before up to the first step of the new attempt, as `metrics.read_series` does.
    """
    view, keys = history.visible_streams, await indexes.streams.list(history.run.id)
    ranks = sorted({key.rank for key in keys if key.name == MEDIA_STREAM and rank in (None, key.rank)})
    patterns = None if names is None else [compile_name_pattern(name) for name in names]
    items: list[MediaItem] = []
    for media_rank in ranks:
        later_steps: list[int] = []
        for attempt in view.attempts:
            items += await _visible_items(indexes, view, attempt, media_rank)
            if view.restarted_attempts:
                later_steps += await _first_steps(indexes, keys, attempt, media_rank)
        for attempt in reversed(view.restarted_attempts):
            end = min(later_steps, default=None)
            items += [
                item
                for item in await _visible_items(indexes, view, attempt, media_rank)
                if end is None or item.record.step < end
            ]
            later_steps += await _first_steps(indexes, keys, attempt, media_rank)
    if patterns is not None:
        items = [item for item in items if any(p.fullmatch(item.record.name) for p in patterns)]
    return sorted(
        items,
        key=lambda item: (
            item.record.name,
            item.record.step,
            item.rank,
            item.record.index,
            split_attempt(item.attempt)[1],
            item.line_offset,
        ),
    )


async def find_media(streams: Streams, run: Run, item_id: str) -> MediaItem:
    """Returns the item of this id. Raises NotFound."""
    parts = item_id.split("-")
    if len(parts) == 3 and all(part.isascii() and part.isdecimal() and len(part) <= 15 for part in parts):
        number, rank, offset = map(int, parts)
        attempt = attempt_id(run.id, number)
        data = await streams.read(StreamKey(attempt, rank, MEDIA_STREAM), offset, MAX_LINE_BYTES)
        line, end, _ = data.partition(b"\n")
        fields = parse_line(line) if end else None
        record = None if fields is None else decode_record(fields)
        if record is not None and await _is_complete(streams, attempt, rank, record):
            return MediaItem(record, attempt, rank, offset)
    raise NotFound(f"run {run.name} has no media `{item_id[:80]}`", hints=(_HINT,))


async def read_content(streams: Streams, item: MediaItem) -> AsyncIterator[bytes]:
    """Yields the content of an item."""
    key = StreamKey(item.attempt, item.rank, MEDIA_DATA_STREAM)
    offset, end = item.record.offset, item.record.offset + item.record.size_bytes
    while offset < end and (data := await streams.read(key, offset, min(_READ_BYTES, end - offset))):
        offset += len(data)
        yield data


async def _is_complete(streams: Streams, attempt: AttemptId, rank: int, record: MediaRecord) -> bool:
    lengths = await streams.lengths(attempt, rank)
    return record.offset + record.size_bytes <= lengths.get(MEDIA_DATA_STREAM, 0)


async def _visible_items(
    indexes: MediaIndexes, view: VisibleStreams, attempt: AttemptId, rank: int
) -> list[MediaItem]:
    length = view.visible_length_of(attempt, rank, MEDIA_STREAM)
    items = await _read_index(indexes, attempt, rank, length)
    hidden = [
        range(cut.begin, cut.end) for cut in view.restarts_of(attempt, rank, MEDIA_STREAM)
    ]  # repeated by a later process
    return [item for item in items if not any(item.line_offset in part for part in hidden)]


async def _read_index(
    indexes: MediaIndexes, attempt: AttemptId, rank: int, length: int | None
) -> list[MediaItem]:
    """Returns the items of which the content has arrived."""
    records = await indexes.read(attempt, rank, length)
    stored = (await indexes.streams.lengths(attempt, rank)).get(MEDIA_DATA_STREAM, 0)
    return [
        MediaItem(record, attempt, rank, offset)
        for offset, record in records
        if record.offset + record.size_bytes <= stored
    ]


async def _first_steps(
    indexes: MediaIndexes, keys: Collection[StreamKey], attempt: AttemptId, rank: int
) -> list[int]:
    """Returns the first steps of an attempt: of its metrics, and of its media."""
    steps = [item.record.step for item in await _read_index(indexes, attempt, rank, None)]
    metric_step = await first_step(indexes.streams, keys, attempt, rank)
    return [*([min(steps)] if steps else []), *([] if metric_step is None else [metric_step])]
