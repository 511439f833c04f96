"""What the replica says of itself, in `replica.log`."""

from __future__ import annotations

import os
from contextlib import suppress

_STDERR = 2  # leads to the log (see `main.redirect`)


def log(text: str) -> None:
    """Add a line. On a full disk it goes unsaid: a replica that died of its own log would take the run
    along."""
    with suppress(OSError):
        os.write(_STDERR, f"{text}\n".encode(errors="replace"))
