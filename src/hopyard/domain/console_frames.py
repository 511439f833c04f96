"""The messages of a console: the channel between a user and a replica of a live run.

A message is a frame: its kind, the length of its payload, and the payload. A receiver skips kinds that it
does not know, so both ends may be of different versions. Payloads with fields are JSON objects. Standard
library only.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any

_HEADER = struct.Struct(">BI")
MAX_PAYLOAD = 4 * 2**20  # bytes
DATA_BYTES = 64 * 1024  # of a frame of input or output, at most
INPUT_WINDOW = 256 * 1024  # bytes of input that may be on their way before the receiver takes them

# From the server to the replica, first: what to do. Then from the user.
START = 1  # {"kind", "command", "user", "terminal"}
INPUT = 2  # bytes; none are the end of the input
RESIZE = 3  # {"rows", "columns"}
SIGNAL = 4  # {"name"}: of `SIGNAL_NAMES`
STATEMENT = 5  # {"source", "mode"}: of a prompt; the mode is "single" for one statement, or "script"
COMPLETE = 6  # {"text"}: the beginning of a name
# From the replica.
READY = 16  # {}: the program has started; of a prompt {"step", "python"}: the script is at a safe point
OUTPUT = 17  # bytes
ERROR_OUTPUT = 18  # bytes
TAKEN = 19  # {"bytes"}: input that was taken since the last such message
EXIT = 20  # {"code", "reason"}: the last message
RESULT = 21  # {"ok", "changes"}: a statement is done; the parameters that it assigned
COMPLETIONS = 22  # {"names"}
# From a process of the script to its replica, first.
ATTACH = 48  # {"kind"}: it takes a prompt, or the terminal of a shell

SIGNAL_NAMES = ("INT", "TERM", "HUP", "QUIT", "USR1", "USR2")


class FrameError(ValueError):
    """The bytes are no frames."""


def frame(kind: int, payload: bytes = b"") -> bytes:
    """Returns the bytes of a message."""
    return _HEADER.pack(kind, len(payload)) + payload


def json_frame(kind: int, fields: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a message with fields."""
    return frame(kind, json.dumps(fields).encode())


def fields_of(payload: bytes) -> dict[str, Any]:
    """Returns the fields of a payload. Raises FrameError."""
    try:
        fields = json.loads(payload)
    except ValueError as error:
        raise FrameError("a payload is not JSON") from error
    if not isinstance(fields, dict):
        raise FrameError("a payload is not a JSON object")
    return fields


class FrameReader:
    """Splits the bytes of a connection into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yields the kind and payload of each message that is complete now. Raises FrameError."""
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._buffer)
            if length > MAX_PAYLOAD:
                raise FrameError(f"a message of {length} bytes is too long")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            payload = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            yield kind, payload

    def rest(self) -> bytes:
        """Returns the bytes after the last complete message, and forgets them."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest
