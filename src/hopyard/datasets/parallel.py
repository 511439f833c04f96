"""Several things in flight at once, each in a thread; the first error ends all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def run_parallel(
    items: Sequence[T], work: Callable[[T], None], *, threads: int, stop_on: Callable[[], None]
) -> None:
    """Call `work` with each item, in order of their start. Raises the first error after every thread has
    ended. `stop_on` is called in each thread at its end. A single item is worked on by the caller's own
    thread."""
    if len(items) <= 1:
        for item in items:
            work(item)
        return
    pending, guard = iter(items), threading.Lock()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            while not failures:
                with guard:
                    item = next(pending, None)
                if item is None:
                    return
                work(item)
        except BaseException as bad:
            failures.append(bad)
        finally:
            stop_on()

    crew = [
        threading.Thread(target=run, name=f"transfer {number}", daemon=True)
        for number in range(min(threads, len(items)))
    ]
    for thread in crew:
        thread.start()
    try:
        for thread in crew:
            thread.join()
    except BaseException as interrupted:  # Ctrl-C: let each finish what it is at
        failures.append(interrupted)
        for thread in crew:
            thread.join(timeout=5.0)
        raise
    if failures:
        raise failures[0]
