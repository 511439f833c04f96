"""Folders for the files of a single request."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from hopyard.config.home import Home
from hopyard.private_files import make_folder, remove_tree
from hopyard.server.services import Services


@asynccontextmanager
async def scratch_folder(services: Services, prefix: str) -> AsyncIterator[Path]:
    """Yields an empty folder, and removes it with its content, also when the request is cancelled.

    A thread removes it: a folder of many files would delay all other requests.
    """
    scratch = make_folder(Home(Path(services.home)).scratch)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=scratch))
    try:
        yield folder
    finally:
        await asyncio.shield(asyncio.to_thread(remove_tree, folder))
