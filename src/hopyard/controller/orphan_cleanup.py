"""Removes files of deleted runs, after an interrupted removal or a removal by another server."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from datetime import timedelta
from pathlib import Path

from hopyard import private_files
from hopyard.domain.ids import RunId
from hopyard.interfaces.clock import Clock
from hopyard.interfaces.run_store import RunStore
from hopyard.interfaces.streams import Streams

CLEANUP_INTERVAL = timedelta(hours=1)
log = logging.getLogger("hopyard.controller")


async def remove_orphaned_folders(
    runs: RunStore, streams: Streams, *, run_folders: Path | None = None
) -> int:
    """Removes streams, and folders below `run_folders`, of runs that do not exist. Returns the number of
    these runs. A run is recorded before its files are created."""
    runs_with_streams = set(await streams.list_runs())
    runs_with_folders = (
        set(await asyncio.to_thread(_run_folders, run_folders)) if run_folders is not None else set[RunId]()
    )
    existing = await runs.find_existing(sorted(runs_with_streams | runs_with_folders))
    removed = 0
    for run in sorted((runs_with_streams | runs_with_folders) - existing):
        try:
            await streams.delete(run)
            if run_folders is not None:
                await asyncio.to_thread(remove_tree, run_folders / run)
            removed += 1
        except OSError as error:
            log.warning("files of the deleted run %s cannot be removed: %s", run, error)
    if removed:
        log.info("removed the remaining files of %d deleted runs", removed)
    return removed


async def run_orphan_cleanup(runs: RunStore, streams: Streams, clock: Clock, *, run_folders: Path) -> None:
    """Cleans up now and every hour, until cancelled."""
    while True:
        try:
            await remove_orphaned_folders(runs, streams, run_folders=run_folders)
        except Exception:
            log.exception("the cleanup of deleted runs failed")
        await clock.sleep_until(clock.now() + CLEANUP_INTERVAL)


def remove_tree(folder: Path) -> None:
    """Removes a folder with its content, if it exists. Raises OSError when something cannot be removed."""
    private_files.remove_tree(folder)
    if os.path.lexists(folder):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(folder))


def _run_folders(root: Path) -> list[RunId]:
    try:
        return [RunId(entry.name) for entry in root.iterdir() if not entry.name.startswith(".")]
    except FileNotFoundError:
        return []
