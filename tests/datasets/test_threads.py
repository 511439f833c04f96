from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Awaitable, Callable

import pytest

from hopyard.stores.threads import Threads


def play(scenario: Callable[[Threads], Awaitable[None]], *, most: int = 3) -> None:
    async def run() -> None:
        threads = Threads(most, name="worker")
        try:
            await scenario(threads)
        finally:
            threads.close()

    before = threading.active_count()
    asyncio.run(run())
    assert threading.active_count() == before


def test_work_is_done_elsewhere_and_what_it_raises_comes_back() -> None:
    def fail() -> None:
        raise ValueError("no")

    async def scenario(threads: Threads) -> None:
        assert await threads.run(threading.get_ident) != threading.get_ident()
        for _ in range(5):
            with pytest.raises(ValueError, match="no"):
                await threads.run(fail)
        assert await asyncio.gather(*(threads.run(lambda n=n: n) for n in range(100))) == list(range(100))  # type: ignore[misc]

    play(scenario)


def test_as_many_threads_as_there_is_work_and_no_more_than_allowed() -> None:
    async def scenario(threads: Threads) -> None:
        for _ in range(10):
            assert await threads.run(lambda: threading.current_thread().name) == "worker_0"
        used = await asyncio.gather(*(threads.run(lambda: (time.sleep(0.01), threading.current_thread().name)[1]) for _ in range(20)))
        assert set(used) == {"worker_0", "worker_1", "worker_2"}

    play(scenario)


def test_work_that_nobody_waits_for_any_more_is_done_all_the_same() -> None:
    done: list[int] = []

    async def scenario(threads: Threads) -> None:
        asked = [asyncio.create_task(threads.run(lambda n=n: (time.sleep(0.01), done.append(n)))) for n in range(5)]  # type: ignore[misc]
        await asyncio.sleep(0)
        for task in asked:
            task.cancel()
        assert all(isinstance(found, asyncio.CancelledError) for found in await asyncio.gather(*asked, return_exceptions=True))
        assert await threads.run(lambda: 7) == 7

    play(scenario, most=1)
    assert done == [0, 1, 2, 3, 4]


def test_what_was_worked_on_is_let_go_while_a_thread_waits() -> None:
    class Large:
        pass

    async def scenario(threads: Threads) -> None:
        def fail(_large: Large) -> None:
            raise ValueError

        large = Large()
        kept = weakref.ref(large)
        await threads.run(lambda large=large: large)  # type: ignore[misc]
        with pytest.raises(ValueError):
            await threads.run(lambda large=large: fail(large))  # type: ignore[misc]
        del large
        deadline = time.monotonic() + 30
        while gc.collect() >= 0 and kept() is not None:  # the thread may just be on its way to the next piece
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)

    play(scenario)
