"""The ASGI application that serves the web UI, and passes all other requests to the API.

The UI is one page: a browser that opens any path outside of the API gets `index.html`, which shows what the
path names. Responses of the API contain names, logs and files of users. Their headers stop a browser from
running any of it, even if it is opened as a page.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from email.utils import format_datetime

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hopyard.server.web.web_files import INDEX, WebFiles

API_PATH = "/api"
API_HEADERS = (
    (b"content-security-policy", b"sandbox; default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"same-origin"),
)
_CACHE_HEADER = (b"cache-control", b"private, no-cache")  # unless the endpoint has set another one
_OWN_HEADERS = frozenset(name for name, _ in API_HEADERS)


class WebApp:
    """The ASGI application around the API."""

    def __init__(self, api: ASGIApp, files: WebFiles, now: Callable[[], datetime]) -> None:
        self._api, self._files, self._now = api, files, now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if scope["method"] in ("GET", "HEAD") and path != API_PATH and not path.startswith(f"{API_PATH}/"):
            request = Request(scope)
            name = path.removeprefix("/") or INDEX
            response: Response | None
            if name == INDEX:
                response = await self._files.page(request)
            else:
                response = await self._files.file(request, name)
                if response is None and _is_page(request):
                    response = await self._files.page(request)
            if response is not None:
                await response(scope, receive, send)
                return

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                # the page measures by the date how wrong the clock of its machine is
                date = (b"date", format_datetime(self._now(), usegmt=True).encode())
                message["headers"] = [*_secured(message["headers"]), date]
            await send(message)

        await self._api(scope, receive, send_secured)


def _secured(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    kept = [header for header in headers if header[0] not in _OWN_HEADERS]
    is_cache_set = any(name == b"cache-control" for name, _ in kept)
    return [*kept, *API_HEADERS, *(() if is_cache_set else (_CACHE_HEADER,))]


def _is_page(request: Request) -> bool:
    """Returns whether a browser opens the path as a page. Programs get an error for an unknown path."""
    return "text/html" in request.headers.get("accept", "")
