"""When Python may look for cycles that nobody holds: not while somebody waits for a decision."""

from __future__ import annotations

import asyncio
import gc

LONGEST_S = 1.0  # that it does not look, however one turn follows the other, or a store does not answer


class Quiet:
    """Python does not look between `begin` and the moment at which all that was begun before `end` is under
    way: beside many runs and gangs one look takes longer than a plan after a small change, and whoever starts
    by that plan would wait for it. Where the process has it off altogether, it stays off."""

    def __init__(self) -> None:
        self._deciding = False
        self._alarm: asyncio.TimerHandle | None = None  # while it is off because of this

    def begin(self) -> None:
        """Call it on the event loop."""
        self._deciding = True
        if gc.isenabled():
            gc.disable()
            self._alarm = asyncio.get_running_loop().call_later(LONGEST_S, self._look_again)

    def end(self) -> None:
        self._deciding = False
        try:
            asyncio.get_running_loop().call_soon(self._look_if_idle)
        except RuntimeError:  # the loop was closed in the middle of a turn: there is no later
            self._look_again()

    def _look_if_idle(self) -> None:
        if not self._deciding:
            self._look_again()

    def _look_again(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
            gc.enable()
