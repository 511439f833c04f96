"""New objects are collected often, old ones rarely, and no garbage stays forever.

Runs in a separate process, since the collector is global.
"""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

BEGIN = """
    import asyncio, gc, weakref
    from datetime import UTC, datetime
    from hopyard.controller import gc_schedule
    from hopyard.testing.clock import ManualClock

    class Thing:
        def __init__(self):
            self.itself = self

    looks = []
    gc.callbacks.append(lambda phase, about: phase == "stop" and looks.append(about["generation"]))
    gc_schedule.collect_young()
    gc_schedule.collect_young()  # twice is as once
"""


def run(script: str) -> str:
    code = dedent(BEGIN) + dedent(script)
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    ).stdout


def test_old_objects_are_frozen() -> None:
    output = run("""
        kept = [Thing() for _ in range(200_000)]
        print(len(looks) > 20, 2 in looks, looks.count(1) > 2)
        most = 3 * gc_schedule.YOUNG_THRESHOLD * gc_schedule.YOUNG_PER_MIDDLE
        print(len(gc.get_objects()) < most, gc.get_freeze_count() > 100_000)
        print(gc.callbacks.count(gc_schedule._freeze_survivors))
    """)
    assert output.split() == ["True", "False", "True", "True", "True", "1"]


def test_frozen_garbage_is_collected_eventually() -> None:
    output = run("""
        kept = [Thing() for _ in range(50_000)]
        seen = [weakref.ref(kept[0]), weakref.ref(kept[-1])]
        gc.collect(1)
        kept.clear()
        gc.collect(1)
        print(seen[0]() is None)

        async def an_hour():
            clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
            looking = asyncio.create_task(gc_schedule.run_full_collections(clock))
            for _ in range(2):
                while clock.next_at() is None:
                    await asyncio.sleep(0)
                clock.advance(gc_schedule.FULL_COLLECTION_INTERVAL)
            while looks.count(2) < 2:
                await asyncio.sleep(0)
            looking.cancel()

        asyncio.run(an_hour())
        print([one() is None for one in seen], gc.get_freeze_count() > 0, looks.count(2))
    """)
    assert output.split("\n")[:2] == ["False", "[True, True] True 2"]
