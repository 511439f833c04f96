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
    """Lets one task wait until no other task can continue.

    calls_in_threads: the number of active calls in other threads (of a database); the task waits for their
    results first.
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
        waiter, self._waiting = self._waiting, None
        if waiter is None or waiter.done():
            return False
        waiter.set_result(None)
        return True


class _IdleSelector(selectors.DefaultSelector):
    def __init__(self, idle_detector: IdleDetector) -> None:
        super().__init__()
        self._idle_detector = idle_detector

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._idle_detector.calls_in_threads:
            return super().select(timeout)
        if timeout is not None and timeout <= 0:  # a task is ready: the selector is not polled
            return []
        return [] if self._idle_detector.wake_waiter() else super().select(timeout)


class _VirtualEventLoop(asyncio.SelectorEventLoop):
    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Runs a call for a thread (`asyncio.to_thread`) at once: no simulated time passes meanwhile. Other
        executors work as usual."""
        if executor is not None:
            return super().run_in_executor(executor, func, *args)
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run_virtual(main: Callable[[IdleDetector], Coroutine[Any, Any, T]]) -> T:
    """Runs `main(idle_detector)` in a loop of its own. Passes on its errors."""
    idle_detector = IdleDetector()
    with asyncio.Runner(loop_factory=lambda: _VirtualEventLoop(_IdleSelector(idle_detector))) as runner:
        return runner.run(main(idle_detector))
