"""An event loop that tells when nothing is left to do but to wait for time to pass.

`asyncio` asks its selector for news of the outside whenever it has nothing ready to run. In a simulation
nothing comes from outside, so that question is the exact moment to move the clock: no polling, no guessing
how many turns of the loop suffice.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Stillness:
    """Somebody waits here until nothing else is left to do.

    elsewhere: how many calls are under way in other threads (a database's): what they bring is waited for
    first.
    """

    def __init__(self) -> None:
        self.elsewhere = 0
        self._waiting: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Until everybody else waits for something. One may wait at a time."""
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting

    def reached(self) -> bool:
        """Wake who waits; whether anybody did."""
        waiting, self._waiting = self._waiting, None
        if waiting is None or waiting.done():
            return False
        waiting.set_result(None)
        return True


class _Selector(selectors.DefaultSelector):
    def __init__(self, stillness: Stillness) -> None:
        super().__init__()
        self._stillness = stillness

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._stillness.elsewhere:
            return super().select(timeout)
        if timeout is not None and timeout <= 0:  # something is ready; nobody outside is asked meanwhile
            return []
        return [] if self._stillness.reached() else super().select(timeout)


class _Loop(asyncio.SelectorEventLoop):
    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Thinking in a thread (`asyncio.to_thread`) happens at once: time stands still meanwhile.
        Executors of others are theirs."""
        if executor is not None:
            return super().run_in_executor(executor, func, *args)
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def run(main: Callable[[Stillness], Coroutine[Any, Any, T]]) -> T:
    """Run `main(stillness)` in a loop of its own. Raises what it raises."""
    stillness = Stillness()
    with asyncio.Runner(loop_factory=lambda: _Loop(_Selector(stillness))) as runner:
        return runner.run(main(stillness))
