"""Authentication of requests: by users' tokens, runs' tokens, and tokens of other servers.

A user's token is `hop_` + 43 url-safe characters; the store has only its SHA-256. It has scopes, and may
expire or be revoked. Another server of the same database has a token of five minutes, see `server_tokens`,
which may only read.

A run's token is `hopr_<attempt>_<expiry, unix seconds>_<hmac>`, signed with a key of the home
(`signing_keys`). It permits access to its own run only. It is valid until its run has ended, independent of
the signed expiry.
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

from hopyard.domain.access import ALL_SCOPES, Scope, Token, expand_scopes
from hopyard.domain.ids import AttemptId, RunId, split_attempt
from hopyard.domain.replica import RUN_TOKEN_PREFIX
from hopyard.errors import AuthError, Forbidden, HopyardError, RunEnded
from hopyard.interfaces.access_store import AccessStore
from hopyard.server.cache_validation import is_valid
from hopyard.server.server_tokens import SERVER_TOKEN_PREFIX, verify_server_token
from hopyard.server.signing_keys import RUN_TOKEN_LIFETIME, SigningKeys

_USER_PREFIX = "hop_"
_MAX_CACHED_TOKENS = 1024
_CACHE_TTL = timedelta(seconds=2)  # so long this server accepts a token after another server revoked it
_MAX_CLOCK_SKEW = timedelta(minutes=5)  # between servers that accept each other's signatures
# A clock that is set back by up to this leaves live runs connected. Their tokens are renewed at once.
_MAX_CLOCK_JUMP = timedelta(days=7)
_USE_RECORD_INTERVAL = timedelta(minutes=1)
_NO_TOKEN_MESSAGE = "this server requires a token"
_REVOKED_HINT = "check the token: it may be revoked, or belong to another server"
RUN_TOKEN_HINT = (
    "set HOPYARD_URL and HOPYARD_TOKEN to the values of a user: the token of a run only reads that "
    "run, its logs and checkpoints, and starts and ends the trials of a study"
)
_TOKEN_HINT = (
    "send `Authorization: Bearer TOKEN`; the owner's is in the file `token` of the server's home "
    "folder, the owner makes tokens for others with `hop user add NAME`"
)
log = logging.getLogger("hopyard.server")


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. `run` and `attempt` are set for a run's own token, which permits access to
    that run only.

    scopes: of a user's token, including implied scopes. token: its id. server: whether the caller is another
    server of the database. session: the id of the session if the request came with the cookie of a browser.
    """

    user: str
    run: RunId | None = None
    attempt: AttemptId | None = None
    scopes: frozenset[Scope] = ALL_SCOPES
    token: str = ""
    server: bool = False
    session: str = ""

    def require_scope(self, scope: Scope) -> None:
        """Raises Forbidden when the request came with a user's token that lacks the scope."""
        if self.run is None and scope not in self.scopes:
            token_scopes = ", ".join(
                f"`{token_scope}`" for token_scope in Scope if token_scope in self.scopes
            )
            hint = (
                f"use a token with the scope `{scope}`: list yours with `hop token list`, create one "
                f"with `hop token create --scope {scope}`"
            )
            raise Forbidden(
                f"this needs the scope `{scope}`; the token has {token_scopes or 'none'}", hints=(hint,)
            )

    def require_user(self) -> str:
        """Returns the user's name. Raises Forbidden for a run's token."""
        if self.run is not None:
            raise Forbidden("the token of a run does not permit this", hints=(RUN_TOKEN_HINT,))
        return self.user

    def require_run(self, run: str) -> None:
        """Raises Forbidden unless the caller is a user or the run itself."""
        if self.run is not None and self.run != run:
            raise Forbidden("the token of a run permits access to that run only", hints=(RUN_TOKEN_HINT,))

    def require_attempt(self, attempt: str) -> None:
        """Raises Forbidden unless the caller is a user or the attempt itself."""
        if self.attempt is not None and self.attempt != attempt:
            raise Forbidden(
                "the token of a run permits access to its own attempt only", hints=(RUN_TOKEN_HINT,)
            )


def new_user_token() -> str:
    return _USER_PREFIX + secrets.token_urlsafe(32)


def hash_token(token: str) -> str:
    """Returns the hash under which a user's token is stored."""
    return hashlib.sha256(token.encode()).hexdigest()


class TokenAuthenticator:
    """Checks the tokens of requests and signs the tokens of runs.

    is_live_attempt: whether the run of an attempt has not ended. The attempt's tokens are valid exactly as
    long, even if they have expired, so that a replica that was offline for a day can connect again.
    belongs_to_study: whether a run belongs to the family of a study; raises NotFound. is_evaluated_by:
    whether a run is evaluated by another one; raises NotFound. reads: whether the spec of the second run
    names the first as one that it reads.
    """

    def __init__(
        self,
        store: AccessStore,
        keys: SigningKeys,
        *,
        now: Callable[[], datetime],
        is_live_attempt: Callable[[AttemptId], Awaitable[bool]],
        belongs_to_study: Callable[[RunId, RunId], Awaitable[bool]] | None = None,
        is_evaluated_by: Callable[[RunId, RunId], Awaitable[bool]] | None = None,
        reads: Callable[[RunId, RunId], Awaitable[bool]] | None = None,
        server_key: str = "",
    ) -> None:
        self._store, self.keys, self._now, self._is_live_attempt = store, keys, now, is_live_attempt
        self._belongs_to_study, self._server_key = belongs_to_study, server_key
        self._is_evaluated_by, self._reads = is_evaluated_by, reads
        # by hash: the token, and until when the entry is valid
        self._user_tokens: dict[str, tuple[Token, datetime]] = {}
        # by verified token of a run: its caller, its expiry, the expiry of its key
        self._run_tokens: dict[str, tuple[Caller, int, float]] = {}
        self._live_attempts: dict[AttemptId, datetime] = {}  # until when the entry is valid
        self._use_recorded_at: dict[str, datetime] = {}  # by hash: when its use was recorded last
        self._use_tasks: set[asyncio.Task[None]] = set()

    def sign_token(self, attempt: AttemptId) -> str:
        """Returns a new token for this attempt, valid for 24 h."""
        expiry = int((self._now() + RUN_TOKEN_LIFETIME).timestamp())
        return f"{RUN_TOKEN_PREFIX}{attempt}_{expiry}_{_mac(self.keys.current_secret, attempt, expiry)}"

    def gang_secret(self, attempt: AttemptId) -> str:
        """Returns the secret by which the replicas of an attempt authenticate each other."""
        return hmac.digest(self.keys.current_secret, f"study {attempt}".encode(), "sha256").hex()

    def preflight_secret(self, attempt: AttemptId, rank: int | None = None) -> str:
        """Returns the secret with which the replicas of an attempt check each other, or with a rank the one
        with which that replica reports a failed check."""
        subject = f"preflight {attempt}" if rank is None else f"preflight {attempt} {rank}"
        return hmac.digest(self.keys.current_secret, subject.encode(), "sha256").hex()

    async def require_same_study(self, caller: Caller, run: str) -> None:
        """Raises Forbidden unless the caller is a user, the run itself, the study that it belongs to, or a
        study that continues this study. Raises NotFound if the run does not exist."""
        if caller.run is None or caller.run == run:
            return
        if self._belongs_to_study is None or not await self._belongs_to_study(RunId(run), caller.run):
            raise Forbidden(
                "the token of a run permits access to that run and its trials only", hints=(RUN_TOKEN_HINT,)
            )

    async def may_read_evaluated(self, caller: Caller, run: str) -> bool:
        """Returns whether the caller is a run that evaluates this run, and may read its checkpoints."""
        return (
            caller.run is not None
            and self._is_evaluated_by is not None
            and await self._is_evaluated_by(RunId(run), caller.run)
        )

    async def may_read(self, caller: Caller, run: str) -> bool:
        """Returns whether the caller is a run that was submitted to read the data of this one."""
        if caller.run is None or self._reads is None:
            return False
        return await self._reads(RunId(run), caller.run)

    def renew(self, token: str) -> str | None:
        """Returns a new token for a run's token that is older than half of its lifetime, has a retired key,
        or is of the future: the clock was set back. Else None."""
        attempt, expiry, mac = _split_run_token(token) if token.startswith(RUN_TOKEN_PREFIX) else ("", 0, "")
        if not attempt:
            return None
        lifetime_s = RUN_TOKEN_LIFETIME.total_seconds()
        left_s = expiry - self._now().timestamp()
        is_young = lifetime_s / 2 < left_s <= lifetime_s + _MAX_CLOCK_SKEW.total_seconds()
        if is_young and hmac.compare_digest(
            mac.encode(), _mac(self.keys.current_secret, attempt, expiry).encode()
        ):
            return None
        return self.sign_token(AttemptId(attempt))

    def rotate_key(self) -> None:
        """Signs with a new key from now on. Raises OSError if the key cannot be stored."""
        self.keys.rotate()
        self._run_tokens.clear()

    async def authenticate(self, authorization: str | None) -> Caller:
        """Returns the caller of a request with this `Authorization` header. Raises AuthError."""
        token = bearer_token(authorization)
        if token.startswith(SERVER_TOKEN_PREFIX):
            sender = verify_server_token(token, self._server_key, now=self._now())
            return Caller(f"server {sender}", scopes=frozenset({Scope.READ}), server=True)
        return (
            await self._authenticate_run(token)
            if token.startswith(RUN_TOKEN_PREFIX)
            else await self.authenticate_user(hash_token(token))
        )

    async def authenticate_user(self, key: str) -> Caller:
        """Returns the user of the token with this hash. Raises AuthError."""
        now = self._now()
        token, until = self._user_tokens.get(key, (None, now))
        if token is None or not is_valid(until, now, _CACHE_TTL):
            token = await self._store.find_token(key)
            if token is None:
                self._user_tokens.pop(key, None)
                raise AuthError(
                    "unknown token: this server did not issue it", hints=(_REVOKED_HINT, _TOKEN_HINT)
                )
            if len(self._user_tokens) >= _MAX_CACHED_TOKENS:
                self._user_tokens.clear()
            self._user_tokens[key] = token, now + _CACHE_TTL
        if token.is_expired(now):
            assert token.expires_at is not None
            hint = (
                "create a token with `hop token create`, using another token of the user; the owner "
                "of the server adds `--user NAME`"
            )
            raise AuthError(
                f"the token `{token.name}` expired at {token.expires_at:%Y-%m-%d %H:%M} UTC", hints=(hint,)
            )
        self._record_use(key, token, now)
        return Caller(token.user, scopes=expand_scopes(token.scopes), token=token.id)

    def _record_use(self, key: str, token: Token, now: datetime) -> None:
        """Records the use of a token at most once a minute. The request does not wait for it."""
        last = self._use_recorded_at.get(key) or token.used_at
        if last is not None and abs(now - last) < _USE_RECORD_INTERVAL:
            return
        if len(self._use_recorded_at) >= _MAX_CACHED_TOKENS:
            self._use_recorded_at.clear()
        self._use_recorded_at[key] = now
        self.record_later(self._store.record_use(key, now=now), "a token")

    def record_later(self, write: Awaitable[None], subject: str) -> None:
        """Runs the write of a last use. No request waits for it, and `close` does. subject: of the log's
        line if it fails."""
        task = asyncio.get_running_loop().create_task(self._write(write, subject))
        self._use_tasks.add(task)
        task.add_done_callback(self._use_tasks.discard)

    async def _write(self, write: Awaitable[None], subject: str) -> None:
        try:
            await write
        except HopyardError as error:  # a full disk, or a database that is down
            log.info("the last use of %s was not recorded: %s", subject, error.message)

    async def close(self) -> None:
        """Waits for pending writes."""
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self._use_tasks, return_exceptions=True)

    def clear_user_cache(self) -> None:
        """Drops cached users' tokens, because some were revoked. Other servers may accept them for another
        `_CACHE_TTL`."""
        self._user_tokens.clear()

    async def _authenticate_run(self, token: str) -> Caller:
        caller, expiry, key_until = self._run_tokens.get(token) or self._check_signed(token)
        if key_until <= self._now().timestamp():
            raise AuthError("the token of the run was signed with a retired key", hints=(_TOKEN_HINT,))
        if expiry > (self._now() + RUN_TOKEN_LIFETIME + _MAX_CLOCK_JUMP).timestamp():
            raise AuthError(
                "the token of the run expires later than this server allows", hints=(_TOKEN_HINT,)
            )
        if caller.attempt is None or not await self._is_live(caller.attempt):
            raise RunEnded(
                "the token of the run has expired: the run has ended", hints=("use a user's token",)
            )
        return caller

    async def _is_live(self, attempt: AttemptId) -> bool:
        now = self._now()
        if is_valid(self._live_attempts.get(attempt, now), now, _CACHE_TTL):
            return True
        if not await self._is_live_attempt(attempt):
            self._live_attempts.pop(attempt, None)
            return False
        if len(self._live_attempts) >= _MAX_CACHED_TOKENS:
            self._live_attempts.clear()
        self._live_attempts[attempt] = now + _CACHE_TTL
        return True

    def invalidate_run(self, run: RunId) -> None:
        """Drops the cached state of a run that changed, so that its end is noticed."""
        for attempt in [
            live_attempt for live_attempt in self._live_attempts if live_attempt.rpartition(".")[0] == run
        ]:
            del self._live_attempts[attempt]

    def _check_signed(self, token: str) -> tuple[Caller, int, float]:
        attempt, expiry, mac = _split_run_token(token)
        matching_keys = [
            key
            for key in self.keys
            if hmac.compare_digest(mac.encode(), _mac(bytes.fromhex(key.secret), attempt, expiry).encode())
        ]
        # A retired key may have leaked, and its finder can sign any expiry. It is accepted only for an expiry
        # that it can have signed before it was retired.
        if not attempt or not matching_keys or expiry > matching_keys[0].valid_until:
            raise AuthError("unknown token of a run: this server did not issue it", hints=(_TOKEN_HINT,))
        try:
            run, _ = split_attempt(AttemptId(attempt))
        except HopyardError as error:
            raise AuthError(
                "unknown token of a run: this server did not issue it", hints=(_TOKEN_HINT,)
            ) from error
        if len(self._run_tokens) >= _MAX_CACHED_TOKENS:
            self._run_tokens.clear()
        entry = self._run_tokens[token] = (
            Caller(f"run {run}", run, AttemptId(attempt)),
            expiry,
            matching_keys[0].valid_until,
        )
        return entry


def _mac(key: bytes, attempt: str, expiry: int) -> str:
    mac = hmac.digest(key, f"{attempt}_{expiry}".encode(), "sha256")
    return urlsafe_b64encode(mac).decode().rstrip("=").replace("_", ".")


def bearer_token(authorization: str | None) -> str:
    """Returns the token of an `Authorization: Bearer TOKEN` header. Raises AuthError."""
    if not authorization:
        raise AuthError(_NO_TOKEN_MESSAGE, hints=(_TOKEN_HINT,))
    scheme, _, token = authorization.partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token or not token.isascii():
        raise AuthError(_NO_TOKEN_MESSAGE, hints=(_TOKEN_HINT,))
    return token


def _split_run_token(token: str) -> tuple[str, int, str]:
    """Returns attempt, expiry and MAC of a run's token. The attempt is "" if the format is wrong."""
    parts = token.removeprefix(RUN_TOKEN_PREFIX).split("_")
    if len(parts) != 3 or not parts[1].isdecimal() or len(parts[1]) > 12:
        return "", 0, ""
    return parts[0], int(parts[1]), parts[2]
