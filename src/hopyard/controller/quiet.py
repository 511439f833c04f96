"""When Python may look for cycles that nobody holds: not while somebody waits for a decision."""

from __future__ import annotations

import asyncio
import gc
import time

LONGEST_S = 1.0  # that it does not look, however one turn follows the other (and one turn, if it takes longer)


class Quiet:
    """Python does not look between `begin` and the moment at which all that was begun before `end` is under way: beside many runs and
    gangs one look takes longer than a plan after a small change, and whoever starts by that plan would wait for it. Where the process
    has it off altogether, it stays off."""

    def __init__(self) -> None:
        self._off_since: float | None = None
        self._deciding = False

    def begin(self) -> None:
        self._deciding = True
        if gc.isenabled():
            gc.disable()
            self._off_since = time.monotonic()

    def end(self) -> None:
        """Call it on the event loop."""
        self._deciding = False
        if self._off_since is not None and time.monotonic() - self._off_since > LONGEST_S:
            self._look_again()
        else:
            asyncio.get_running_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        if self._off_since is not None and not self._deciding:
            self._off_since = None
            gc.enable()
