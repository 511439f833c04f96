"""Reads JSON lines that arrive in pieces, from a program that may write anything."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

LINE_LIMIT = 1024 * 1024  # a longer line is skipped
_SURROGATE = re.compile(rb"\\u[dD]|\xed")  # an escaped or encoded half of a character; or a whole one


class LineReader:
    """Decodes bytes into the JSON objects of complete lines. Other lines are skipped and counted.

    required_substrings: a line without any of these is ignored, in a hundredth of the time of decoding it; ()
    decodes all.
    """

    def __init__(self, required_substrings: Sequence[bytes] = ()) -> None:
        self._partial_line, self._required_substrings = b"", tuple(required_substrings)
        self._skipping = False
        self.skipped_lines = 0

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        *lines, partial_line = (self._partial_line + data).split(b"\n")
        self._partial_line = partial_line
        for line in lines:
            if self._skipping:
                self._skipping = False
            elif line.strip() and (
                not self._required_substrings
                or any(substring in line for substring in self._required_substrings)
            ):
                value = parse_line(line)
                if value is None:
                    self.skipped_lines += 1
                else:
                    yield value
        if len(partial_line) > LINE_LIMIT:
            self.skipped_lines += not self._skipping
            self._partial_line, self._skipping = b"", True


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Returns the JSON object of a line; None for anything else.

    A half of a character, as in a file name of another encoding, is replaced by `?`. No database and no
    response can hold it.
    """
    try:
        value = json.loads(line)
        if _SURROGATE.search(line):
            value = json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def to_number(value: object) -> float | None:
    """Returns `value` as a float when it is a number (a bool is not), else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def to_int64(value: object) -> int | None:
    """Returns `value` as an int of 64 bits when it is a whole number, else None."""
    number = to_number(value)
    if number is None or not math.isfinite(number) or abs(number) >= 2**63:
        return None
    return int(number)
