"""Who asks: users' tokens, and the tokens that runs carry.

A user's token is `hop_` + 43 url-safe characters; the store knows its SHA-256 only. It has scopes, and may
expire or be revoked. Another server of the same database has a token of five minutes, see `server_tokens`; it
reads. A run's token is `hopr_<attempt>_<expiry, unix seconds>_<hmac>`, signed with a key of the home
(`signing`); it touches its own run only, and is valid until its run is over, whatever expiry was signed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from hopyard.domain.access import ALL_SCOPES, Scope, Token, with_included
from hopyard.domain.ids import AttemptId, RunId, split_attempt
from hopyard.domain.replica import RUN_TOKEN
from hopyard.errors import AuthError, Forbidden, HopyardError, RunOver
from hopyard.interfaces.access_store import AccessStore
from hopyard.server.server_tokens import SERVER_TOKEN, sender_of
from hopyard.server.signing import RUN_TOKEN_LIFE, Keys

_USER_PREFIX = "hop_"
_CACHED_TOKENS = 1024
_FRESH = timedelta(seconds=2)  # how long a token counts on this server after another one revoked it
_CLOCKS_APART = timedelta(minutes=5)  # of servers that sign for each other
_USE_NOTED_EVERY = timedelta(minutes=1)
_NO_TOKEN = "this server asks for a token"
_REVOKED_HINT = "it may have been revoked, or be another server's"
RUN_HINT = (
    "a run's own token, which commands inside a run have, reads that run, its logs and its checkpoints, "
    "and starts and ends the trials of a study; for anything else set HOPYARD_URL and HOPYARD_TOKEN to "
    "those of a user"
)
_TOKEN_HINT = (
    "send `Authorization: Bearer TOKEN`; the owner's is in the file `token` of the server's home "
    "folder, others get theirs from the owner: `hop user add NAME`"
)
log = logging.getLogger("hopyard.server")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. `run` and `attempt` are set when it came with a run's own token: it may touch that
    run only.

    scopes: of a user's token, with those that they include. token: its id. server: it is another server of
    the database."""

    user: str
    run: RunId | None = None
    attempt: AttemptId | None = None
    scopes: frozenset[Scope] = ALL_SCOPES
    token: str = ""
    server: bool = False

    def require_scope(self, scope: Scope) -> None:
        """Raises Forbidden when the request came with a user's token that lacks the scope."""
        if self.run is None and scope not in self.scopes:
            held = ", ".join(f"`{one}`" for one in Scope if one in self.scopes)
            hint = (
                f"use a token with the scope `{scope}`: `hop token list` shows which there are, `hop "
                f"token create --scope {scope}` makes one"
            )
            raise Forbidden(f"this needs the scope `{scope}`; the token has {held or 'none'}", hints=(hint,))

    def require_user(self) -> str:
        """The user's name; raises Forbidden for a run's token."""
        if self.run is not None:
            raise Forbidden("a run's own token may not do this", hints=(RUN_HINT,))
        return self.user

    def require_run(self, run: str) -> None:
        """Raises Forbidden unless this is a user or the run itself."""
        if self.run is not None and self.run != run:
            raise Forbidden("a run's own token may touch that run only", hints=(RUN_HINT,))

    def require_attempt(self, attempt: str) -> None:
        """Raises Forbidden unless this is a user or the attempt itself."""
        if self.attempt is not None and self.attempt != attempt:
            raise Forbidden("a run's own token may touch its own attempt only", hints=(RUN_HINT,))


def new_user_token() -> str:
    return _USER_PREFIX + secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """What is stored of a user's token."""
    return hashlib.sha256(token.encode()).hexdigest()


class Tokens:
    """Checks the tokens of requests and signs those of runs.

    live: whether a run is not over: the tokens of its attempts count exactly as long, also when they have
    expired, so that a replica which could not reach a server for a day can come back. belongs: whether a run
    is of the family of a study; raises NotFound.
    """

    def __init__(
        self,
        store: AccessStore,
        keys: Keys,
        *,
        now: Callable[[], datetime],
        live: Callable[[AttemptId], Awaitable[bool]],
        belongs: Callable[[RunId, RunId], Awaitable[bool]] | None = None,
        server_key: str = "",
    ) -> None:
        self._store, self.keys, self._now, self._is_live = store, keys, now, live
        self._belongs, self._server_key = belongs, server_key
        # by hash; until when it need not be looked up again
        self._users: dict[str, tuple[Token, datetime]] = {}
        # a run's token that this server signed -> whose it is, its expiry, its key's
        self._signed: dict[str, tuple[Caller, int, float]] = {}
        self._live: dict[AttemptId, datetime] = {}  # until when their runs need not be looked up again
        self._noted: dict[str, datetime] = {}  # hash -> when its use was noted last
        self._noting: set[asyncio.Task[None]] = set()

    def sign(self, attempt: AttemptId) -> str:
        """A new token for this attempt, valid for 24 h."""
        expiry = int((self._now() + RUN_TOKEN_LIFE).timestamp())
        return f"{RUN_TOKEN}{attempt}_{expiry}_{_mac(self.keys.current, attempt, expiry)}"

    def secret(self, attempt: AttemptId) -> str:
        """What the replicas of a study's attempt prove to each other."""
        return hmac.digest(self.keys.current, f"study {attempt}".encode(), "sha256").hex()

    async def require_family(self, caller: Caller, run: str) -> None:
        """Raises Forbidden unless this is a user, the run itself, the study that it belongs to, or one that
        continues this study; NotFound where there is no such run."""
        if caller.run is None or caller.run == run:
            return
        if self._belongs is None or not await self._belongs(RunId(run), caller.run):
            raise Forbidden(
                "a run's own token may touch that run, and those of its trials, only", hints=(RUN_HINT,)
            )

    def renewed(self, token: str) -> str | None:
        """A fresh token in place of a run's token that has used up half of its life, or whose key is retired;
        else None."""
        attempt, expiry, mac = _split(token) if token.startswith(RUN_TOKEN) else ("", 0, "")
        if not attempt:
            return None
        young = expiry - self._now().timestamp() > RUN_TOKEN_LIFE.total_seconds() / 2
        if young and hmac.compare_digest(mac.encode(), _mac(self.keys.current, attempt, expiry).encode()):
            return None
        return self.sign(AttemptId(attempt))

    def rotate_key(self) -> None:
        """Sign with a new key from now on. Raises OSError where it cannot be kept."""
        self.keys.rotate()
        self._signed.clear()

    async def caller(self, authorization: str | None) -> Caller:
        """Who a request with this `Authorization` header comes from. Raises AuthError."""
        token = bearer(authorization)
        if token.startswith(SERVER_TOKEN):
            sender = sender_of(token, self._server_key, now=self._now())
            return Caller(f"server {sender}", scopes=frozenset({Scope.READ}), server=True)
        return await self._run(token) if token.startswith(RUN_TOKEN) else await self._user(token)

    async def _user(self, text: str) -> Caller:
        key, now = hash_token(text), self._now()
        token, until = self._users.get(key, (None, now))
        if token is None or until <= now:
            token = await self._store.find_token(key)
            if token is None:
                self._users.pop(key, None)
                raise AuthError("the token is not one of this server's", hints=(_REVOKED_HINT, _TOKEN_HINT))
            if len(self._users) >= _CACHED_TOKENS:
                self._users.clear()
            self._users[key] = token, now + _FRESH
        if token.expired(now):
            assert token.expires_at is not None
            hint = (
                "`hop token create` with another token of the user makes a new one; the owner of the "
                "server does so by `--user NAME`"
            )
            raise AuthError(
                f"the token `{token.name}` expired at {token.expires_at:%Y-%m-%d %H:%M} UTC", hints=(hint,)
            )
        self._note_use(key, token, now)
        return Caller(token.user, scopes=with_included(token.scopes), token=token.id)

    def _note_use(self, key: str, token: Token, now: datetime) -> None:
        """Write down now and then that a token is used; the request does not wait for that."""
        last = self._noted.get(key) or token.used_at
        if last is not None and now - last < _USE_NOTED_EVERY:
            return
        if len(self._noted) >= _CACHED_TOKENS:
            self._noted.clear()
        self._noted[key] = now
        task = asyncio.get_running_loop().create_task(self._write_use(key, now))
        self._noting.add(task)
        task.add_done_callback(self._noting.discard)

    async def _write_use(self, key: str, now: datetime) -> None:
        try:
            await self._store.note_use(key, now=now)
        except HopyardError as failed:  # a full disk, or a database that is away: nothing depends on it
            log.info("the use of a token was not noted: %s", failed.message)

    async def close(self) -> None:
        """Let what is being written be written."""
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self._noting, return_exceptions=True)

    def forget_users(self) -> None:
        """Look all users' tokens up again: some were revoked.
        Another server may take them for `_FRESH` more."""
        self._users.clear()

    async def _run(self, token: str) -> Caller:
        caller, expiry, key_until = self._signed.get(token) or self._check_signed(token)
        if key_until <= self._now().timestamp():
            raise AuthError("the run's token was signed with a key that is retired", hints=(_TOKEN_HINT,))
        if expiry > (self._now() + RUN_TOKEN_LIFE + _CLOCKS_APART).timestamp():
            raise AuthError(
                "the run's token is valid for longer than this server signs any", hints=(_TOKEN_HINT,)
            )
        if caller.attempt is None or not await self._lives(caller.attempt):
            raise RunOver(
                "the run's token is valid no longer: the run is over", hints=("use a user's token",)
            )
        return caller

    async def _lives(self, attempt: AttemptId) -> bool:
        now = self._now()
        if self._live.get(attempt, now) > now:
            return True
        if not await self._is_live(attempt):
            self._live.pop(attempt, None)
            return False
        if len(self._live) >= _CACHED_TOKENS:
            self._live.clear()
        self._live[attempt] = now + _FRESH
        return True

    def look_again(self, run: RunId) -> None:
        """Something of this run changed: look up whether it is over."""
        for attempt in [one for one in self._live if one.rpartition(".")[0] == run]:
            del self._live[attempt]

    def _check_signed(self, token: str) -> tuple[Caller, int, float]:
        attempt, expiry, mac = _split(token)
        signed = [
            key
            for key in self.keys
            if hmac.compare_digest(mac.encode(), _mac(bytes.fromhex(key.secret), attempt, expiry).encode())
        ]
        # A retired key may be known to others, who can write any expiry: it counts for what it can have
        # signed before.
        if not attempt or not signed or expiry > signed[0].valid_until:
            raise AuthError("the run's token is not one of this server's", hints=(_TOKEN_HINT,))
        try:
            run, _ = split_attempt(AttemptId(attempt))
        except HopyardError as bad:
            raise AuthError("the run's token is not one of this server's", hints=(_TOKEN_HINT,)) from bad
        if len(self._signed) >= _CACHED_TOKENS:
            self._signed.clear()
        found = self._signed[token] = (
            Caller(f"run {run}", run, AttemptId(attempt)),
            expiry,
            signed[0].valid_until,
        )
        return found


def _mac(key: bytes, attempt: str, expiry: int) -> str:
    mac = hmac.digest(key, f"{attempt}_{expiry}".encode(), "sha256")
    return urlsafe_b64encode(mac).decode().rstrip("=").replace("_", ".")


def bearer(authorization: str | None) -> str:
    """The token of an `Authorization: Bearer TOKEN` header. Raises AuthError."""
    if not authorization:
        raise AuthError(_NO_TOKEN, hints=(_TOKEN_HINT,))
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or not token.isascii():
        raise AuthError(_NO_TOKEN, hints=(_TOKEN_HINT,))
    return token


def _split(token: str) -> tuple[str, int, str]:
    """Attempt, expiry and mac of a run's token; an empty attempt when it is not written like one."""
    parts = token.removeprefix(RUN_TOKEN).split("_")
    if len(parts) != 3 or not parts[1].isdecimal() or len(parts[1]) > 12:
        return "", 0, ""
    return parts[0], int(parts[1]), parts[2]
