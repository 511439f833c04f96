from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from hopyard.domain.command import Command, CommandKind, CommandResult
from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.param_format import ParamValue


class CommandStore(Protocol):
    """The commands of users to live runs."""

    async def create_command(
        self,
        run: RunId,
        kind: CommandKind,
        arguments: Mapping[str, ParamValue],
        /,
        *,
        user: str,
        now: datetime,
    ) -> Command:
        """Adds a command with the next number of its run. Raises NotFound; Conflict for a run that has ended
        or has too many commands."""
        ...

    async def commands(self, run: RunId, /) -> Sequence[Command]:
        """Returns the commands of a run in order; none for an unknown run."""
        ...

    async def pending_commands(self) -> Mapping[RunId, Sequence[Command]]:
        """Returns the commands of all runs that have not ended and have any, in order."""
        ...

    async def record_command_result(
        self, run: RunId, number: int, answer: CommandResult, /, *, attempt: AttemptId | None
    ) -> Command | None:
        """Records the answer of an attempt to a command, its event, and the phase of the run: paused after a
        pause, running after the end of a pause.

        Returns the answered command; None if the run has no such command. A repeated answer changes nothing.
        The answer of another attempt to the same pause only sets the phase. An attempt that is not the newest
        changes no phase. attempt: None for an answer of the server itself.
        """
        ...
