"""The ASGI application: all endpoints below `/api/v1`, their description, and the web UI."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from hopyard.config.server_limits import LimitSettings
from hopyard.server.audit import Auditor
from hopyard.server.body_memory import BodyMemory
from hopyard.server.console.console_access import ConsoleAccess
from hopyard.server.console.console_proxy import ConsoleProxy
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint, EndpointResource, RequestGuard
from hopyard.server.keyed_locks import KeyedLocks
from hopyard.server.openapi import describe_api
from hopyard.server.ports.port_access import PortAccess
from hopyard.server.ports.port_proxy import PortProxy
from hopyard.server.rates import UserRateLimits
from hopyard.server.responses import JSON, encode, simple_error_response
from hopyard.server.routes.alerts import alert_endpoints
from hopyard.server.routes.allocations import allocation_endpoints
from hopyard.server.routes.attempts import attempt_endpoints
from hopyard.server.routes.audit import audit_endpoints
from hopyard.server.routes.blobs import blob_endpoints
from hopyard.server.routes.checkpoints import checkpoint_endpoints
from hopyard.server.routes.commands import command_endpoints
from hopyard.server.routes.compose import compose_endpoints
from hopyard.server.routes.consoles import console_endpoints
from hopyard.server.routes.dataset_files import dataset_file_endpoints
from hopyard.server.routes.datasets import dataset_endpoints
from hopyard.server.routes.events import event_endpoints
from hopyard.server.routes.files import file_endpoints
from hopyard.server.routes.git_code import git_code_endpoints
from hopyard.server.routes.inbox import inbox_endpoints
from hopyard.server.routes.leaderboards import leaderboard_endpoints
from hopyard.server.routes.media import media_endpoints
from hopyard.server.routes.nodes import node_endpoints
from hopyard.server.routes.ports import port_endpoints
from hopyard.server.routes.preview import preview_endpoints
from hopyard.server.routes.queues import queue_endpoints
from hopyard.server.routes.reports import report_endpoints
from hopyard.server.routes.reservations import reservation_endpoints
from hopyard.server.routes.run_batch import run_batch_endpoints
from hopyard.server.routes.run_facets import run_facet_endpoints
from hopyard.server.routes.run_list import run_list_endpoints
from hopyard.server.routes.runs import run_endpoints
from hopyard.server.routes.secrets import secret_endpoints
from hopyard.server.routes.series import series_endpoints
from hopyard.server.routes.server import server_endpoints
from hopyard.server.routes.session import session_endpoints
from hopyard.server.routes.stars import star_endpoints
from hopyard.server.routes.streams import stream_endpoints
from hopyard.server.routes.studies import study_endpoints
from hopyard.server.routes.study_views import study_view_endpoints
from hopyard.server.routes.timeline import timeline_endpoints
from hopyard.server.routes.tokens import token_endpoints
from hopyard.server.routes.usage import usage_endpoints
from hopyard.server.routes.users import user_endpoints
from hopyard.server.routes.views import view_endpoints
from hopyard.server.routes.why import why_endpoints
from hopyard.server.services import Services
from hopyard.server.web.session_access import SessionAccess
from hopyard.server.web.web_app import WebApp
from hopyard.server.web.web_files import WebFiles

API_PREFIX = "/api/v1"
WEB_FOLDER = Path(__file__).parents[1] / "web_ui"


def all_endpoints(
    services: Services,
    access: PortAccess | None = None,
    consoles: ConsoleAccess | None = None,
    sessions: SessionAccess | None = None,
) -> list[Endpoint[Any, Any]]:
    """Returns all endpoints, the most used first, since paths are matched in this order.

    access: to the ports of runs, shared with the application that passes connections through to them.
    consoles: likewise, to their consoles. sessions: of browsers, shared with the checks of all requests.
    """
    actions = set[str]()
    endpoints: list[Endpoint[Any, Any]] = [
        *attempt_endpoints(services),
        *blob_endpoints(services),
        *run_list_endpoints(services),
        *run_facet_endpoints(services),
        *preview_endpoints(services),
        *compose_endpoints(services),
        *git_code_endpoints(services),
        *run_batch_endpoints(services),  # before the path of a single run
        *run_endpoints(services),
        *event_endpoints(services),
        *star_endpoints(services),
        *inbox_endpoints(services),
        *view_endpoints(services),
        *report_endpoints(services),
        *command_endpoints(services),
        *alert_endpoints(services),
        *stream_endpoints(services),
        *series_endpoints(services),
        *file_endpoints(services),
        *media_endpoints(services),
        *console_endpoints(services, ConsoleAccess(services) if consoles is None else consoles),
        *port_endpoints(services, PortAccess(services) if access is None else access),
        *study_endpoints(services),
        *study_view_endpoints(services),
        *checkpoint_endpoints(services),
        *leaderboard_endpoints(services),
        *dataset_endpoints(services),
        *dataset_file_endpoints(services),
        *queue_endpoints(services),
        *reservation_endpoints(services),
        *why_endpoints(services),
        *node_endpoints(services),
        *allocation_endpoints(services),
        *timeline_endpoints(services),
        *usage_endpoints(services),
        *audit_endpoints(services, actions),
        *user_endpoints(services),
        *token_endpoints(services),
        *secret_endpoints(services),
        *session_endpoints(services, sessions or _session_access(services)),
        *server_endpoints(services),
    ]
    actions.update(endpoint.action for endpoint in endpoints if endpoint.auth != "anyone" or endpoint.audit)
    return endpoints


def create_api(
    services: Services, limits: LimitSettings | None = None, *, web_folder: Path | None = None
) -> PortProxy:
    """Returns the ASGI application. `GET /api/v1/openapi.json` (no token) describes it.

    web_folder: the built files of the web UI; by default those of the package.

    It is a plain router without middleware. A resource turns every error into a response itself. The
    middleware of Starlette would do so again around each request and each part of a response.
    """
    access, console_access = PortAccess(services), ConsoleAccess(services)
    sessions = _session_access(services)
    endpoints = all_endpoints(services, access, console_access, sessions)
    limits = limits or LimitSettings()
    guard = RequestGuard(
        services.tokens,
        sessions,
        services.token_connections,
        UserRateLimits(limits, now=time.monotonic),
        BodyMemory(limits.body_memory_bytes),
        Auditor(services.audit, services.runs, now=services.now),
        KeyedLocks(),
        limits.body_timeout_s,
    )

    @cache
    def description() -> bytes:
        """Encoded once: this takes a tenth of a second, and clients without a token may request it."""
        return encode(describe_api(endpoints, version=services.version, base=API_PREFIX))

    async def openapi(_request: ApiRequest[Empty, Empty]) -> Response:
        return Response(description(), media_type=JSON)

    description_endpoints = [
        Endpoint(method, "/openapi.json", openapi, auth="anyone") for method in ("GET", "HEAD")
    ]
    groups = {**_group_by_path(endpoints), "/openapi.json": description_endpoints}
    api = Router(
        [Route(API_PREFIX + path, EndpointResource(group, guard)) for path, group in groups.items()],
        default=_not_found_app,
    )
    web = WebApp(api, WebFiles(WEB_FOLDER if web_folder is None else web_folder), services.now)
    consoles = ConsoleProxy(web, services, console_access, sessions)
    return PortProxy(consoles, services, access, on_close=consoles.close)


def _session_access(services: Services) -> SessionAccess:
    return SessionAccess(services.sessions, services.tokens, now=services.now)


def _group_by_path(endpoints: Sequence[Endpoint[Any, Any]]) -> dict[str, list[Endpoint[Any, Any]]]:
    paths: dict[str, list[Endpoint[Any, Any]]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, []).append(endpoint)
    return paths


async def _not_found_app(scope: Scope, receive: Receive, send: Send) -> None:
    await simple_error_response(404, "not_found", f"unknown path {scope['path'][:200]}")(scope, receive, send)
