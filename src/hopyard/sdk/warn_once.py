"""Warnings of the tracking code for the user: on stderr, once per kind, never an exception."""

from __future__ import annotations

import atexit
import sys

_MAX_PENDING = 20
_shown_kinds: set[str] = set()
_pending: list[str] = []


def warn_once(text: str, *, kind: str | None = None) -> None:
    """Prints one line. kind: a key; a second call with the same key prints nothing.

    A line that cannot be printed now (stderr is a file on a full disk) is printed with the next one, or at
    exit.
    """
    if kind is not None:
        if kind in _shown_kinds:
            return
        _shown_kinds.add(kind)
    if len(_pending) < _MAX_PENDING:
        _pending.append(text)
    _flush_pending()


def _flush_pending() -> None:
    try:
        while _pending:
            print(f"hopyard: {_pending[0]}", file=sys.stderr, flush=True)
            del _pending[0]
    except (OSError, ValueError, AttributeError, IndexError):
        # a script may have closed its stderr, or have none
        return


atexit.register(_flush_pending)
