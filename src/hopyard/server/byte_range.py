"""The header `Range` of a request for bytes (RFC 9110, section 14)."""

from __future__ import annotations

import re
from dataclasses import dataclass

# one range; a request for several gets the whole content, as the standard permits
_PATTERN = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.I | re.ASCII)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes from `begin` to before `end`."""

    begin: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.begin


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """Returns the requested part of a content of `size` bytes. Returns all of it without a header, and for
    one that names no single range of bytes. Returns None if the range has none of the bytes."""
    complete = ByteRange(0, size)
    match = None if header is None else _PATTERN.fullmatch(header.strip())
    if match is None:
        return complete
    first, last = match.groups()
    if not first:
        if not last:
            return complete
        length = min(int(last), size)
        return ByteRange(size - length, size) if length else None
    begin = int(first)
    if last and int(last) < begin:
        return complete
    if begin >= size:
        return None
    return ByteRange(begin, min(int(last) + 1, size) if last else size)
