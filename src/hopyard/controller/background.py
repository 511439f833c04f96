"""Background tasks without a waiter. Their errors are logged, and the next reconciliation retries them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from hopyard.errors import HopyardError

log = logging.getLogger("hopyard.controller")


class BackgroundEffects:
    """Keeps references to running tasks: they are not garbage collected, and end with the controller."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, effect: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(effect)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def cancel(self) -> None:
        pending = list(self._tasks)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.gather(*pending, return_exceptions=True)


async def run_logging_errors(effect: Awaitable[None]) -> None:
    """Awaits the effect. An error is only logged."""
    try:
        await effect
    except HopyardError as error:
        log.warning("%s", error)
    except Exception:
        log.exception("a background action failed; the next reconciliation retries it")


async def run_step_logging_errors(step: Callable[[], Awaitable[None]]) -> bool:
    """Runs one step of a loop and logs an error, so that the loop continues.
    Returns whether the step succeeded."""
    try:
        await step()
    except HopyardError as error:
        log.error("%s: %s", step.__name__.strip("_"), error)
    except Exception:
        log.exception("%s failed", step.__name__.strip("_"))
    else:
        return True
    return False
