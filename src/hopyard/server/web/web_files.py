"""The built files of the web UI: `index.html`, and what it loads.

Files below `assets/` have a hash of their content in their name, and a browser keeps them. All others are
checked for changes at each use. A file `NAME.br` or `NAME.gz` beside a file is its compressed form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from blake3 import blake3
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from hopyard.server.responses import simple_error_response

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; font-src 'self'; media-src 'self' blob:; frame-ancestors 'none'; base-uri 'none'; "
    "form-action 'none'"
)
SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": PAGE_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "same-origin",
}
INDEX = "index.html"
_ASSETS = "assets/"
_IMMUTABLE, _CHECKED = "public, max-age=31536000, immutable", "no-cache"
_ENCODINGS = (("br", ".br"), ("gzip", ".gz"))  # the preferred one first
_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".ico": "image/x-icon",
    ".jpg": "image/jpeg",
    ".js": "text/javascript",
    ".json": "application/json",
    ".map": "application/json",
    ".mjs": "text/javascript",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".webp": "image/webp",
    ".woff2": "font/woff2",
}
_TEXT_TYPES = ("text/html", "text/css", "text/javascript", "text/plain")
_ABSENT_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Hopyard</title></head>
<body>
<h1>The web UI is not built</h1>
<p>The server runs. The commands of <code>hop</code> and the API work without the web UI.</p>
<p>From a source checkout, with Node installed: run <code>make web</code>, then reload this page.
An installed package of Hopyard contains the built files: <code>pip install hopyard</code>.</p>
</body>
</html>
"""


class WebFiles:
    """Responses from a folder of built files. Changed files are served without a restart."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def page(self, request: Request) -> Response:
        """Returns `index.html`, or a page that says what to do where the UI is not built."""
        response = await self._respond(request, INDEX)
        if response is None:
            response = HTMLResponse(_ABSENT_PAGE, 503)
            response.headers["Cache-Control"] = "no-store"
            response.headers.update(SECURITY_HEADERS)
        return response

    async def file(self, request: Request, path: str) -> Response | None:
        """Returns a file by its path in the folder, such as `assets/index-3f2a.js`; None if there is none. A
        missing asset is an error, and never a page: its version of the UI was replaced."""
        response = await self._respond(request, path) if _is_safe(path) else None
        if response is None and path.startswith(_ASSETS):
            return simple_error_response(
                404, "not_found", "no such file of the web UI", headers={"Cache-Control": "no-store"}
            )
        return response

    async def _respond(self, request: Request, path: str) -> Response | None:
        data, encoding = await asyncio.to_thread(self._load, path), ""
        if data is None:
            return None
        accepted = _accepted_encodings(request.headers.get("accept-encoding", ""))
        for name, suffix in _ENCODINGS:
            if name in accepted:
                compressed = await asyncio.to_thread(self._load, path + suffix)
                if compressed is not None:
                    data, encoding = compressed, name
                    break
        etag = f'"{blake3(data).hexdigest()[:32]}"'
        headers = {
            **SECURITY_HEADERS,
            "Cache-Control": _IMMUTABLE if path.startswith(_ASSETS) else _CHECKED,
            "ETag": etag,
            "Vary": "Accept-Encoding",
        }
        known = request.headers.get("if-none-match", "")
        if etag in [tag.strip().removeprefix("W/") for tag in known.split(",")]:
            return Response(status_code=304, headers=headers)
        if encoding:
            headers["Content-Encoding"] = encoding
        headers["Content-Type"] = _content_type(path)
        headers["Content-Length"] = str(len(data))
        return Response(b"" if request.method == "HEAD" else data, headers=headers)

    def _load(self, path: str) -> bytes | None:
        file = self._folder / path
        try:
            is_below = file.resolve().is_relative_to(self._folder.resolve())
            return file.read_bytes() if is_below and file.is_file() else None
        except (OSError, ValueError):
            return None


def _is_safe(path: str) -> bool:
    """Returns whether a path names a file below the folder, and no hidden one."""
    return (
        "\\" not in path
        and "\0" not in path
        and not any(part == "" or part.startswith(".") for part in path.split("/"))
    )


def _content_type(path: str) -> str:
    media_type = _TYPES.get(Path(path).suffix.lower(), "application/octet-stream")
    return f"{media_type}; charset=utf-8" if media_type in _TEXT_TYPES else media_type


def _accepted_encodings(header: str) -> frozenset[str]:
    """Returns the codings of an `Accept-Encoding` header, without those of weight 0."""
    accepted = set()
    for part in header.lower().split(","):
        name, _, parameter = part.partition(";")
        key, _, weight = parameter.strip().partition("=")
        try:
            is_refused = key.strip() == "q" and float(weight) == 0
        except ValueError:
            is_refused = True
        if not is_refused:
            accepted.add(name.strip())
    return frozenset(accepted)
