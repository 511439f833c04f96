"""Prints the stored output of a run: redrawn lines in their last state, with ranks and times in front."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime
from typing import BinaryIO

from hopyard.cli.terminal.escape_sequences import EscapeFilter

# a line without an end is printed in pieces of about this size, so that it needs little memory
_MAX_LINE_BYTES = 1024 * 1024


def line_prefix(rank: int | None, at: float | None, *, timestamps: bool) -> bytes:
    """Returns what comes before a line: the time of its arrival, and the rank. at: in unix seconds."""
    mark = b"" if rank is None else b"[%d] " % rank
    if not timestamps:
        return mark
    clock = "-" if at is None else datetime.fromtimestamp(at).astimezone().isoformat(timespec="milliseconds")
    return clock.encode() + b" " + mark


class LineBuffer:
    """Collects the bytes of one stream into lines, in time and memory that a long line does not raise.

    raw: carriage returns are kept; otherwise a redrawn line keeps only its last state.
    """

    def __init__(self, *, raw: bool) -> None:
        self._raw = raw
        self._parts: list[bytes] = []
        self._size, self._returns = 0, 0
        self.is_continued = False  # the beginning of the current line was printed already

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yields whole lines with their line feed, and pieces of a line that is too long."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._add(line)
            text = self._take()
            yield text + b"\n"
            self.is_continued = False
        self._add(rest)
        if self._size > _MAX_LINE_BYTES:
            text = self._take()
            yield text
            self.is_continued = True

    def flush(self) -> bytes:
        """Returns the unfinished line."""
        return self._take()

    def _add(self, data: bytes) -> None:
        if not self._raw and b"\r" in data:
            states = (b"".join(self._parts) + data).split(b"\r")
            self._returns += data.count(b"\r")
            last = next((state for state in reversed(states) if state), b"")
            data = last if states[-1] else last + b"\r"
            self._parts, self._size = [], 0
        elif not self._raw and data and self._parts and self._parts[-1].endswith(b"\r"):
            self._parts, self._size = [], 0
        if data:
            self._parts.append(data)
            self._size += len(data)

    def _take(self) -> bytes:
        text, returns = b"".join(self._parts), self._returns
        self._parts, self._size, self._returns = [], 0, 0
        # a single carriage return before the line feed is the line end of another system
        return text if self._raw or returns <= 1 else text.removesuffix(b"\r")


class LogPrinter:
    """Writes stored output to stdout and stderr in the given order.

    all_to_stdout: also stderr's. ranks: whether each line begins with its rank. timestamps: whether it begins
    with its time.
    """

    def __init__(self, *, raw: bool, ranks: bool, timestamps: bool, all_to_stdout: bool) -> None:
        self._raw, self._ranks, self._timestamps = raw, ranks, timestamps
        stdout, stderr = sys.stdout.buffer, sys.stderr.buffer
        self._sinks: dict[str, BinaryIO] = {
            "stdout": stdout,
            "stderr": stdout if all_to_stdout else stderr,
        }
        self._filters = {
            stream: EscapeFilter() for stream, sink in self._sinks.items() if sink.isatty() and not raw
        }
        self._assemblers: dict[tuple[int, str], LineBuffer] = {}
        self._last_sink: BinaryIO | None = None

    def write(self, rank: int, stream: str, data: bytes, at: float | None) -> None:
        if self._raw and not (self._ranks or self._timestamps):
            self._emit(stream, data)
            return
        assembler = self._assemblers.get((rank, stream))
        if assembler is None:
            assembler = self._assemblers[rank, stream] = LineBuffer(raw=self._raw)
        prefix = line_prefix(rank if self._ranks else None, at, timestamps=self._timestamps)
        was_continued = assembler.is_continued
        lines = []
        for line in assembler.feed(data):
            lines.append(line if was_continued else prefix + line)
            was_continued = not line.endswith(b"\n")
        if lines:
            self._emit(stream, b"".join(lines))

    def close(self) -> None:
        """Writes unfinished lines."""
        rests = [
            (rank, stream, assembler.is_continued, rest)
            for (rank, stream), assembler in sorted(self._assemblers.items())
            if (rest := assembler.flush())
        ]
        several = len(rests) > 1 or self._ranks or self._timestamps
        for rank, stream, is_continued, rest in rests:
            prefix = line_prefix(rank if self._ranks else None, None, timestamps=self._timestamps)
            self._emit(stream, (b"" if is_continued else prefix) + rest + (b"\n" if several else b""))
        for stream, guard in self._filters.items():
            self._sinks[stream].write(guard.flush())
        for sink in self._sinks.values():
            sink.flush()

    def _emit(self, stream: str, data: bytes) -> None:
        sink, guard = self._sinks[stream], self._filters.get(stream)
        if self._last_sink not in (None, sink):
            self._last_sink.flush()  # both may be one terminal
        self._last_sink = sink
        sink.write(data if guard is None else guard.feed(data))
