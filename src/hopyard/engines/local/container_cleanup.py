"""The containers of the replicas of this engine. The replica programs start and remove them; here the rest
of those that were killed is removed."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from hopyard.container_engine.container_labels import remove_unknown_containers
from hopyard.container_engine.engine_discovery import open_engine, start_podman_service
from hopyard.errors import ContainerError
from hopyard.private_files import open_file

_MARKER = "containers"  # in the home: it had containers
_MAX_PAUSE_S = 60.0  # between two tries
_TIMEOUT_S = 20.0  # for each answer of an engine: one that hangs delays launches
log = logging.getLogger("hopyard.engines")


class ContainerCleanup:
    """home: of the engine. list_known: returns the attempts of which the containers stay; it blocks. The
    methods raise no error: a replica reports that it has no container engine."""

    def __init__(self, home: Path, list_known: Callable[[], Collection[str]]) -> None:
        self._home, self._list_known = home, list_known
        self._repetition: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    @property
    def is_used(self) -> bool:
        """Whether a run of this home has had containers."""
        return (self._home / _MARKER).exists()

    async def prepare(self) -> None:
        """Starts Podman's service if this node has Podman and no engine that answers."""
        await asyncio.to_thread(self._prepare)

    def start(self) -> None:
        """Removes the containers of unknown attempts in the background, until none is left. While the
        container engine is away, that takes repeated tries. They need no observation of the engine of the
        node: without live attempts there is none."""
        if self.is_used and (self._repetition is None or self._repetition.done()):
            self._repetition = asyncio.create_task(self._repeat())

    async def remove_unknown(self) -> None:
        """Removes the containers of unknown attempts, or leaves that to the background."""
        if self.is_used and not await asyncio.to_thread(self._remove_unknown):
            self.start()

    async def close(self) -> None:
        """Finishes the removal that is in progress."""
        self._closing.set()
        if self._repetition is not None:
            await asyncio.gather(self._repetition, return_exceptions=True)

    async def _repeat(self) -> None:
        pause_s = 1.0
        while not self._closing.is_set() and not await asyncio.to_thread(self._remove_unknown):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def _prepare(self) -> None:
        with suppress(OSError):
            os.close(open_file(self._home / _MARKER, os.O_WRONLY | os.O_CREAT))
        try:
            start_podman_service(timeout_s=_TIMEOUT_S)
        except (ContainerError, OSError) as error:
            log.warning("Podman's service could not be started: %s", error)

    def _remove_unknown(self) -> bool:
        """Returns whether nothing is left."""
        try:
            api = open_engine(timeout_s=_TIMEOUT_S).api
            removed, is_complete = remove_unknown_containers(api, self._home, self._list_known)
        except (ContainerError, OSError) as error:
            if self._repetition is None or self._repetition.done():  # once, not at each try
                log.warning("leftover containers are removed later: %s", error)
            return False
        if removed:
            log.info("removed leftover containers of attempts %s", ", ".join(removed))
        return is_complete
