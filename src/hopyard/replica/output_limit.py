"""The limit of what a run writes to stdout and stderr: its beginning and its newest part are kept, what lies between is dropped.

Up to the limit a stream is sent as it grows. Beyond, the newest quarter of the limit is kept on the node, the blocks before it are given
back to the disk, and at the end follows what was kept, behind a line that counts what was dropped.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass

from hopyard.config.units import format_memory

LIMITED = ("stdout", "stderr")
_BLOCK = 65_536  # a multiple of every usual file system's
_PUNCH_HOLE_KEEP_SIZE = 3
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """limit_bytes: of each of the two streams; 0 is none."""

    limit_bytes: int

    @property
    def tail_bytes(self) -> int:
        return self.limit_bytes // 4

    def dropped_bytes(self, name: str, size: int) -> int:
        """How much of a stream whose file has grown to `size` is neither in its beginning nor in its newest part."""
        limited = self.limit_bytes and name in LIMITED
        return max(0, size - self.limit_bytes - self.tail_bytes) if limited else 0

    def shipped_size(self, name: str, size: int, *, ended: bool) -> int:
        """How long the stream is that the server gets of a file of this size."""
        if size <= self.limit_bytes or not self.limit_bytes:
            return size
        return sum(len(text) if text else end - begin for begin, end, text in self._pieces(name, size, ended=ended))

    def read(self, name: str, descriptor: int, at: int, count: int, *, ended: bool) -> bytes:
        """At most `count` bytes of what the server gets, from its byte `at` on."""
        if not self.limit_bytes or name not in LIMITED:
            return os.pread(descriptor, count, at)
        found: list[bytes] = []
        for begin, end, text in self._pieces(name, os.fstat(descriptor).st_size, ended=ended):
            length = len(text) if text else end - begin
            if at < length and count > 0:
                part = text[at : at + count] if text else os.pread(descriptor, min(count, length - at), begin + at)
                found.append(part)
                count -= len(part)
                at = length
            at -= length
        return b"".join(found)

    def give_back(self, name: str, path: str, size: int, given_back: int) -> int:
        """Give the blocks of what is dropped back to the disk, once there are enough; up to where that was done. Raises OSError where the
        file system cannot."""
        end = (size - self.tail_bytes) // _BLOCK * _BLOCK
        if not self.dropped_bytes(name, size) or end - max(given_back, self.limit_bytes) < self.tail_bytes:
            return given_back
        begin = -(-max(given_back, self.limit_bytes) // _BLOCK) * _BLOCK
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            if _libc.fallocate(descriptor, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(begin), ctypes.c_long(end - begin)):
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
        finally:
            os.close(descriptor)
        return end

    def _pieces(self, name: str, size: int, *, ended: bool) -> Iterator[tuple[int, int, bytes]]:
        """What the server gets: stretches [begin, end) of the file, and texts between them."""
        limit = self.limit_bytes
        if not limit or name not in LIMITED or size <= limit:
            yield 0, size, b""
            return
        yield 0, limit, b""
        yield 0, 0, f"\n[hopyard: {name} has passed its limit of {format_memory(limit)}; its newest part follows at the end]\n".encode()
        if ended:
            dropped = self.dropped_bytes(name, size)
            if dropped:
                yield 0, 0, f"[hopyard: {dropped} bytes are left out here]\n".encode()
            yield limit + dropped, size, b""
