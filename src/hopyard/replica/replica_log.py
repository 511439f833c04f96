"""The replica's own log, `replica.log`."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from hopyard.private_files import create_below

_STDERR = 2  # redirected to the log


def redirect_standard_streams(folder: Path) -> None:
    """Redirects the standard streams of a replica without a terminal: no input, all output to its log."""
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        log = create_below(folder, "replica.log", os.O_WRONLY | os.O_APPEND)
    except OSError:  # the script made a folder of this name, for example: the replica works without a log
        log = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)


def log(text: str) -> None:
    """Appends a line. On a full disk it is dropped: a replica that died because of its log would
    end the run."""
    with suppress(OSError):
        os.write(_STDERR, f"{text}\n".encode(errors="replace"))
