"""The open connections to ports and consoles, streamed responses and events, by the token of their user.

A connection may stay open for days. It ends when its token is revoked, expires, or its user is removed. That
of a browser also ends with its session, and that of a run with the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from hopyard.domain.access import Scope, Token, expand_scopes
from hopyard.domain.ids import AttemptId
from hopyard.errors import HopyardError
from hopyard.server.authentication import Caller

_CHECK_INTERVAL_S = 5.0  # for tokens that expire, or that another server of the database revokes
log = logging.getLogger("hopyard.server")


class TokenConnections:
    """list_tokens: as of `AccessStore`. live_sessions: returns the ids of the sessions of a user.
    is_live_attempt: as of `TokenAuthenticator`."""

    def __init__(
        self,
        list_tokens: Callable[[str], Awaitable[Sequence[Token]]],
        *,
        live_sessions: Callable[[str], Awaitable[Collection[str]]],
        now: Callable[[], datetime],
        is_live_attempt: Callable[[AttemptId], Awaitable[bool]],
    ) -> None:
        self._list_tokens, self._live_sessions = list_tokens, live_sessions
        self._now, self._is_live_attempt = now, is_live_attempt
        self._open: dict[object, tuple[Caller, Callable[[], None], Scope]] = {}
        self._checks: asyncio.Task[None] | None = None

    @contextmanager
    def opened(
        self, caller: Caller, abort: Callable[[], None], *, scope: Scope = Scope.SUBMIT
    ) -> Iterator[None]:
        """Calls `abort` once the caller's token is no longer valid, or has not this scope, or the caller's
        session has ended, until the end of the context."""
        key = object()
        self._open[key] = caller, abort, scope
        if self._checks is None:
            self._checks = asyncio.create_task(self._check_periodically())
        try:
            yield
        finally:
            del self._open[key]
            if not self._open and self._checks is not None:
                self._checks.cancel()
                self._checks = None

    async def abort_invalid(self) -> None:
        """Aborts the connections of tokens that are no longer valid, and of sessions that have ended."""
        attempts = {caller.attempt for caller, *_ in self._open.values() if caller.attempt is not None}
        for attempt in attempts:
            if not await self._is_live_attempt(attempt):
                for caller, abort, _ in list(self._open.values()):
                    if caller.attempt == attempt:
                        abort()
        for user in {caller.user for caller, *_ in self._open.values() if caller.attempt is None}:
            tokens = await self._list_tokens(user)
            now = self._now()
            scopes = {token.id: expand_scopes(token.scopes) for token in tokens if not token.is_expired(now)}
            own = [
                entry for entry in self._open.values() if entry[0].attempt is None and entry[0].user == user
            ]
            has_sessions = any(caller.session for caller, *_ in own)
            sessions = {"", *(await self._live_sessions(user) if has_sessions else ())}
            for caller, abort, scope in own:
                if scope not in scopes.get(caller.token, ()) or caller.session not in sessions:
                    abort()

    async def _check_periodically(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            try:
                await self.abort_invalid()
            except HopyardError as error:  # a database that is down
                log.info("the tokens of open connections were not checked: %s", error.message)
