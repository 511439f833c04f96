"""What changes, as server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, get_args

from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from hopyard.config.schemas.fields import RUN_ID, TEXT, Name, RequestModel, full_match, word_pattern
from hopyard.domain.access import Scope
from hopyard.domain.change import CURSOR_PATTERN, Position, RunChange, parse_cursor
from hopyard.domain.run_query import MAX_QUERY_LENGTH, parse_query
from hopyard.server.endpoint import ApiRequest, BinaryBody, Empty, Endpoint
from hopyard.server.responses import encode
from hopyard.server.schemas.events import EventKind, EventOut
from hopyard.server.services import Services
from hopyard.tracking.event_batch import frame, heartbeat_frame
from hopyard.tracking.event_filter import EventFilter
from hopyard.tracking.event_hub import EventClient

_MAX_RUNS, _MAX_WORDS = 200, 32
_KINDS = tuple(kind for kind in get_args(EventKind) if kind not in ("open", "reset"))
_EVENT_STREAM = "text/event-stream"
_OPEN, _RESET = encode(EventOut("open")), encode(EventOut("reset"))


class EventStreamQuery(RequestModel):
    after: Annotated[
        str,
        Meta(
            pattern=full_match(f"({CURSOR_PATTERN})?"),
            max_length=64,
            description="the `id` of the last event of an earlier connection; the header `Last-Event-ID` "
            "takes precedence",
        ),
    ] = ""
    kind: Annotated[
        tuple[Annotated[str, Meta(pattern=word_pattern(_KINDS))], ...],
        Meta(max_length=_MAX_WORDS, description="repeatable: only events of these kinds"),
    ] = ()
    change: Annotated[
        tuple[Annotated[str, Meta(pattern=word_pattern((*RunChange, "changed")))], ...],
        Meta(max_length=_MAX_WORDS, description="repeatable: only these changes"),
    ] = ()
    run: Annotated[
        tuple[Annotated[str, Meta(pattern=RUN_ID)], ...],
        Meta(max_length=_MAX_RUNS, description="repeatable: only events of these runs"),
    ] = ()
    user: Name | None = None
    project: Name | None = None
    where: (
        Annotated[
            str,
            Meta(
                max_length=MAX_QUERY_LENGTH,
                pattern=TEXT,
                description="a query as in `GET /runs`: only events of runs that fulfil it after the change",
            ),
        ]
        | None
    ) = None


def event_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def events(request: ApiRequest[EventStreamQuery, Empty]) -> Response:
        """Follow what changes: runs, studies, nodes, queues, reservations
        and reports. The response is a stream of
        server-sent events (`text/event-stream`); `data` of each is an EventOut as JSON.

        The first event is `open`. A client that reconnects sends the `id` of the last event, and gets all
        later changes, once each, from any server of the database. If some may be missing, the first event is
        `reset`: list everything again. Several changes of the same thing may become one event. Values of a
        run, and nodes, are sent at most once a second. After 15 seconds without
        an event, one with the name `heartbeat` and `data` `{}` is sent.
        The stream ends when the token becomes invalid, and when the server ends.
        """
        query = request.query
        cursor = request.request.headers.get("last-event-id") or query.after
        after = parse_cursor(cursor) if cursor else None
        accepts = EventFilter(
            frozenset(query.kind),
            frozenset(query.change),
            frozenset(query.run),
            query.user,
            query.project,
            parse_query(query.where) if query.where is not None else None,
        )
        client = EventClient()

        async def frames() -> AsyncIterator[bytes]:
            with services.token_connections.opened(request.caller, client.close, scope=Scope.READ):
                async for chunk in _chunks(services, client, after, accepts):
                    yield chunk

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(frames(), media_type=_EVENT_STREAM, headers=headers)

    return [
        Endpoint(
            "GET",
            "/events",
            events,
            EventStreamQuery,
            returns=BinaryBody("server-sent events", _EVENT_STREAM),
            errors=(400,),
        )
    ]


async def _chunks(
    services: Services, client: EventClient, after: Position | None, accepts: EventFilter
) -> AsyncIterator[bytes]:
    """Yields whole events, several together as long as they are short."""
    is_first = True
    async for batch in services.events.follow(client, after, accepts):
        (first, *_) = batch.items
        if first.event is not None:
            for chunk in batch.chunks():
                yield chunk
        elif first.is_reset or is_first:
            yield frame(first.position, _RESET if first.is_reset else _OPEN)
        else:
            yield heartbeat_frame(first.position)
        is_first = False
