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

YOUNG_THRESHOLD = 5_000  # objects more than before, and those are looked at: three milliseconds or so
YOUNG_PER_MIDDLE = 5  # after so many looks, at what outlived them
DISABLED_THRESHOLD = 1 << 30
FULL_COLLECTION_INTERVAL = timedelta(hours=1)


def collect_young() -> None:
    """From now on, and never again at what was imported."""
    gc.freeze()
    gc.set_threshold(YOUNG_THRESHOLD, YOUNG_PER_MIDDLE, DISABLED_THRESHOLD)
    if _freeze_survivors not in gc.callbacks:
        gc.callbacks.append(_freeze_survivors)


async def run_full_collections(clock: Clock) -> None:
    """Every hour, until cancelled: what became garbage after it was set aside is found, too."""
    while True:
        await clock.sleep_until(clock.now() + FULL_COLLECTION_INTERVAL)
        gc.unfreeze()
        gc.collect()


def _freeze_survivors(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"]:
        gc.freeze()
