"""The cookie of a browser's session, and the checks of a request that carries it.

A cookie is not separated by port, so its name contains the port: servers on one machine would overwrite each
other's. Behind TLS, the prefix `__Host-` stops pages of other hosts of the domain from setting it.
"""

from __future__ import annotations

import hmac
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from hopyard.errors import AuthError, Forbidden

COOKIE_PREFIX = "hopyard_session"
SECURE_PREFIX = "__Host-"
CSRF_HEADER = "X-Hopyard-Session"
_OWN_SITES = (None, "same-origin", "none")  # of `Sec-Fetch-Site`; none: the user typed the address
_PAGE_HINT = "use the web UI at the address of this server; programs send a token"


def is_secure(request: Request) -> bool:
    """Returns whether the browser uses TLS, which a proxy ends."""
    return request.headers.get("x-forwarded-proto") == "https"


def cookie_name(request: Request) -> str:
    try:
        port = urlsplit(f"//{request.headers.get('host', '')}").port
    except ValueError:
        port = None
    name = f"{COOKIE_PREFIX}_{port}" if port else COOKIE_PREFIX
    return SECURE_PREFIX + name if is_secure(request) else name


def read_cookie(request: Request) -> str:
    """Returns the secret of the session; "" for a request without one.

    Raises AuthError for two different ones: a page of another host of the domain set one of them.
    """
    name, found = cookie_name(request), set[str]()
    for header in request.headers.getlist("cookie"):
        for part in header.split(";"):
            key, _, value = part.strip().partition("=")
            if key == name:
                found.add(value)
    if len(found) > 1:
        raise AuthError(
            f"the request has several cookies `{name}`",
            hints=("remove the cookies of this address in the browser, then log in again",),
        )
    return found.pop() if found else ""


def set_cookie(request: Request, response: Response, secret: str, lifetime_s: int) -> None:
    response.set_cookie(
        cookie_name(request),
        secret,
        max_age=lifetime_s,
        path="/",
        httponly=True,
        samesite="strict",
        secure=is_secure(request),
    )


def delete_cookie(request: Request, response: Response) -> None:
    response.delete_cookie(
        cookie_name(request), path="/", httponly=True, samesite="strict", secure=is_secure(request)
    )


def check_same_origin(request: Request) -> None:
    """Raises Forbidden for a request that the page of another origin sends."""
    headers = request.headers
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if (origin is not None and origin not in _own_origins(request)) or site not in _OWN_SITES:
        raise Forbidden("a page of another address may not use this session", hints=(_PAGE_HINT,))


def check_change(request: Request, csrf: str) -> None:
    """Raises Forbidden for a change that the page of this server did not send. csrf: the expected value."""
    if request.headers.get("origin") is None:
        raise Forbidden("a change by a session needs the header `Origin`", hints=(_PAGE_HINT,))
    if not hmac.compare_digest(request.headers.get(CSRF_HEADER, "").encode(), csrf.encode()):
        raise Forbidden(
            f"a change by a session needs the header `{CSRF_HEADER}`",
            hints=("reload the page; its value is `csrf` of `GET /api/v1/session`",),
        )


def _own_origins(request: Request) -> tuple[str, ...]:
    host = request.headers.get("host", "")
    return (f"https://{host}",) if is_secure(request) else (f"http://{host}", f"https://{host}")
