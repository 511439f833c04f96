"""Sessions of browsers: the links that start one, and the callers of requests with a cookie.

A session belongs to a token of its user, has the rights of that token, and ends with it. The secrets of links
and cookies are random; the database has their hashes. So each server of the database accepts them, and they
stay valid when a server restarts.
"""

from __future__ import annotations

import hmac
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from starlette.requests import Request

from hopyard.domain.access import Scope
from hopyard.errors import AuthError, Forbidden, NotFound, TooManyRequests
from hopyard.interfaces.access_store import TOKEN_ID_DIGITS
from hopyard.interfaces.session_store import SessionStore, StoredSession
from hopyard.server.audit import request_origin
from hopyard.server.authentication import Caller, TokenAuthenticator, hash_token
from hopyard.server.cache_validation import is_valid
from hopyard.server.rates import TokenBucket
from hopyard.server.web.browser_name import browser_name
from hopyard.server.web.session_cookie import check_change, check_same_origin, read_cookie

LINK_LIFETIME = timedelta(minutes=1)
SESSION_LIFETIME = timedelta(days=7)
FAILED_LOGINS, FAILED_LOGINS_PER_S = 20, 0.2  # of one address: at once, and then
_CACHE_TTL = timedelta(seconds=2)  # so long this server accepts a session after a logout at another server
_USE_RECORD_INTERVAL = timedelta(minutes=1)
_MAX_CACHED, _MAX_ADDRESSES = 1024, 4096
_LINK_HINT = "get a new link: `hop ui`"
_SAFE_METHODS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class NewSession:
    """secret: the value of the cookie. csrf: what requests with the cookie that change something send."""

    secret: str
    csrf: str
    caller: Caller
    expires_at: datetime


class SessionAccess:
    """The links, cookies and callers of sessions."""

    def __init__(
        self, store: SessionStore, tokens: TokenAuthenticator, *, now: Callable[[], datetime]
    ) -> None:
        self._store, self._tokens, self._now = store, tokens, now
        self._failed_logins: dict[str, TokenBucket] = {}  # by address
        # by hash of the secret: the session, and until when the entry is valid
        self._sessions: dict[str, tuple[StoredSession, datetime]] = {}
        self._use_recorded_at: dict[str, datetime] = {}  # by hash of the secret

    async def authenticate(self, request: Request) -> Caller:
        """Returns the caller of a request, by its token or else by its cookie.

        Raises AuthError, and Forbidden for a request with a cookie that the page of this server did not send.
        """
        authorization = request.headers.get("authorization")
        secret = read_cookie(request) if authorization is None and "cookie" in request.headers else ""
        if not secret:
            return await self._tokens.authenticate(authorization)
        check_same_origin(request)
        caller, session = await self._find(secret)
        if request.method not in _SAFE_METHODS:
            check_change(request, csrf_value(secret))
        self._record_use(hash_token(secret), session, request_origin(request))
        return caller

    async def create_link(self, caller: Caller) -> tuple[str, datetime]:
        """Returns the secret of a link that starts one session of the caller, and when it expires. Raises
        Forbidden for a caller without a token: a session cannot prolong itself."""
        if caller.session or not caller.token:
            raise Forbidden("a link needs the token of a user", hints=("run `hop ui` in a terminal",))
        secret, now = secrets.token_urlsafe(32), self._now()
        await self._store.add_link(hash_token(secret), caller.token, now=now, expires_at=now + LINK_LIFETIME)
        return secret, now + LINK_LIFETIME

    async def log_in(self, *, link: str, token: str, address: str, user_agent: str = "") -> NewSession:
        """Starts a session by the secret of a link, or by a user's token ("" for the other one).

        address: of the client, by which failures are limited. user_agent: the header of the browser. Raises
        AuthError, TooManyRequests.
        """
        bucket = self._failed_logins.get(address)
        wait_s = 0.0 if bucket is None else bucket.take_or_wait_s(0, time.monotonic())
        if wait_s:
            raise TooManyRequests(
                "too many failed logins from this address",
                hints=(f"wait {max(1, round(wait_s))} s",),
                retry_after_s=wait_s,
            )
        try:
            about = {"address": address, "browser": browser_name(user_agent)}
            return await (self._use_link(link, about) if link else self._use_token(token, about))
        except AuthError:
            self._count_failure(address)
            raise

    async def log_out(self, caller: Caller, request: Request) -> None:
        """Ends the session of a request that `authenticate` accepted. Raises Forbidden for one with a
        token."""
        if not caller.session:
            raise Forbidden(
                "this request has no session to end", hints=("revoke a token: `hop token revoke`",)
            )
        key = hash_token(read_cookie(request))
        self._sessions.pop(key, None)
        await self._store.remove_session(key)

    async def describe(self, request: Request) -> tuple[str, datetime | None]:
        """Returns csrf and expiry of the session of a request that `authenticate` accepted; "" and None for
        one with a token."""
        if request.headers.get("authorization") is not None:
            return "", None
        secret = read_cookie(request)
        return csrf_value(secret), (await self._find(secret))[1].expires_at

    async def list(self, caller: Caller) -> Sequence[StoredSession]:
        """Returns the sessions of the caller's user, oldest first."""
        return await self._store.list_sessions(caller.require_user(), now=self._now())

    async def end(self, caller: Caller, session: str) -> StoredSession:
        """Ends a session of the caller's user. Raises NotFound, and Forbidden for a session of another token
        unless the caller has the scope `admin`."""
        found = next((each for each in await self.list(caller) if each.id == session), None)
        if found is None:
            raise NotFound(
                f"you have no session {session}", hints=("list the sessions with `hop session list`",)
            )
        if _token_id(found) != caller.token:
            caller.require_scope(Scope.ADMIN)
        await self._end_all(caller, [found])
        return found

    async def end_others(self, caller: Caller) -> Sequence[StoredSession]:
        """Ends the sessions of the caller's user except that of the request, and returns them. Without the
        scope `admin`, those of the caller's token only."""
        ended = [
            session
            for session in await self.list(caller)
            if session.id != caller.session
            and (Scope.ADMIN in caller.scopes or _token_id(session) == caller.token)
        ]
        await self._end_all(caller, ended)
        return ended

    async def _end_all(self, caller: Caller, ended: Sequence[StoredSession]) -> None:
        ids = [session.id for session in ended]
        await self._store.remove_sessions(caller.user, ids)
        for key in [key for key, (session, _) in self._sessions.items() if session.id in ids]:
            del self._sessions[key]

    def _record_use(self, key: str, session: StoredSession, address: str) -> None:
        """Records the use of a session at most once a minute. The request does not wait for it."""
        now = self._now()
        last = self._use_recorded_at.get(key) or session.used_at
        if last is not None and abs(now - last) < _USE_RECORD_INTERVAL:
            return
        if len(self._use_recorded_at) >= _MAX_CACHED:
            self._use_recorded_at.clear()
        self._use_recorded_at[key] = now
        write = self._store.record_use(key, now=now, address=address)
        self._tokens.record_later(write, "a session")

    async def _use_link(self, link: str, about: Mapping[str, str]) -> NewSession:
        secret, now = secrets.token_urlsafe(32), self._now()
        is_valid = await self._store.use_link(
            hash_token(link), hash_token(secret), now=now, expires_at=now + SESSION_LIFETIME, **about
        )
        if not is_valid:
            raise AuthError("this link was used, or has expired", hints=(_LINK_HINT,))
        return await self._new_session(secret)

    async def _use_token(self, token: str, about: Mapping[str, str]) -> NewSession:
        caller = await self._tokens.authenticate(f"Bearer {token}")
        if not caller.token:
            raise AuthError("a login needs the token of a user", hints=("`hop ui` logs in without one",))
        secret, now = secrets.token_urlsafe(32), self._now()
        await self._store.add_session(
            hash_token(secret), caller.token, now=now, expires_at=now + SESSION_LIFETIME, **about
        )
        return await self._new_session(secret)

    async def _new_session(self, secret: str) -> NewSession:
        caller, stored = await self._find(secret)
        return NewSession(secret, csrf_value(secret), caller, stored.expires_at)

    async def _find(self, secret: str) -> tuple[Caller, StoredSession]:
        """Raises AuthError for a session that has ended, or of a token that is no longer valid."""
        key, now = hash_token(secret), self._now()
        session, until = self._sessions.get(key, (None, now))
        if session is None or not is_valid(until, now, _CACHE_TTL):
            session = await self._store.find_session(key, now=now)
            if session is not None:
                if len(self._sessions) >= _MAX_CACHED:
                    self._sessions.clear()
                self._sessions[key] = session, now + _CACHE_TTL
        if session is None or session.expires_at <= now:
            self._sessions.pop(key, None)
            raise AuthError("the session has ended", hints=("log in again: `hop ui`",))
        try:
            caller = await self._tokens.authenticate_user(session.token_hash)
        except AuthError as error:
            raise AuthError(
                "the session has ended: its token is no longer valid", hints=("log in again: `hop ui`",)
            ) from error
        return replace(caller, session=session.id), session

    def _count_failure(self, address: str) -> None:
        now = time.monotonic()
        bucket = self._failed_logins.get(address)
        if bucket is None:
            if len(self._failed_logins) >= _MAX_ADDRESSES:
                self._failed_logins.clear()
            bucket = self._failed_logins[address] = TokenBucket(FAILED_LOGINS_PER_S, FAILED_LOGINS, now)
        bucket.take_or_wait_s(1, now)


def _token_id(session: StoredSession) -> str:
    return session.token_hash[:TOKEN_ID_DIGITS]


def csrf_value(secret: str) -> str:
    """Returns the value that proves that a request comes from a page which read the session."""
    mac = hmac.digest(secret.encode(), b"csrf of a session", "sha256")
    return urlsafe_b64encode(mac).decode().rstrip("=")
