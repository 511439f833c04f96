"""What tracking has to say to the person at the terminal: on stderr, once for each kind of trouble, never an exception."""

from __future__ import annotations

import sys
from contextlib import suppress

_said: set[str] = set()


def say(text: str, *, once: str | None = None) -> None:
    """Print one line. once: a key; a second call with the same key says nothing."""
    if once is not None:
        if once in _said:
            return
        _said.add(once)
    with suppress(OSError, ValueError, AttributeError):  # a script may have closed its stderr, or have none
        print(f"hopyard: {text}", file=sys.stderr, flush=True)
