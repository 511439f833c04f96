"""The application: every endpoint below `/api/v1`, and their description."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from typing import Any

from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from hopyard.config.limits import LimitSettings
from hopyard.server.answers import JSON, encode, plain_error
from hopyard.server.audit import Auditor
from hopyard.server.bodies import BodyMemory
from hopyard.server.endpoint import Ask, Endpoint, Guard, Nothing, Resource
from hopyard.server.openapi import describe
from hopyard.server.parts import Parts
from hopyard.server.rates import Rates
from hopyard.server.routes.attempts import attempt_endpoints
from hopyard.server.routes.audit import audit_endpoints
from hopyard.server.routes.blobs import blob_endpoints
from hopyard.server.routes.boards import board_endpoints
from hopyard.server.routes.checkpoints import checkpoint_endpoints
from hopyard.server.routes.datasets import dataset_endpoints
from hopyard.server.routes.nodes import node_endpoints
from hopyard.server.routes.queues import queue_endpoints
from hopyard.server.routes.reservations import reservation_endpoints
from hopyard.server.routes.runs import run_endpoints
from hopyard.server.routes.secrets import secret_endpoints
from hopyard.server.routes.server import server_endpoints
from hopyard.server.routes.streams import stream_endpoints
from hopyard.server.routes.studies import study_endpoints
from hopyard.server.routes.tokens import token_endpoints
from hopyard.server.routes.usage import usage_endpoints
from hopyard.server.routes.users import user_endpoints
from hopyard.server.routes.why import why_endpoints
from hopyard.server.user_turns import UserTurns

BASE = "/api/v1"


def endpoints(parts: Parts) -> list[Endpoint[Any, Any]]:
    """All of them; the most asked for first, since addresses are tried in this order."""
    actions = set[str]()
    found: list[Endpoint[Any, Any]] = [
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
        *usage_endpoints(parts),
        *audit_endpoints(parts, actions),
        *user_endpoints(parts),
        *token_endpoints(parts),
        *secret_endpoints(parts),
        *server_endpoints(parts),
    ]
    actions.update(one.action for one in found if one.who != "anyone")
    return found


def create_api(parts: Parts, limits: LimitSettings | None = None) -> ASGIApp:
    """The ASGI application. `GET /api/v1/openapi.json` (no token) describes it.

    A router and nothing around it: a resource turns every error into an answer itself, and what else
    Starlette puts around each request and each piece of an answer would do so a second and third time.
    """
    found = endpoints(parts)
    limits = limits or LimitSettings()
    guard = Guard(
        parts.tokens,
        Rates(limits, now=time.monotonic),
        BodyMemory(limits.body_memory_bytes),
        Auditor(parts.audit, parts.runs, now=parts.now),
        UserTurns(),
        limits.body_timeout_s,
    )

    @cache
    def description() -> bytes:
        """Encoded once: that takes a tenth of a second, and any stranger may ask for it."""
        return encode(describe(found, version=parts.version, base=BASE))

    async def openapi(_ask: Ask[Nothing, Nothing]) -> Response:
        return Response(description(), media_type=JSON)

    described = [Endpoint(method, "/openapi.json", openapi, who="anyone") for method in ("GET", "HEAD")]
    groups = {**_by_path(found), "/openapi.json": described}
    return Router(
        [Route(BASE + path, Resource(group, guard)) for path, group in groups.items()], default=_no_address
    )


def _by_path(found: Sequence[Endpoint[Any, Any]]) -> dict[str, list[Endpoint[Any, Any]]]:
    paths: dict[str, list[Endpoint[Any, Any]]] = {}
    for endpoint in found:
        paths.setdefault(endpoint.path, []).append(endpoint)
    return paths


async def _no_address(scope: Scope, receive: Receive, send: Send) -> None:
    await plain_error(404, "not_found", f"there is no address {scope['path'][:200]}")(scope, receive, send)
