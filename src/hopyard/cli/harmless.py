"""What a run wrote, for a terminal: colours and progress bars as they are, and of all other control sequences
their text alone.

A sequence can set the clipboard or the title of the window, clear the screen, switch to another one, or make
the terminal type an answer. A pipe, a file and `--raw` have every byte.
"""

from __future__ import annotations

import re

from hopyard.domain.text import shown

_LONGEST = 64  # of a sequence that waits for its end
# Colours; moves of the cursor and erasing of (parts of) lines, as progress bars use them; hiding and showing
# the cursor.
_ALLOWED = rb"\x1b\[(?:[0-9;:]{0,40}m|[0-9;]{0,16}[A-GKP@LMX]|0?J|\?(?:25|7|2026)[hl])"
# In UTF-8: C1, line and paragraph separators, marks of direction, which show a text in another order than it
# is read (`domain.text`).
_ACTING = rb"\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]"
_LETTERS = (
    rb"(?:(?!"
    + _ACTING
    + rb")(?:[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}))+"
)
_PIECES = re.compile(
    rb"(?P<allowed>"
    + _ALLOWED
    + rb"|"
    + _LETTERS
    + rb")|(?P<acting>"
    + _ACTING
    + rb")|[\x00-\x07\x0e-\x1f\x7f-\x9f]"
)
_UNFINISHED = re.compile(
    rb"(?:\x1b(?:\[[0-9;:?]*)?|[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})\Z"
)


class Harmless:
    """One stream, in pieces as they come."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """What to write for `data`. A sequence that has begun waits for its end."""
        data, self._rest = self._rest + data, b""
        unfinished = _UNFINISHED.search(data[-_LONGEST:])
        if unfinished is not None and len(unfinished[0]) < _LONGEST:
            cut = len(data) - len(unfinished[0])
            data, self._rest = data[:cut], data[cut:]
        return harmless(data)

    def end(self) -> bytes:
        """What still waited."""
        rest, self._rest = self._rest, b""
        return harmless(rest)


def harmless(data: bytes) -> bytes:
    """All other control characters become visible: `^[` for an escape, as `cat -v` shows it."""
    return _PIECES.sub(_visible, data)


def _visible(found: re.Match[bytes]) -> bytes:
    if found["allowed"] is not None:
        return found[0]
    if found["acting"] is not None:
        return shown(found[0].decode()).encode()
    byte = found[0][0]
    return b"\\x%02x" % byte if byte > 0x7F else b"^" + bytes([byte ^ 0x40])
