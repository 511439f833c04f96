"""Writes a run's output to the same streams, unchanged: stdout to stdout, stderr to stderr."""

from __future__ import annotations

import re
import sys
import time
from typing import BinaryIO

from hopyard.cli.log_printer import line_prefix
from hopyard.cli.status_line import StatusLine
from hopyard.cli.terminal.escape_sequences import EscapeFilter

_LINES = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)")


class OutputClosed(Exception):
    """The reader of the output has ended."""


class SharedTerminalLine:
    """The current line of a terminal that shows both streams. Their order is known only to a few
    milliseconds, so text of one stream is kept out of the other's unfinished line, such as a progress bar."""

    def __init__(self) -> None:
        self._open_stream = ""  # the stream with an unfinished line
        # the stream whose line was ended early: its own line end is then not shown again
        self._line_broken = ""

    def interleave(self, stream: str, data: bytes) -> bytes:
        """Returns the bytes to write for `data` of `stream`."""
        if self._line_broken == stream and data:
            self._line_broken = ""
            data = data.removeprefix(b"\n")
        if not data:
            return data
        placed = data
        if self._open_stream not in ("", stream):
            self._line_broken, placed = self._open_stream, b"\n" + data
        self._open_stream = "" if data.endswith(b"\n") else stream
        return placed


class RunOutput:
    """Writes the output of a run. replicas: with several, every line begins with `[rank] ` and is written
    whole, so that lines do not mix.

    all_to_stderr: stdout has other data (a JSON object). raw: a terminal also gets control sequences
    unchanged. timestamps: every line also begins with the time of its arrival.
    """

    def __init__(
        self,
        line: StatusLine,
        *,
        replicas: int,
        all_to_stderr: bool = False,
        all_to_stdout: bool = False,
        raw: bool = False,
        timestamps: bool = False,
    ) -> None:
        self._line, self._ranks, self._timestamps = line, replicas > 1, timestamps
        self._prefixed = self._ranks or timestamps
        stdout, stderr = sys.stdout.buffer, sys.stderr.buffer
        self._sinks: dict[str, BinaryIO] = {
            "stdout": stderr if all_to_stderr else stdout,
            "stderr": stdout if all_to_stdout else stderr,
        }
        self._escape_filters = {
            stream: EscapeFilter() for stream, sink in self._sinks.items() if sink.isatty() and not raw
        }
        self._incomplete_lines: dict[tuple[int, str], list[bytes]] = {}
        self._shared_line = SharedTerminalLine() if stdout.isatty() and stderr.isatty() else None

    def write(self, rank: int, stream: str, data: bytes, at: float | None = None) -> None:
        """Writes bytes of a stream. at: when they arrived, in unix seconds; None for now. Raises
        OutputClosed."""
        self._emit(stream, self._prefix(rank, stream, data, at) if self._prefixed else data)

    def flush(self) -> None:
        """Writes unfinished lines."""
        for (rank, stream), parts in sorted(self._incomplete_lines.items()):
            self._emit(stream, self._line_prefix(rank, None) + b"".join(parts) + b"\n")
        self._incomplete_lines.clear()
        for stream, guard in self._escape_filters.items():
            self._write_bytes(stream, guard.flush())

    def _line_prefix(self, rank: int, at: float | None) -> bytes:
        moment = time.time() if at is None else at
        return line_prefix(rank if self._ranks else None, moment, timestamps=self._timestamps)

    def _prefix(self, rank: int, stream: str, data: bytes, at: float | None) -> bytes:
        parts = self._incomplete_lines.pop((rank, stream), [])
        # A final \r may be half of \r\n, so it waits for the next data.
        if parts and (b"\n" in data or b"\r" in data or parts[-1].endswith(b"\r")):
            data, parts = b"".join([*parts, data]), []
        lines = _LINES.findall(data[:-1] if data.endswith(b"\r") else data)
        rest = data[sum(map(len, lines)) :]
        if rest:
            parts.append(rest)
        if parts:
            self._incomplete_lines[rank, stream] = parts
        mark = self._line_prefix(rank, at)
        return b"".join([mark + line for line in lines])

    def _emit(self, stream: str, data: bytes) -> None:
        guard = self._escape_filters.get(stream)
        self._write_bytes(stream, data if guard is None else guard.feed(data))

    def _write_bytes(self, stream: str, data: bytes) -> None:
        if self._shared_line is not None:
            data = self._shared_line.interleave(stream, data)
        if not data:
            return
        sink = self._sinks[stream]
        try:
            with self._line.interrupted_by_output(data):
                sink.write(data)
                sink.flush()
        except BrokenPipeError as error:
            raise OutputClosed from error
