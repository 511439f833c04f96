"""What tracking has to say to the person at the terminal: on stderr, once for each kind of trouble, never an
exception."""

from __future__ import annotations

import atexit
import sys

_MOST_UNTOLD = 20
_said: set[str] = set()
_untold: list[str] = []


def say(text: str, *, once: str | None = None) -> None:
    """Print one line. once: a key; a second call with the same key says nothing.

    What cannot be said now (stderr is a file on a full disk) is said with the next line, or at the end.
    """
    if once is not None:
        if once in _said:
            return
        _said.add(once)
    if len(_untold) < _MOST_UNTOLD:
        _untold.append(text)
    _tell()


def _tell() -> None:
    try:
        while _untold:
            print(f"hopyard: {_untold[0]}", file=sys.stderr, flush=True)
            del _untold[0]
    except (OSError, ValueError, AttributeError, IndexError):
        # a script may have closed its stderr, or have none
        return


atexit.register(_tell)
