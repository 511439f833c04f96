"""Delivers commands to replicas with the answers of their syncs."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from hopyard.domain.command import Command, deliverable
from hopyard.domain.ids import AttemptId, RunId, split_attempt
from hopyard.interfaces.command_store import CommandStore

_SHARED_INTERVAL_S = 1.0  # another server of the database may have accepted a command
_MAX_ATTEMPTS = 4096


class PendingCommands:
    """The pending commands of all runs in memory, so that a sync needs no query.

    shared_database: several servers accept commands.
    """

    def __init__(self, commands: CommandStore, *, shared_database: bool) -> None:
        self._commands, self._shared = commands, shared_database
        self._pending: Mapping[RunId, Sequence[Command]] = {}
        self._changes, self._read_changes, self._read_at = 0, -1, 0.0
        # pauses of earlier attempts, which a new attempt continues
        self._earlier: OrderedDict[AttemptId, Sequence[Command]] = OrderedDict()

    def invalidate(self) -> None:
        """Must be called after a command was created or answered."""
        self._changes += 1

    async def commands_for(self, attempt: AttemptId, acknowledged: int) -> list[Command]:
        """Returns the commands that the replicas of an attempt lack. acknowledged: the highest number that
        they have."""
        earlier = self._earlier.get(attempt)
        run, number = split_attempt(attempt)
        if earlier is None:
            earlier = deliverable(await self._commands.commands(run), attempt) if number > 1 else ()
            self.invalidate()  # a command that an earlier attempt has answered is not pending any more
            self._earlier[attempt] = earlier
            while len(self._earlier) > _MAX_ATTEMPTS:
                self._earlier.popitem(last=False)
        await self._refresh()
        commands = {command.number: command for command in (*earlier, *self._pending.get(run, ()))}
        return [commands[number] for number in sorted(commands) if number > acknowledged]

    async def _refresh(self) -> None:
        now = time.monotonic()
        if self._changes == self._read_changes and not (
            self._shared and now - self._read_at > _SHARED_INTERVAL_S
        ):
            return
        changes = self._changes
        self._pending = await self._commands.pending_commands()
        self._read_changes, self._read_at = changes, now
