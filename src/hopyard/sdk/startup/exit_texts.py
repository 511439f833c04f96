"""Records the text that a script passes to `sys.exit`: the reason of its end, even after an exception that it
handled."""

from __future__ import annotations

import os
import sys

from .import_hooks import call_guarded

TYPE_CHECKING = False  # the import of `typing` would take milliseconds
if TYPE_CHECKING:
    from typing import Any, NoReturn

_EXIT_TEXT = "exit_text"  # of the replica's folder; `replica.replica_dir` reads it
_MAX_LENGTH = 4096


def watch_exits() -> None:
    """Wraps `sys.exit`, which still does the same."""
    exit_ = sys.exit

    def exit_with_text(status: Any = None) -> NoReturn:
        if isinstance(status, str) and status:
            call_guarded("sys.exit", _record, status)
        exit_(status)

    exit_with_text.__name__, exit_with_text.__doc__ = exit_.__name__, exit_.__doc__
    exit_with_text.__module__, exit_with_text.__qualname__ = "sys", "exit"  # as pickle finds it
    sys.exit = exit_with_text


def _record(text: str) -> None:
    path = os.path.join(os.environ["HOPYARD_REPLICA_DIR"], _EXIT_TEXT)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        os.write(descriptor, text[:_MAX_LENGTH].encode(errors="replace"))
    finally:
        os.close(descriptor)
