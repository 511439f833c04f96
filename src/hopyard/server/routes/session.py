"""Sessions of browsers: log in by a link or a token, read, log out, list and end."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import urlsplit

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from hopyard.config.schemas.fields import RequestModel
from hopyard.domain.access import Scope
from hopyard.domain.audit import AuditRecord
from hopyard.domain.effective_limits import effective_admins
from hopyard.errors import AuthError, SpecError
from hopyard.interfaces.access_store import TOKEN_ID_DIGITS
from hopyard.interfaces.session_store import StoredSession
from hopyard.server.audit import request_origin
from hopyard.server.authentication import Caller
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.pages import PageQuery, paginate
from hopyard.server.responses import error_response, json_response
from hopyard.server.services import Services
from hopyard.server.web.session_access import SESSION_LIFETIME, SessionAccess
from hopyard.server.web.session_cookie import check_same_origin, delete_cookie, is_secure, set_cookie

LOGIN_PATH = "/login"  # a page of the web UI, which sends the secret of the link
_LOGIN_ACTION = "session.create"
_MAX_SECRET_LENGTH = 1024


class LoginIn(RequestModel):
    """Either the secret of a link, or a user's token."""

    link: Annotated[str, Meta(min_length=1, max_length=_MAX_SECRET_LENGTH)] | None = None
    token: Annotated[str, Meta(min_length=1, max_length=_MAX_SECRET_LENGTH)] | None = None


class SessionLinkOut(Struct, frozen=True):
    """url: of the web UI. link: starts one session in the browser that opens it, before `expires_at`."""

    url: str
    link: str
    expires_at: datetime


class SessionOut(Struct, frozen=True):
    """scopes: of the token to which the session belongs, with the scopes that they include. token: its id.
    owner: whether the user owns the server. admin_queues: the queues of which the user is an
    administrator, with those below them.

    csrf: the value of the header `X-Hopyard-Session`, which requests with the cookie other than GET and HEAD
    need. expires_at: of the session. For a request with a token, csrf is "" and expires_at null. server,
    version: the name of the server's machine, and the server's version.
    """

    user: str
    scopes: list[Scope]
    token: str
    owner: bool
    admin_queues: list[str]
    csrf: str
    expires_at: datetime | None
    server: str
    version: str


class SessionEntryOut(Struct, frozen=True):
    """browser: such as "Firefox on Linux"; "" if it is unknown. address: of the last use. used_at: the last
    use, to the minute. token, token_name: to which the session belongs. current: that of this request."""

    id: str
    browser: str
    address: str
    created_at: datetime
    used_at: datetime | None
    expires_at: datetime
    token: str
    token_name: str
    current: bool


class SessionsOut(Struct, frozen=True):
    """Oldest first. next: `after` of the next page; null at the end."""

    sessions: list[SessionEntryOut]
    next: str | None


class EndedSessionsOut(Struct, frozen=True):
    """ended: the ids of the sessions that ended."""

    ended: list[str]


def session_endpoints(services: Services, access: SessionAccess) -> Sequence[Endpoint[Any, Any]]:
    async def to_out(caller: Caller, csrf: str, expires_at: datetime | None) -> SessionOut:
        tree = await services.queue_cache.tree()
        return SessionOut(
            user=caller.user,
            scopes=[scope for scope in Scope if scope in caller.scopes],
            token=caller.token,
            owner=caller.user == services.queue_cache.owner,
            admin_queues=sorted(name for name in tree.queues if caller.user in effective_admins(tree, name)),
            csrf=csrf,
            expires_at=expires_at,
            server=socket.gethostname(),
            version=services.version,
        )

    async def create_link(request: ApiRequest[Empty, Empty]) -> SessionLinkOut:
        """Create a link to the web UI that logs a browser in, once, within a minute. The session has the
        rights of the token of this request, and ends with it. 403 for a request of a session."""
        request.caller.require_user()
        secret, expires_at = await access.create_link(request.caller)
        url = _public_url(request.request, services.url)
        return SessionLinkOut(f"{url}/", f"{url}{LOGIN_PATH}?link={secret}", expires_at)

    async def log_in(request: ApiRequest[Empty, LoginIn]) -> Response:
        """Log a browser in, by the secret of a link or by a user's token. The response sets the cookie of a
        session, for a week."""
        link, token = request.body.link, request.body.token
        if (link is None) == (token is None):
            raise SpecError("the body needs either `link` or `token`", hints=("`hop ui` prints a link",))
        check_same_origin(request.request)
        origin = request_origin(request.request)
        session = await access.log_in(
            link=link or "",
            token=token or "",
            address=origin,
            user_agent=request.request.headers.get("user-agent", ""),
        )
        user, by = session.caller.user, "token" if link is None else "link"
        await services.audit.record(
            AuditRecord(
                services.now(),
                user,
                _LOGIN_ACTION,
                user,
                origin=origin,
                token=session.caller.token,
                detail={"by": by},
            )
        )
        response = json_response(await to_out(session.caller, session.csrf, session.expires_at), 201)
        set_cookie(request.request, response, session.secret, int(SESSION_LIFETIME.total_seconds()))
        return response

    async def read(request: ApiRequest[Empty, Empty]) -> SessionOut | Response:
        """Get the user of a session or token, and the value that changes by a session need."""
        try:
            caller = await access.authenticate(request.request)
            caller.require_user()
        except AuthError as error:  # a browser that is not logged in: this is no refusal to record
            return error_response(error)
        return await to_out(caller, *await access.describe(request.request))

    async def log_out(request: ApiRequest[Empty, Empty]) -> Response:
        """Log the browser out: end its session. 403 for a request with a token."""
        await access.log_out(request.caller, request.request)
        await services.token_connections.abort_invalid()
        response = json_response(Empty())
        delete_cookie(request.request, response)
        return response

    async def entries(caller: Caller, stored: Sequence[StoredSession]) -> list[SessionEntryOut]:
        names = {token.id: token.name for token in await services.access.list_tokens(caller.user)}
        return [
            SessionEntryOut(
                session.id,
                session.browser,
                session.address,
                session.created_at,
                session.used_at,
                session.expires_at,
                token := session.token_hash[:TOKEN_ID_DIGITS],
                names.get(token, ""),
                session.id == caller.session,
            )
            for session in stored
        ]

    async def list_sessions(request: ApiRequest[PageQuery, Empty]) -> SessionsOut:
        """List the caller's sessions of browsers, those of all tokens."""
        page, after = paginate(
            await access.list(request.caller),
            request.query,
            key=lambda session: f"{session.created_at.isoformat(timespec='microseconds')} {session.id}",
        )
        return SessionsOut(await entries(request.caller, page), after)

    async def end(request: ApiRequest[Empty, Empty]) -> SessionEntryOut:
        """End a session of the caller. That of another token needs the scope `admin`."""
        ended = await access.end(request.caller, request.path["session"])
        await services.token_connections.abort_invalid()
        return (await entries(request.caller, [ended]))[0]

    async def end_others(request: ApiRequest[Empty, Empty]) -> EndedSessionsOut:
        """End all sessions of the caller except that of the request. Without the scope `admin`, those of the
        token of the request only."""
        ended = await access.end_others(request.caller)
        await services.token_connections.abort_invalid()
        return EndedSessionsOut([session.id for session in ended])

    return [
        Endpoint("GET", "/sessions", list_sessions, PageQuery, returns=SessionsOut),
        Endpoint(
            "DELETE",
            "/sessions",
            end_others,
            returns=EndedSessionsOut,
            scope=Scope.READ,
            audit="session.end_others",
        ),
        Endpoint(
            "DELETE",
            "/sessions/{session}",
            end,
            returns=SessionEntryOut,
            errors=(403, 404),
            scope=Scope.READ,
            audit="session.end",
        ),
        Endpoint("GET", "/session", read, returns=SessionOut, auth="anyone", errors=(401, 403)),
        Endpoint(
            "POST",
            "/session",
            log_in,
            body=LoginIn,
            returns=SessionOut,
            status=201,
            auth="anyone",
            errors=(400, 401, 403, 429),
            audit=_LOGIN_ACTION,
            unaudited_reason="the handler records it with the user",
        ),
        Endpoint("DELETE", "/session", log_out, scope=Scope.READ),
        Endpoint(
            "POST",
            "/session/links",
            create_link,
            returns=SessionLinkOut,
            status=201,
            scope=Scope.READ,
            audit="session.create_link",
        ),
    ]


def _public_url(request: Request, url: str) -> str:
    """Returns the address of the server as the client sees it; by the Unix socket of the home, its own."""
    host = request.headers.get("host", "")
    if request.client is None or not host:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.netloc}"
    return f"{'https' if is_secure(request) else 'http'}://{host}"
