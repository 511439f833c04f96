"""The size limit of a run's stdout and stderr: the beginning and the newest part are stored, the middle is
dropped.

Up to the limit a stream is sent as it grows. After that, the newest quarter of the limit is kept on the node,
and the disk blocks before it are released. At the end that part is sent after a line with the number of
dropped bytes. Both parts begin and end with whole lines, unless a line is longer than `_MAX_LINE_BYTES`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from hopyard.backports import dataclass
from hopyard.config.units import format_memory
from hopyard.domain.stream_limits import OUTPUT_STREAMS
from hopyard.sdk.punch_hole import BLOCK_BYTES, punch_hole

_MAX_LINE_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """Limits both output streams. limit_bytes: the limit of each stream; 0 means no limit."""

    limit_bytes: int

    @property
    def tail_bytes(self) -> int:
        return self.limit_bytes // 4

    def applies(self, name: str) -> bool:
        return bool(self.limit_bytes) and name in OUTPUT_STREAMS

    def dropped_bytes(self, name: str, descriptor: int, size: int) -> int:
        """Returns how many bytes of a stream with a file of `size` bytes are dropped."""
        if not self.applies(name) or size <= self.limit_bytes:
            return 0
        head_end = self._head_end(descriptor, size)
        return self._tail_start(descriptor, size, head_end) - head_end

    def explain(self, name: str, rank: int, dropped: int) -> str:
        return (
            f"{dropped} bytes of {name} of replica {rank} are left out: it passed the limit of "
            f"{format_memory(self.limit_bytes)} (`hop run --max-output`, at most `runs: {{max_output: "
            f"…}}` in config.yaml)"
        )

    def shipped_size(self, name: str, descriptor: int, size: int, *, ended: bool) -> int:
        """Returns the size of the server's copy for a file of this size."""
        if not self.applies(name):
            return size
        return sum(
            len(text) if text else end - start
            for start, end, text in self._segments(name, descriptor, size, ended=ended)
        )

    def read(self, name: str, descriptor: int, offset: int, count: int, *, ended: bool) -> bytes:
        """Returns at most `count` bytes of the server's copy, from offset `at`."""
        if not self.applies(name):
            return os.pread(descriptor, count, offset)
        parts: list[bytes] = []
        for start, end, text in self._segments(name, descriptor, os.fstat(descriptor).st_size, ended=ended):
            length = len(text) if text else end - start
            if offset < length and count > 0:
                part = (
                    text[offset : offset + count]
                    if text
                    else os.pread(descriptor, min(count, length - offset), start + offset)
                )
                parts.append(part)
                count -= len(part)
                offset = length
            offset -= length
        return b"".join(parts)

    def server_offset(self, name: str, descriptor: int, offset: int) -> int:
        """Returns the size of the server's copy of a stream when its file is cut at `offset`. If lines before
        it are dropped, that is the end of the omission marker."""
        if not self.applies(name) or offset <= self.limit_bytes - _MAX_LINE_BYTES:
            return offset
        size = os.fstat(descriptor).st_size
        if size <= self.limit_bytes or offset <= (head_end := self._head_end(descriptor, size)):
            return offset
        return head_end + len(self._omission_marker(name, descriptor, head_end))

    def release_disk_blocks(self, name: str, path: str, size: int, released_to: int) -> int:
        """Releases the disk blocks of dropped bytes, once there are enough, and returns the offset up to
        which that was done. Raises OSError if the file system does not support it."""
        end = (size - self.tail_bytes) // BLOCK_BYTES * BLOCK_BYTES
        if not self.applies(name) or end - max(released_to, self.limit_bytes) < self.tail_bytes:
            return released_to
        return punch_hole(path, max(released_to, self.limit_bytes), end)

    def _head_end(self, descriptor: int, size: int) -> int:
        """Returns the end of the stored beginning of a file that is, or will be, longer than the limit: after
        its last whole line."""
        start = self.limit_bytes - _MAX_LINE_BYTES
        newline = os.pread(descriptor, min(size, self.limit_bytes) - start, start).rfind(b"\n")
        return start + newline + 1 if newline >= 0 else min(size, self.limit_bytes)

    def _omission_marker(self, name: str, descriptor: int, head_end: int) -> bytes:
        """Returns the line after the beginning in the server's copy. It stays when a resumed run rolls the
        newest part back."""
        line_end = b"" if os.pread(descriptor, 1, head_end - 1) == b"\n" else b"\n"
        limit = format_memory(self.limit_bytes)
        return (
            line_end
            + (
                f"[hopyard: {name} has passed its limit of {limit}: output is left out here; its "
                "newest part is stored at the end]\n"
            ).encode()
        )

    def _tail_start(self, descriptor: int, size: int, head_end: int) -> int:
        """Returns the start of the newest part: the start of a line, if one begins soon enough."""
        start = size - self.tail_bytes
        if start <= head_end:
            return head_end
        newline = os.pread(descriptor, _MAX_LINE_BYTES, start).find(b"\n")
        return start + newline + 1 if newline >= 0 else start

    def _segments(
        self, name: str, descriptor: int, size: int, *, ended: bool
    ) -> Iterator[tuple[int, int, bytes]]:
        """Yields the parts of the server's copy: ranges [start, end) of the file, and text between them."""
        limit = self.limit_bytes
        if size <= limit - _MAX_LINE_BYTES or (ended and size <= limit):
            yield 0, size, b""
            return
        # bytes that were sent cannot be removed: a line that may end after the limit is not sent yet
        if size <= limit:
            start = limit - _MAX_LINE_BYTES
            newline = os.pread(descriptor, size - start, start).rfind(b"\n")
            yield 0, start + newline + 1, b""
            return
        head_end = self._head_end(descriptor, size)
        yield 0, head_end, b""
        yield 0, 0, self._omission_marker(name, descriptor, head_end)
        if ended:
            start = self._tail_start(descriptor, size, head_end)
            if start > head_end:
                yield 0, 0, f"[hopyard: {start - head_end} bytes are left out here]\n".encode()
            yield start, size, b""
