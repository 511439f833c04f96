"""How a server looks for cycles that nobody holds.

Python looks at what is new often, and now and then at all that there is: beside many waiting runs that takes
half a second and more, in which nothing is decided and nobody answered. So what outlived two looks is set
aside, and looked at again once in a while only.
"""

from __future__ import annotations

import gc
from datetime import timedelta
from typing import Any

from hopyard.interfaces.clock import Clock

NEW = 5_000  # objects more than before, and those are looked at: three milliseconds or so
TIMES = 5  # after so many looks, at what outlived them
NEVER = 1 << 30
EVERYTHING_EVERY = timedelta(hours=1)


def look_briefly() -> None:
    """From now on, and never again at what was imported."""
    gc.freeze()
    gc.set_threshold(NEW, TIMES, NEVER)
    if _set_aside not in gc.callbacks:
        gc.callbacks.append(_set_aside)


async def look_at_everything(clock: Clock) -> None:
    """Every hour, until cancelled: what became garbage after it was set aside is found, too."""
    while True:
        await clock.sleep_until(clock.now() + EVERYTHING_EVERY)
        gc.unfreeze()
        gc.collect()


def _set_aside(phase: str, about: dict[str, Any]) -> None:
    if phase == "stop" and about["generation"]:
        gc.freeze()
