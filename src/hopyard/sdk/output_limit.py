"""The limit of what a run writes to stdout and stderr: its beginning and its newest part are kept, what lies
between is dropped.

Up to the limit a stream is sent as it grows. Beyond, the newest quarter of the limit is kept on the node, the
blocks before it are given back to the disk, and at the end follows what was kept, behind a line that counts
what was dropped. Both parts end and begin with whole lines, unless a line is longer than `_MAX_LINE_BYTES`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from hopyard.config.units import format_memory
from hopyard.domain.stream_limits import OUTPUT_STREAMS
from hopyard.sdk.punch_hole import BLOCK_BYTES, punch_hole

_MAX_LINE_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """limit_bytes: of each of the two streams; 0 is none."""

    limit_bytes: int

    @property
    def tail_bytes(self) -> int:
        return self.limit_bytes // 4

    def applies(self, name: str) -> bool:
        return bool(self.limit_bytes) and name in OUTPUT_STREAMS

    def dropped_bytes(self, name: str, descriptor: int, size: int) -> int:
        """How much of a stream with a file of `size` bytes is neither in its beginning nor in its newest
        part."""
        if not self.applies(name) or size <= self.limit_bytes:
            return 0
        cut = self._head_end(descriptor, size)
        return self._tail_start(descriptor, size, cut) - cut

    def explain(self, name: str, rank: int, dropped: int) -> str:
        return (
            f"{dropped} bytes of {name} of replica {rank} are left out: it passed the limit of "
            f"{format_memory(self.limit_bytes)} (`hop run --max-output`, at most `runs: {{max_output: "
            f"…}}` in config.yaml)"
        )

    def shipped_size(self, name: str, descriptor: int, size: int, *, ended: bool) -> int:
        """How long the stream is that the server gets of a file of this size."""
        if not self.applies(name):
            return size
        return sum(
            len(text) if text else end - begin
            for begin, end, text in self._segments(name, descriptor, size, ended=ended)
        )

    def read(self, name: str, descriptor: int, at: int, count: int, *, ended: bool) -> bytes:
        """At most `count` bytes of what the server gets, from its byte `at` on."""
        if not self.applies(name):
            return os.pread(descriptor, count, at)
        found: list[bytes] = []
        for begin, end, text in self._segments(name, descriptor, os.fstat(descriptor).st_size, ended=ended):
            length = len(text) if text else end - begin
            if at < length and count > 0:
                part = (
                    text[at : at + count]
                    if text
                    else os.pread(descriptor, min(count, length - at), begin + at)
                )
                found.append(part)
                count -= len(part)
                at = length
            at -= length
        return b"".join(found)

    def server_offset(self, name: str, descriptor: int, offset: int) -> int:
        """Where the server's copy of a stream ends that is cut at byte `offset` of the file: where lines
        before it are dropped, behind the mark that says so."""
        if not self.applies(name) or offset <= self.limit_bytes - _MAX_LINE_BYTES:
            return offset
        size = os.fstat(descriptor).st_size
        if size <= self.limit_bytes or offset <= (cut := self._head_end(descriptor, size)):
            return offset
        return cut + len(self._omission_marker(name, descriptor, cut))

    def release_disk_blocks(self, name: str, path: str, size: int, released_to: int) -> int:
        """Give the blocks of what is dropped back to the disk, once there are enough; up to where that was
        done. Raises OSError where the file system cannot."""
        end = (size - self.tail_bytes) // BLOCK_BYTES * BLOCK_BYTES
        if not self.applies(name) or end - max(released_to, self.limit_bytes) < self.tail_bytes:
            return released_to
        return punch_hole(path, max(released_to, self.limit_bytes), end)

    def _head_end(self, descriptor: int, size: int) -> int:
        """Where the beginning that is kept ends, of a file that is longer than the limit, or will be: behind
        its last whole line."""
        begin = self.limit_bytes - _MAX_LINE_BYTES
        newline = os.pread(descriptor, min(size, self.limit_bytes) - begin, begin).rfind(b"\n")
        return begin + newline + 1 if newline >= 0 else min(size, self.limit_bytes)

    def _omission_marker(self, name: str, descriptor: int, head_end: int) -> bytes:
        """What stands in the server's copy behind the beginning.
        The newest part of a run that resumes is rolled back, and this stays."""
        broken = b"" if os.pread(descriptor, 1, head_end - 1) == b"\n" else b"\n"
        limit = format_memory(self.limit_bytes)
        return (
            broken
            + (
                f"[hopyard: {name} has passed its limit of {limit}: output is left out here; its "
                "newest part is stored at the end]\n"
            ).encode()
        )

    def _tail_start(self, descriptor: int, size: int, head_end: int) -> int:
        """Where the newest part begins: with a whole line, where one begins soon."""
        begin = size - self.tail_bytes
        if begin <= head_end:
            return head_end
        newline = os.pread(descriptor, _MAX_LINE_BYTES, begin).find(b"\n")
        return begin + newline + 1 if newline >= 0 else begin

    def _segments(
        self, name: str, descriptor: int, size: int, *, ended: bool
    ) -> Iterator[tuple[int, int, bytes]]:
        """What the server gets: stretches [begin, end) of the file, and texts between them."""
        limit = self.limit_bytes
        if size <= limit - _MAX_LINE_BYTES or (ended and size <= limit):
            yield 0, size, b""
            return
        # what is sent can never be cut off again: a line that may not end before the limit is not begun
        if size <= limit:
            begin = limit - _MAX_LINE_BYTES
            newline = os.pread(descriptor, size - begin, begin).rfind(b"\n")
            yield 0, begin + newline + 1, b""
            return
        cut = self._head_end(descriptor, size)
        yield 0, cut, b""
        yield 0, 0, self._omission_marker(name, descriptor, cut)
        if ended:
            begin = self._tail_start(descriptor, size, cut)
            if begin > cut:
                yield 0, 0, f"[hopyard: {begin - cut} bytes are left out here]\n".encode()
            yield begin, size, b""
