"""Threads for many small pieces of work, each of which an event loop waits for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Item = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Threads:
    """At most `most` threads, started as they are needed. All calls belong to one event loop.

    In place of an executor, whose futures, locks and callbacks cost a loop several times what the hand-over itself does.
    """

    def __init__(self, most: int, *, name: str) -> None:
        self._most, self._name = most, name
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._under_way = 0

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises, from a thread. It is done to its end also where nobody waits for it any more."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._under_way += 1
        if len(self._threads) < min(self._under_way, self._most):
            self._start_one()
        self._queue.put((work, future))
        return await future

    def close(self) -> None:
        """Wait until all work that was given is done, and end the threads."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _start_one(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}_{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while self._do_next():
            pass

    def _do_next(self) -> bool:
        """False at the end. Nothing of a piece of work is held while the next one is waited for."""
        item = self._queue.get()
        if item is None:
            return False
        work, future = item
        result, failed = None, None
        try:
            result = work()
        except BaseException as error:  # whatever it is: it is for who waits
            failed = error
        try:
            future.get_loop().call_soon_threadsafe(self._tell, future, result, failed)
        except RuntimeError:
            pass  # the loop of whoever asked is closed
        finally:
            del failed  # it refers to this frame
        return True

    def _tell(self, future: asyncio.Future[Any], result: Any, failed: BaseException | None) -> None:
        self._under_way -= 1
        if future.done():
            return
        if failed is None:
            future.set_result(result)
        else:
            future.set_exception(failed)
