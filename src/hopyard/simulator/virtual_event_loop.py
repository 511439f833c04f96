"""An event loop that detects when all tasks wait for time to pass.

`asyncio` polls its selector when no task is ready. In a simulation no input comes from outside, so this is
the exact moment to move the clock, without polling or counting turns of the loop.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class IdleDetector:
    """Somebody waits here until nothing else is left to do.

    calls_in_threads: how many calls are under way in other threads (a database's): what they bring is waited
    for first.
    """

    def __init__(self) -> None:
        self.calls_in_threads = 0
        self._waiting: asyncio.Future[None] | None = None

    async def wait_idle(self) -> None:
        """Waits until all other tasks wait. One task may call it at a time."""
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting

    def wake_waiter(self) -> bool:
        """Wakes the waiting task. Returns whether there was one."""
        waiting, self._waiting = self._waiting, None
        if waiting is None or waiting.done():
            return False
        waiting.set_result(None)
        return True


class _IdleSelector(selectors.DefaultSelector):
    def __init__(self, idle_detector: IdleDetector) -> None:
        super().__init__()
        self._stillness = idle_detector

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._stillness.calls_in_threads:
            return super().select(timeout)
        if timeout is not None and timeout <= 0:  # a task is ready: the selector is not polled
            return []
        return [] if self._stillness.wake_waiter() else super().select(timeout)


class _VirtualEventLoop(asyncio.SelectorEventLoop):
    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Runs a call for a thread (`asyncio.to_thread`) at once: no simulated time passes meanwhile. Other
        executors are left alone."""
        if executor is not None:
            return super().run_in_executor(executor, func, *args)
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def run_virtual(main: Callable[[IdleDetector], Coroutine[Any, Any, T]]) -> T:
    """Run `main(stillness)` in a loop of its own. Raises what it raises."""
    stillness = IdleDetector()
    with asyncio.Runner(loop_factory=lambda: _VirtualEventLoop(_IdleSelector(stillness))) as runner:
        return runner.run(main(stillness))
