"""Who asks: users' tokens, and the tokens that runs carry.

A user's token is `hop_` + 43 url-safe characters; the store knows its SHA-256 only.
A run's token is `hopr_<attempt>_<expiry, unix seconds>_<hmac>`, signed with the store's secret; it touches its own run only.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from hopyard.domain.ids import AttemptId, RunId, split_attempt
from hopyard.errors import AuthError, Forbidden, HopyardError
from hopyard.interfaces.access_store import AccessStore

RUN_TOKEN_LIFE = timedelta(hours=24)
_USER_PREFIX, _RUN_PREFIX = "hop_", "hopr_"
_CACHED_TOKENS = 1024
_FRESH = timedelta(seconds=10)
_NO_TOKEN = "this server asks for a token"
_TOKEN_HINT = "send `Authorization: Bearer TOKEN`; the owner's is in the file `token` of the server's home folder, others get theirs from the owner: `hop user add NAME`"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request. `run` and `attempt` are set when it came with a run's own token: it may touch that run only."""

    user: str
    run: RunId | None = None
    attempt: AttemptId | None = None

    def require_user(self) -> str:
        """The user's name; raises Forbidden for a run's token."""
        if self.run is not None:
            raise Forbidden("a run's own token may not do this", hints=("use a user's token",))
        return self.user

    def require_run(self, run: str) -> None:
        """Raises Forbidden unless this is a user or the run itself."""
        if self.run is not None and self.run != run:
            raise Forbidden("a run's own token may touch that run only")

    def require_attempt(self, attempt: str) -> None:
        """Raises Forbidden unless this is a user or the attempt itself."""
        if self.attempt is not None and self.attempt != attempt:
            raise Forbidden("a run's own token may touch its own attempt only")


def new_user_token() -> str:
    return _USER_PREFIX + secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """What is stored of a user's token."""
    return hashlib.sha256(token.encode()).hexdigest()


class Tokens:
    """Checks the tokens of requests and signs those of runs.

    attempt_live: whether an attempt is not over; an expired run's token still counts while it is, so that a replica which
    could not reach a server for a day can come back. belongs: whether a run is of the family of a study; raises NotFound.
    """

    def __init__(
        self,
        store: AccessStore,
        secret: bytes,
        *,
        now: Callable[[], datetime],
        attempt_live: Callable[[AttemptId], Awaitable[bool]],
        belongs: Callable[[RunId, RunId], Awaitable[bool]] | None = None,
    ) -> None:
        self._store, self._secret, self._now, self._attempt_live = store, secret, now, attempt_live
        self._belongs = belongs
        self._users: dict[str, tuple[str, datetime]] = {}  # hash -> user, until when it need not be looked up again
        self._signed: dict[str, tuple[Caller, int]] = {}  # a run's token that this server signed -> whose it is, its expiry

    def sign(self, attempt: AttemptId) -> str:
        """A new token for this attempt, valid for 24 h."""
        expiry = int((self._now() + RUN_TOKEN_LIFE).timestamp())
        return f"{_RUN_PREFIX}{attempt}_{expiry}_{self._mac(attempt, expiry)}"

    def secret(self, attempt: AttemptId) -> str:
        """What the replicas of a study's attempt prove to each other."""
        return hmac.digest(self._secret, f"study {attempt}".encode(), "sha256").hex()

    async def require_family(self, caller: Caller, run: str) -> None:
        """Raises Forbidden unless this is a user, the run itself, the study that it belongs to, or one that continues this study; NotFound
        where there is no such run."""
        if caller.run is None or caller.run == run:
            return
        if self._belongs is None or not await self._belongs(RunId(run), caller.run):
            raise Forbidden("a run's own token may touch that run, and those of its trials, only")

    def renewed(self, token: str) -> str | None:
        """A fresh token in place of a run's token that has used up half of its life, else None."""
        attempt, expiry, _ = _split(token) if token.startswith(_RUN_PREFIX) else ("", 0, "")
        if not attempt or expiry - self._now().timestamp() > RUN_TOKEN_LIFE.total_seconds() / 2:
            return None
        return self.sign(AttemptId(attempt))

    async def caller(self, authorization: str | None) -> Caller:
        """Who a request with this `Authorization` header comes from. Raises AuthError."""
        token = bearer(authorization)
        return await self._run(token) if token.startswith(_RUN_PREFIX) else await self._user(token)

    async def _user(self, token: str) -> Caller:
        key, now = hash_token(token), self._now()
        user, until = self._users.get(key, (None, now))
        if user is None or until <= now:
            user = await self._store.user_of(key)
            if user is None:
                raise AuthError("the token is not one of this server's", hints=(_TOKEN_HINT,))
            if len(self._users) >= _CACHED_TOKENS:
                self._users.clear()
            self._users[key] = user, now + _FRESH
        return Caller(user)

    def forget_users(self) -> None:
        """Look all users' tokens up again: some were withdrawn. A request on its way, or another server, may take them for `_FRESH` more."""
        self._users.clear()

    async def _run(self, token: str) -> Caller:
        caller, expiry = self._signed.get(token) or self._check_signed(token)
        if expiry < self._now().timestamp() and (caller.attempt is None or not await self._attempt_live(caller.attempt)):
            raise AuthError("the run's token has expired, and its attempt is over", hints=(_TOKEN_HINT,))
        return caller

    def _check_signed(self, token: str) -> tuple[Caller, int]:
        attempt, expiry, mac = _split(token)
        if not attempt or not hmac.compare_digest(mac.encode(), self._mac(attempt, expiry).encode()):
            raise AuthError("the run's token is not one of this server's", hints=(_TOKEN_HINT,))
        try:
            run, _ = split_attempt(AttemptId(attempt))
        except HopyardError as bad:
            raise AuthError("the run's token is not one of this server's", hints=(_TOKEN_HINT,)) from bad
        if len(self._signed) >= _CACHED_TOKENS:
            self._signed.clear()
        found = self._signed[token] = Caller(f"run {run}", run, AttemptId(attempt)), expiry
        return found

    def _mac(self, attempt: str, expiry: int) -> str:
        mac = hmac.digest(self._secret, f"{attempt}_{expiry}".encode(), "sha256")
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
    parts = token.removeprefix(_RUN_PREFIX).split("_")
    if len(parts) != 3 or not parts[1].isdecimal() or len(parts[1]) > 12:
        return "", 0, ""
    return parts[0], int(parts[1]), parts[2]
