"""Commands of users to live runs, in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from hopyard.domain.command import (
    Command,
    CommandKind,
    CommandResult,
    CommandState,
    answered_command,
    check_new_command,
    event_of,
    is_paused_after,
)
from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.param_format import ParamValue
from hopyard.errors import NotFound
from hopyard.stores.memory.state import MemoryState


class MemoryCommandStore:
    """Implements `hopyard.interfaces.command_store.CommandStore`."""

    def __init__(self, state: MemoryState) -> None:
        self._state = state

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
        row = self._state.runs.get(run)
        if row is None:
            raise NotFound(f"no run has the id {run}")
        check_new_command(str(row.name), row.phase, len(row.commands))
        command = Command(run, len(row.commands) + 1, kind, dict(arguments), user, now)
        row.commands.append(command)
        return command

    async def commands(self, run: RunId, /) -> Sequence[Command]:
        row = self._state.runs.get(run)
        return () if row is None else tuple(row.commands)

    async def pending_commands(self) -> Mapping[RunId, Sequence[Command]]:
        return {
            run: pending
            for run, row in self._state.runs.items()
            if not row.phase.is_final
            and (pending := [each for each in row.commands if each.state is CommandState.PENDING])
        }

    async def record_command_result(
        self, run: RunId, number: int, answer: CommandResult, /, *, attempt: AttemptId | None
    ) -> Command | None:
        row = self._state.runs.get(run)
        if row is None or not 1 <= number <= len(row.commands):
            return None
        command = row.commands[number - 1]
        if command.state is CommandState.PENDING:
            command = row.commands[number - 1] = answered_command(command, answer, attempt)
            row.events.append(event_of(command))
        is_paused = is_paused_after(row.commands)
        if attempt is None or (row.attempt is not None and row.attempt.id == attempt):
            row.paused_at = (row.paused_at or answer.at) if is_paused else None
        return command
