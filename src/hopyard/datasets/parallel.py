"""Runs several operations concurrently, each in a thread; the first error ends all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def run_parallel(
    items: Sequence[T], work: Callable[[T], None], *, threads: int, stop_on: Callable[[], None]
) -> None:
    """Calls `work` with each item, in order. Calls `stop_on` in each thread at its end.

    Uses the caller's thread for a single item. Raises the first error after every thread has ended.
    """
    if len(items) <= 1:
        for item in items:
            work(item)
        return
    pending, lock = iter(items), threading.Lock()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            while not failures:
                with lock:
                    item = next(pending, None)
                if item is None:
                    return
                work(item)
        except BaseException as error:
            failures.append(error)
        finally:
            stop_on()

    workers = [
        threading.Thread(target=run, name=f"transfer {number}", daemon=True)
        for number in range(min(threads, len(items)))
    ]
    for thread in workers:
        thread.start()
    try:
        for thread in workers:
            thread.join()
    except BaseException as error:  # Ctrl-C: let each thread finish its current item
        failures.append(error)
        for thread in workers:
            thread.join(timeout=5.0)
        raise
    if failures:
        raise failures[0]
