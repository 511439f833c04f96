"""Ends work of a request for which no client waits any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from starlette.requests import ClientDisconnect, Request


@asynccontextmanager
async def cancelled_with_client(request: Request) -> AsyncIterator[None]:
    """Cancels the block when the client disconnects, and raises ClientDisconnect then.

    The body of the request must have been read."""
    work = asyncio.current_task()
    assert work is not None
    is_gone = False

    async def watch() -> None:
        nonlocal is_gone
        while (await request.receive())["type"] != "http.disconnect":
            continue
        is_gone = True
        work.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if is_gone and not work.uncancel():
            raise ClientDisconnect from None
        raise
    finally:
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher
