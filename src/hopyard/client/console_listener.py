"""Prints a followed run with `print`, in scripts and notebooks."""

from __future__ import annotations

import codecs
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopyard.api_client import types as api
    from hopyard.client.follow import ProgressFrame


class ConsoleListener:
    """A `FollowListener`: stdout goes to `sys.stdout`, stderr and messages to `sys.stderr`."""

    def __init__(self) -> None:
        self._decoders: dict[tuple[int, str], codecs.IncrementalDecoder] = {}

    def write(self, rank: int, stream: str, data: bytes, _at: float | None = None, /) -> None:
        decoder = self._decoders.get((rank, stream))
        if decoder is None:
            decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
            self._decoders[rank, stream] = decoder
        _print(stream, decoder.decode(data))

    def flush(self) -> None:
        for (_, stream), decoder in self._decoders.items():
            _print(stream, decoder.decode(b"", final=True))  # an incomplete character
        self._decoders.clear()

    def show_run(self, run: api.RunOut, /) -> None:
        """Prints nothing: the caller gets the run when it ends."""

    def show_progress(self, frame: ProgressFrame, /) -> None:
        """Prints nothing."""

    def notify(self, text: str, /) -> None:
        print(text, file=sys.stderr, flush=True)


def _print(stream: str, text: str) -> None:
    print(text, end="", file=sys.stderr if stream == "stderr" else sys.stdout, flush=True)
