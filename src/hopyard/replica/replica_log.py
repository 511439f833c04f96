"""The replica's own log, `replica.log`."""

from __future__ import annotations

import os
from contextlib import suppress

_STDERR = 2  # redirected to the log (see `main.redirect_standard_streams`)


def log(text: str) -> None:
    """Appends a line. On a full disk it is dropped: a replica that died because of its log would
    end the run."""
    with suppress(OSError):
        os.write(_STDERR, f"{text}\n".encode(errors="replace"))
