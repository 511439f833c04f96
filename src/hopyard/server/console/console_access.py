"""The right to open a console of a run. The run's user and the owner of the server have it, as a right to
execute code.

A console is opened with a request that is checked and recorded. The response has a path that works once,
within a minute, for the same token.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from hopyard.domain.access import Scope
from hopyard.domain.ids import AttemptId, RunId
from hopyard.domain.run import Run, RunEvent, RunEventKind, RunPhase
from hopyard.errors import AuthError, Conflict, Forbidden, NotFound
from hopyard.server.authentication import Caller
from hopyard.server.cache_validation import is_valid
from hopyard.server.services import Services

OPEN_ACTION = "run.open_console"
PATH_FORM = "/runs/{run}/consoles/{ticket}"
_LIFETIME = timedelta(minutes=1)
_MAX_TICKETS = 4096
_LIVE = (RunPhase.RUNNING, RunPhase.PAUSED, RunPhase.STOPPING)


@dataclass(frozen=True, slots=True)
class OpenConsole:
    """A console that a user may connect to once. start: the fields of the first message to the replica."""

    run: RunId
    attempt: AttemptId
    rank: int
    start: Mapping[str, Any]
    caller: Caller
    until: datetime


class ConsoleAccess:
    """The rights to consoles, and the tickets of those that wait for their connection."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._tickets: dict[str, OpenConsole] = {}

    async def check(self, run: Run, rank: int, caller: Caller) -> AttemptId:
        """Returns the live attempt. Raises Forbidden, NotFound, and Conflict for a run that does not run
        now."""
        caller.require_scope(Scope.SUBMIT)
        user, owner = caller.require_user(), self._services.queue_cache.owner
        if user not in (run.name.user, owner):
            allowed = ", ".join(dict.fromkeys([run.name.user, owner]))
            raise Forbidden(
                f"`{user}` cannot open a console of run {run.name}; allowed users: {allowed}",
                hints=("a console executes code as the run's user",),
            )
        if rank >= run.spec.size:
            raise NotFound(
                f"run {run.name} has no replica {rank}", hints=(f"its replicas: 0 to {run.spec.size - 1}",)
            )
        attempt = run.attempt
        if run.phase not in _LIVE or attempt is None or attempt.ended_at is not None:
            state = "has ended" if run.phase.is_final else f"is {run.phase}"
            hint = (
                f"run it again: `hop fork {run.name}`"
                if run.phase.is_final
                else f"see why it waits: `hop why {run.name}`"
            )
            raise Conflict(f"run {run.name} {state}: consoles are open while it runs", hints=(hint,))
        if attempt.engine != self._services.engine:
            raise Conflict(
                f"run {run.name} runs on another server of this database",
                hints=("run the command on that server",),
            )
        return attempt.id

    async def open(
        self, run: Run, attempt: AttemptId, rank: int, start: Mapping[str, Any], sentence: str, caller: Caller
    ) -> str:
        """Records the console as an event of the run. Returns the path to connect to."""
        now = self._services.now()
        await self._services.runs.record_event(run.id, RunEvent(now, RunEventKind.CONSOLE, sentence))
        self._services.subscriptions.notify_state(run.id)
        self._tickets = {key: each for key, each in self._tickets.items() if each.until > now}
        if len(self._tickets) >= _MAX_TICKETS:
            self._tickets.clear()
        ticket = secrets.token_urlsafe(32)
        self._tickets[ticket] = OpenConsole(run.id, attempt, rank, start, caller, now + _LIFETIME)
        return PATH_FORM.format(run=run.id, ticket=ticket)

    def use(self, run: RunId, ticket: str, caller: Caller) -> OpenConsole:
        """Returns the console of a ticket, which is used up. Raises AuthError."""
        console = self._tickets.get(ticket)
        if (
            console is None
            or (console.run, console.caller.user, console.caller.token) != (run, caller.user, caller.token)
            or not is_valid(console.until, self._services.now(), _LIFETIME)
        ):
            raise AuthError(
                "this console was opened already, or has expired", hints=("run the command again",)
            )
        del self._tickets[ticket]
        return console
