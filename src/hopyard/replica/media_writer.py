"""Appends the media of event files to the streams `media` and `media_data`, as `hop.log` does."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from hopyard.domain.byte_text import format_bytes
from hopyard.domain.media import (
    MAX_CAPTION_LENGTH,
    MAX_INDEX_BYTES,
    MAX_ITEM_BYTES,
    MAX_LINE_BYTES,
    EncodedMedia,
    MediaRecord,
    encode_record,
)
from hopyard.domain.metric_records import MAX_NAME_BYTES
from hopyard.domain.stream_limits import MEDIA_DATA_STREAM, MEDIA_STREAM
from hopyard.private_files import open_below
from hopyard.replica.replica_dir import PartialWrite, ReplicaDir
from hopyard.replica.summary_values import MediaValue

_MAX_KNOWN_DIGESTS = 10_000
_MAX_TIME = 1e11  # unix seconds; the readers of the stream accept no later one
_Key = tuple[str, int, int, str, float]  # name, step, index, digest, time


class MediaWriter:
    """Writes the items of values in their order. An item that a full disk rejects stays in the queue.

    limit_bytes: of both streams of the replica together, 0 for no limit. on_skipped: called with the name and
    the reason of an item that is left out. known_bytes: an earlier process wrote the lines behind this offset
    of `media`; the same items are not written again.
    """

    def __init__(
        self,
        folder: ReplicaDir,
        limit_bytes: int,
        on_skipped: Callable[[str, str], None],
        *,
        known_bytes: int | None = None,
    ) -> None:
        self._folder, self._limit_bytes, self._on_skipped = folder, limit_bytes, on_skipped
        self._queue: deque[tuple[MediaRecord, EncodedMedia]] = deque()
        self._offsets: dict[str, int] = {}  # of stored content, by digest
        self._known = Counter[_Key]() if known_bytes is None else self._read_known(known_bytes)
        self.dropped = 0  # items over the limit

    def add(self, value: MediaValue) -> None:
        """Queues the items of a value."""
        name = value.tag.encode(errors="replace")[:MAX_NAME_BYTES].decode(errors="ignore")
        kind, items, captions, _ = value.content
        at = value.wall_time if 0 <= value.wall_time < _MAX_TIME else time.time()
        for index, item in enumerate(items):
            if len(item.data) > MAX_ITEM_BYTES:
                size, limit = format_bytes(len(item.data)), format_bytes(MAX_ITEM_BYTES)
                self._on_skipped(name, f"it has {size}, more than {limit}; it is skipped")
                continue
            caption = captions[index][:MAX_CAPTION_LENGTH] if index < len(captions) else ""
            digest = hashlib.blake2b(item.data, digest_size=16).hexdigest()
            size_bytes = len(item.data)
            record = MediaRecord(
                name,
                kind,
                item.type,
                value.step,
                index,
                0,
                size_bytes,
                digest,
                round(at, 6),
                caption,
                item.details,
            )
            self._queue.append((record, item))

    def write(self) -> None:
        """Writes the queued items. Raises OSError; the rest is written by a later call."""
        while self._queue:
            record, item = self._queue[0]
            if not self._is_known(record):
                self._write(record, item)
            self._queue.popleft()

    @property
    def queued_bytes(self) -> int:
        return sum(len(item.data) for _, item in self._queue)

    def index_bytes(self) -> int:
        """Returns the length of the stream `media`."""
        return self._size(MEDIA_STREAM)

    def _write(self, record: MediaRecord, item: EncodedMedia) -> None:
        offset = self._offsets.get(record.digest)
        index_bytes, added_bytes = self.index_bytes(), 0 if offset is not None else len(item.data)
        total_bytes = self._size(MEDIA_DATA_STREAM) + index_bytes + added_bytes
        if index_bytes > MAX_INDEX_BYTES or 0 < self._limit_bytes < total_bytes:
            self._drop(record)
            return
        if offset is None:
            # of a partial write nothing is removed: no line refers to it
            offset = self._folder.append(MEDIA_DATA_STREAM, item.data) - len(item.data)
            if len(self._offsets) >= _MAX_KNOWN_DIGESTS:
                self._offsets.clear()
            self._offsets[record.digest] = offset
        line = encode_record(replace(record, offset=offset))
        if len(line) <= MAX_LINE_BYTES:
            self._append_line(line)

    def _drop(self, record: MediaRecord) -> None:
        self.dropped += 1
        if self.dropped == 1:
            limit = format_bytes(self._limit_bytes)
            text = f"media after the limit of {limit} are left out (`runs: {{max_media: …}}` in config.yaml)"
            self._on_skipped(record.name, text)

    def _append_line(self, line: bytes) -> None:
        try:
            self._folder.append(MEDIA_STREAM, line)
        except PartialWrite as error:
            # a part of a line is never shipped, and would damage the next one
            descriptor = open_below(self._folder.root, f"streams/{MEDIA_STREAM}", os.O_RDWR)
            try:
                size = os.fstat(descriptor).st_size
                if os.pread(descriptor, error.written, size - error.written) == line[: error.written]:
                    os.ftruncate(descriptor, size - error.written)
            finally:
                os.close(descriptor)
            raise

    def _is_known(self, record: MediaRecord) -> bool:
        key = (record.name, record.step, record.index, record.digest, record.time)
        if not self._known[key]:
            return False
        self._known[key] -= 1
        return True

    def _read_known(self, known_bytes: int) -> Counter[_Key]:
        known = Counter[_Key]()
        with suppress(OSError):
            descriptor = open_below(self._folder.root, f"streams/{MEDIA_STREAM}", os.O_RDONLY)
            with os.fdopen(descriptor, "rb") as stream:
                stream.seek(known_bytes)
                for line in stream.read(2 * MAX_INDEX_BYTES).splitlines():
                    with suppress(ValueError, KeyError, TypeError):
                        fields = json.loads(line)
                        known[tuple(fields[key] for key in ("name", "step", "index", "digest", "t"))] += 1
        return known

    def _size(self, stream: str) -> int:
        try:
            return os.stat(self._folder.streams / stream, follow_symlinks=False).st_size
        except OSError:
            return 0
