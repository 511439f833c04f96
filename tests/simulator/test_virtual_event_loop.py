from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from hopyard.simulator.clock import START_TIME, ManualClock
from hopyard.simulator.virtual_event_loop import IdleDetector, run_virtual


def test_time_moves_only_when_all_tasks_are_idle() -> None:
    """Each of them works in many small steps between its waits; the clock never moves in between."""
    log: list[tuple[str, int, int]] = []

    async def main(idle_detector: IdleDetector) -> None:
        clock = ManualClock()

        async def work(name: str, every: int) -> None:
            for step in range(5):
                began = clock.now()
                for _ in range(30):
                    await asyncio.sleep(0)
                assert clock.now() == began
                log.append((name, step, (clock.now() - START_TIME) // timedelta(seconds=1)))
                await clock.sleep_until(clock.now() + timedelta(seconds=every))

        workers = [asyncio.ensure_future(work("a", 2)), asyncio.ensure_future(work("b", 3))]
        while not all(worker.done() for worker in workers):
            await idle_detector.wait_idle()
            at = clock.next_at()
            if at is not None:
                clock.move_to(at)
        for worker in workers:
            worker.result()

    run_virtual(main)
    assert sorted(log) == [("a", step, 2 * step) for step in range(5)] + [
        ("b", step, 3 * step) for step in range(5)
    ]


def test_loop_is_not_idle_during_a_thread_call() -> None:
    async def main(idle_detector: IdleDetector) -> list[str]:
        result: list[str] = []
        gate = threading.Event()
        loop = asyncio.get_running_loop()

        async def ask() -> None:
            idle_detector.calls_in_threads += 1
            answer: asyncio.Future[str] = loop.create_future()
            thread = threading.Thread(
                target=lambda: (gate.wait(10), loop.call_soon_threadsafe(answer.set_result, "answer"))
            )
            thread.start()
            result.append(await answer)
            thread.join()
            idle_detector.calls_in_threads -= 1

        asking = asyncio.ensure_future(ask())
        loop.call_soon(gate.set)
        await idle_detector.wait_idle()
        result.append("still")
        await asking
        return result

    assert run_virtual(main) == ["answer", "still"]


def test_to_thread_runs_inline() -> None:
    async def main(_: IdleDetector) -> tuple[int, bool]:
        return await asyncio.to_thread(lambda: 42), await asyncio.to_thread(
            threading.current_thread
        ) is threading.main_thread()

    assert run_virtual(main) == (42, True)


def test_error_in_to_thread_is_raised() -> None:
    async def main(_: IdleDetector) -> None:
        await asyncio.to_thread(lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        run_virtual(main)
