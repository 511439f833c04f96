from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from hopyard.domain.cluster import Observation
from hopyard.domain.ids import AttemptId
from hopyard.domain.launch import Launch


class Engine(Protocol):
    """Runs gangs somewhere. Knows nothing of queues and priorities."""

    @property
    def name(self) -> str: ...

    async def launch(self, launch: Launch, /) -> None:
        """Start all replicas or none. Idempotent on `launch.attempt`: also after a crash of whoever called,
        an attempt that was started, or has ended and is not yet forgotten, is not started again. Raises
        LaunchFailed with nothing left."""

    async def stop(self, attempt: AttemptId, /, *, grace: timedelta, preempt: bool = False) -> None:
        """Ask the attempt to end, kill it after `grace`. Returns once it was asked.
        Unknown or ended: no error.

        preempt: it is to make room, so its replicas exit as PREEMPTED. A script with safe points saves a
        checkpoint at its next one and leaves, all replicas at the same turn; SIGTERM comes to it only when
        the grace is nearly over. Any other gets SIGTERM at once. A script that finishes before has finished.
        A stop without `preempt` that follows is asked at once."""

    async def observe(self) -> Observation:
        """Everything that is true now. Never a diff, never cached."""
        ...

    async def forget(self, attempt: AttemptId, /) -> None:
        """The attempt's end is recorded and its streams are stored: its traces on the nodes may go.
        Unknown: no error."""
