"""What a run wrote, for a terminal: colours and progress bars as they are, and of all other control sequences
their text alone.

A sequence can set the clipboard or the title of the window, clear the screen, switch to another one, or make
the terminal type an answer. A pipe, a file and `--raw` have every byte.
"""

from __future__ import annotations

import re

from hopyard.domain.text import escape

_MAX_SEQUENCE_LENGTH = 64  # of a sequence that waits for its end
# Colours; moves of the cursor and erasing of (parts of) lines, as progress bars use them; hiding and showing
# the cursor.
_ALLOWED_SEQUENCES = rb"\x1b\[(?:[0-9;:]{0,40}m|[0-9;]{0,16}[A-GKP@LMX]|0?J|\?(?:25|7|2026)[hl])"
# In UTF-8: C1, line and paragraph separators, marks of direction, which show a text in another order than it
# is read (`domain.text`).
_CONTROL_CHARACTERS = rb"\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]"
_LETTERS = (
    rb"(?:(?!"
    + _CONTROL_CHARACTERS
    + rb")(?:[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}))+"
)
_SEGMENTS = re.compile(
    rb"(?P<allowed>"
    + _ALLOWED_SEQUENCES
    + rb"|"
    + _LETTERS
    + rb")|(?P<acting>"
    + _CONTROL_CHARACTERS
    + rb")|[\x00-\x07\x0e-\x1f\x7f-\x9f]"
)
_INCOMPLETE_SEQUENCE = re.compile(
    rb"(?:\x1b(?:\[[0-9;:?]*)?|[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z"
)


class EscapeFilter:
    """One stream, in pieces as they come."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> bytes:
        """Returns the bytes to write for `data`. An incomplete sequence waits for its end."""
        data, self._pending = self._pending + data, b""
        unfinished = _INCOMPLETE_SEQUENCE.search(data[-_MAX_SEQUENCE_LENGTH:])
        if unfinished is not None and len(unfinished[0]) < _MAX_SEQUENCE_LENGTH:
            cut = len(data) - len(unfinished[0])
            data, self._pending = data[:cut], data[cut:]
        return filter_escapes(data)

    def flush(self) -> bytes:
        """Returns the waiting bytes."""
        rest, self._pending = self._pending, b""
        return filter_escapes(rest)


def filter_escapes(data: bytes) -> bytes:
    """All other control characters become visible: `^[` for an escape, as `cat -v` shows it."""
    return _SEGMENTS.sub(_visible_text, data)


def _visible_text(match: re.Match[bytes]) -> bytes:
    if match["allowed"] is not None:
        return match[0]
    if match["acting"] is not None:
        return escape(match[0].decode()).encode()
    byte = match[0][0]
    return b"\\x%02x" % byte if byte > 0x7F else b"^" + bytes([byte ^ 0x40])
