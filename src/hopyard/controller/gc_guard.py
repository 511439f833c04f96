"""Guards Python's garbage collection of cycles: it is paused while a scheduling decision is pending."""

from __future__ import annotations

import asyncio
import gc

MAX_PAUSE_S = 1.0  # that it does not look, however one turn follows the other, or a store does not answer


class GcGuard:
    """Python does not look between `pause` and the moment at which all that was begun before `resume` is
    under way: beside many runs and gangs one look takes longer than a plan after a small change, and whoever
    starts by that plan would wait for it. Where the process has it off altogether, it stays off."""

    def __init__(self) -> None:
        self._active_decisions = False
        self._alarm: asyncio.TimerHandle | None = None  # while it is off because of this

    def pause(self) -> None:
        """Call it on the event loop."""
        self._active_decisions = True
        if gc.isenabled():
            gc.disable()
            self._alarm = asyncio.get_running_loop().call_later(MAX_PAUSE_S, self._enable)

    def resume(self) -> None:
        self._active_decisions = False
        try:
            asyncio.get_running_loop().call_soon(self._enable_if_idle)
        except RuntimeError:  # the loop was closed in the middle of a turn: there is no later
            self._enable()

    def _enable_if_idle(self) -> None:
        if not self._active_decisions:
            self._enable()

    def _enable(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
            gc.enable()
