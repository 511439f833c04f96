"""The application: every endpoint below `/api/v1`, and their description."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hopyard.server.answers import answer, plain_error
from hopyard.server.endpoint import Endpoint, Resource
from hopyard.server.openapi import describe
from hopyard.server.parts import Parts
from hopyard.server.routes.attempts import attempt_endpoints
from hopyard.server.routes.blobs import blob_endpoints
from hopyard.server.routes.boards import board_endpoints
from hopyard.server.routes.checkpoints import checkpoint_endpoints
from hopyard.server.routes.datasets import dataset_endpoints
from hopyard.server.routes.nodes import node_endpoints
from hopyard.server.routes.queues import queue_endpoints
from hopyard.server.routes.reservations import reservation_endpoints
from hopyard.server.routes.runs import run_endpoints
from hopyard.server.routes.server import server_endpoints
from hopyard.server.routes.streams import stream_endpoints
from hopyard.server.routes.studies import study_endpoints
from hopyard.server.routes.users import user_endpoints
from hopyard.server.routes.why import why_endpoints

BASE = "/api/v1"


def endpoints(parts: Parts) -> list[Endpoint[Any, Any]]:
    """All of them; the most asked for first, since addresses are tried in this order."""
    return [
        *attempt_endpoints(parts),
        *blob_endpoints(parts),
        *run_endpoints(parts),
        *stream_endpoints(parts),
        *study_endpoints(parts),
        *checkpoint_endpoints(parts),
        *board_endpoints(parts),
        *dataset_endpoints(parts),
        *queue_endpoints(parts),
        *reservation_endpoints(parts),
        *why_endpoints(parts),
        *node_endpoints(parts),
        *user_endpoints(parts),
        *server_endpoints(parts),
    ]


def create_api(parts: Parts) -> Starlette:
    """The ASGI application. `GET /api/v1/openapi.json` (no token) describes it."""
    found = endpoints(parts)

    async def openapi(_request: Request) -> Response:
        return answer(describe(found, version=parts.version, base=BASE))

    routes = [Route(BASE + path, Resource(group, parts.tokens), methods=_ALL) for path, group in _by_path(found).items()]
    routes.append(Route(BASE + "/openapi.json", openapi, methods=["GET"]))
    return Starlette(routes=routes, exception_handlers={HTTPException: _http_error})


# A resource answers 405 itself, with all methods that its address takes.
_ALL = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY"]


def _by_path(found: Sequence[Endpoint[Any, Any]]) -> dict[str, list[Endpoint[Any, Any]]]:
    paths: dict[str, list[Endpoint[Any, Any]]] = {}
    for endpoint in found:
        paths.setdefault(endpoint.path, []).append(endpoint)
    return paths


async def _http_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    code = "not_found" if error.status_code == 404 else "usage"
    told = f"there is no address {request.url.path[:200]}" if error.status_code == 404 else error.detail
    return plain_error(error.status_code, code, told, headers=error.headers)
