"""The text about a process that a signal ended. Standard library only, for the Python of a run."""

from __future__ import annotations

import signal


def signal_text(number: int) -> str:
    """Returns the text about a process that a signal ended: "killed by signal 9 (SIGKILL)"."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "real-time signal"
    return f"killed by signal {number} ({name})"
