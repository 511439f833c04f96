"""What the caller hears while a call runs: notices, and the progress of a transfer.

The command line passes its own functions. From Python, notices go to stderr and no progress is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from hopyard.datasets.progress import NO_PROGRESS, ProgressListener
from hopyard.domain.text import escape_lines

Notify = Callable[[str], None]
ProgressFactory = Callable[[], AbstractContextManager[ProgressListener]]  # called once for each transfer


def print_notice(text: str) -> None:
    """Writes a notice to stderr, with all characters escaped that are not visible."""
    sys.stderr.write(escape_lines(text) + "\n")
    sys.stderr.flush()


def no_progress() -> AbstractContextManager[ProgressListener]:
    """Shows nothing."""
    return nullcontext(NO_PROGRESS)


def notify_of_skipped_homes(homes: Sequence[str], notify: Notify) -> None:
    """Notifies of the homes of Hopyard that were left out of a packed folder."""
    if homes:
        notify(
            f"note: left out, since it belongs to a home of Hopyard: {', '.join(homes[:5])}"
            + (f" and {len(homes) - 5} more" if len(homes) > 5 else "")
        )
