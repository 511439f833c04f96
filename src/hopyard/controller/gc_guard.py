"""Pauses Python's garbage collection of cycles while a scheduling decision is pending."""

from __future__ import annotations

import asyncio
import gc

MAX_PAUSE_S = 1.0  # even if cycles follow each other without a break, or a store does not respond


class GcGuard:
    """Disables garbage collection between `pause` and the moment at which all work begun before `resume` has
    started.

    With many runs and gangs, a collection takes longer than a plan after a small change, and would delay the
    launches of that plan. If the process has disabled garbage collection, it stays disabled.
    """

    def __init__(self) -> None:
        self._active_decisions = False
        self._enable_timer: asyncio.TimerHandle | None = None  # set while this guard has disabled collection

    def pause(self) -> None:
        """Pauses collection. Must be called on the event loop."""
        self._active_decisions = True
        if gc.isenabled():
            gc.disable()
            self._enable_timer = asyncio.get_running_loop().call_later(MAX_PAUSE_S, self._enable)

    def resume(self) -> None:
        self._active_decisions = False
        try:
            asyncio.get_running_loop().call_soon(self._enable_if_idle)
        except RuntimeError:  # the loop was closed during a cycle, so nothing can be scheduled
            self._enable()

    def _enable_if_idle(self) -> None:
        if not self._active_decisions:
            self._enable()

    def _enable(self) -> None:
        if self._enable_timer is not None:
            self._enable_timer.cancel()
            self._enable_timer = None
            gc.enable()
