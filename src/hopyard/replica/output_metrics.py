"""Reads metrics from the lines that a script prints, by the templates of `--metric-line`."""

from __future__ import annotations

import errno
import os
import re
import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress

from hopyard.domain.metric_line import MetricLine
from hopyard.domain.metric_records import POINT, Point, pack_definition, pack_point, read_records, series_id
from hopyard.domain.stream_limits import OUTPUT_STREAMS
from hopyard.errors import IntegrityError
from hopyard.private_files import open_below, read_below
from hopyard.replica.replica_dir import ReplicaDir
from hopyard.replica.summary_values import EventValue, Scalar

_BLOCK_BYTES = 1024 * 1024
_MAX_LINE_BYTES = 64 * 1024  # of a longer line only the end counts
_LINE_END = re.compile(rb"[\r\n]")
_KEY = struct.Struct("<Qqd")  # of a point: series, step, value; NaN is equal to itself
_MAX_STREAM_BYTES = 64 * 1024 * 1024
PRINTED_STREAM = "tensorboard"


class OutputMetrics:
    """Follows stdout and stderr of one replica. The time of a value is that of its reading."""

    def __init__(self, folder: ReplicaDir, templates: Sequence[str]) -> None:
        self._folder = folder
        self._lines = [MetricLine(template) for template in templates]
        self._offsets = dict.fromkeys(OUTPUT_STREAMS, 0)
        self._rests = dict.fromkeys(OUTPUT_STREAMS, b"")
        self._ended = False

    def end(self) -> None:
        """Lets the next `poll` read the last lines without a line feed: the script has ended."""
        self._ended = True

    def poll(self) -> Iterator[list[EventValue]]:
        """Yields the metrics of the lines that arrived since the last call, in batches of one block of
        output."""
        for stream in OUTPUT_STREAMS:
            while block := self._read(stream):
                *lines, rest = _LINE_END.split(self._rests[stream] + block)
                self._rests[stream] = rest[-_MAX_LINE_BYTES:]
                yield [scalar for line in lines for scalar in self._read_line(line)]
            if self._ended:
                rest, self._rests[stream] = self._rests[stream], b""
                yield list(self._read_line(rest))

    def unread_bytes(self) -> int:
        """Returns how many bytes of both streams were not read yet."""
        return sum(max(0, self._size(stream) - offset) for stream, offset in self._offsets.items())

    def _read_line(self, line: bytes) -> Iterator[Scalar]:
        text = line[-_MAX_LINE_BYTES:].decode(errors="replace")
        if not text:
            return
        for template in self._lines:
            found = template.read(text)
            if found is not None:
                step, values = found
                for name, value in values.items():
                    yield Scalar(name, step, time.time(), value)

    def _read(self, stream: str) -> bytes:
        try:
            with os.fdopen(open_below(self._folder.root, f"streams/{stream}", os.O_RDONLY), "rb") as file:
                file.seek(self._offsets[stream])
                block = file.read(_BLOCK_BYTES)
        except FileNotFoundError:
            return b""
        self._offsets[stream] += len(block)
        return block

    def _size(self, stream: str) -> int:
        try:
            return os.stat(self._folder.root / "streams" / stream).st_size
        except OSError:
            return 0


def append_missing_points(folder: ReplicaDir, templates: Sequence[str], *, ended: bool) -> None:
    """Appends the points of printed lines that a dead replica had not read. Raises OSError.

    A line counts as read if the stream has a point with its name, step and value. ended: whether the script
    ended by itself, so that its last line is whole.
    """
    known: Counter[bytes] = Counter()
    try:
        data = read_below(folder.root, f"streams/{PRINTED_STREAM}", max_bytes=_MAX_STREAM_BYTES)
    except FileNotFoundError:
        data = b""
    if len(data) == _MAX_STREAM_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    with suppress(IntegrityError):
        known.update(
            _KEY.pack(each.series, each.step, each.value)
            for each in read_records(data, {})
            if isinstance(each, Point)
        )
    printed = OutputMetrics(folder, templates)
    if ended:
        printed.end()
    records: list[bytes] = []
    scalars = (value for values in printed.poll() for value in values if isinstance(value, Scalar))
    for name, step, wall_time, value in scalars:
        series = series_id(name)
        key = _KEY.pack(series, step, value)
        if known[key]:
            known[key] -= 1
        else:
            records += [pack_definition(name), pack_point(POINT, series, step, wall_time, value)]
    if records:
        folder.append(PRINTED_STREAM, b"".join(records))
