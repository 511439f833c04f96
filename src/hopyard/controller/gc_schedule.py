"""Schedules Python's garbage collection of cycles in a server.

Python collects new objects often, and from time to time all objects. With many waiting runs a full collection
takes half a second and more, in which the server neither schedules nor responds. Objects that survive two
collections are therefore frozen, and a full collection runs only once in a while.
"""

from __future__ import annotations

import gc
from datetime import timedelta
from typing import Any

from hopyard.interfaces.clock import Clock

YOUNG_THRESHOLD = 5_000  # new objects between two young collections, which take about three milliseconds each
YOUNG_PER_MIDDLE = 5  # young collections between two collections of their survivors
DISABLED_THRESHOLD = 1 << 30
FULL_COLLECTION_INTERVAL = timedelta(hours=1)


def collect_young() -> None:
    """Collects only young objects from now on, and never the imported modules. Enables the collector if it
    was disabled during the imports."""
    gc.freeze()
    gc.set_threshold(YOUNG_THRESHOLD, YOUNG_PER_MIDDLE, DISABLED_THRESHOLD)
    gc.enable()
    if _freeze_survivors not in gc.callbacks:
        gc.callbacks.append(_freeze_survivors)


async def run_full_collections(clock: Clock) -> None:
    """Runs a full collection every hour, until cancelled: it finds frozen objects that became garbage."""
    while True:
        await clock.sleep_until(clock.now() + FULL_COLLECTION_INTERVAL)
        gc.unfreeze()
        gc.collect()


def _freeze_survivors(phase: str, info: dict[str, Any]) -> None:
    if phase == "stop" and info["generation"]:
        gc.freeze()
