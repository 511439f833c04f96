"""What ran and what is promised, and the occurrences of reservations in a time range."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from hopyard.config.schemas.fields import TEXT, Name, RequestModel, Time
from hopyard.config.suggest import closest_name
from hopyard.domain.amounts import requested_amounts
from hopyard.domain.cluster import Snapshot
from hopyard.domain.effective_limits import queue_path
from hopyard.domain.ids import AttemptId, GangId, NodeId, QueueName
from hopyard.domain.queue import GPU, QueueTree
from hopyard.domain.reservation import Reservation
from hopyard.domain.run import Attempt
from hopyard.errors import NotFound, SpecError
from hopyard.interfaces.run_store import AttemptFilter, RunAttempt
from hopyard.scheduler.explain.planned_spans import PromisedSpan, expected_ends, promised_spans
from hopyard.scheduler.timeline.reservation_windows import occurrences
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.pages import MAX_ROWS, Limit
from hopyard.server.run_names import run_names
from hopyard.server.run_progress import completed_fractions
from hopyard.server.services import Services

DEFAULT_PAST, DEFAULT_FUTURE = timedelta(hours=12), timedelta(hours=12)
DEFAULT_CALENDAR = timedelta(days=7)
MAX_SPAN = timedelta(days=400)
MAX_PROMISED = 1000

_After = Annotated[str, Meta(max_length=512, pattern=TEXT, description="`next` of the previous page")]


class TimelineQuery(RequestModel, kw_only=True):
    since: Annotated[Time, Meta(description="default: 12 hours ago")] | None = None
    until: Annotated[Time, Meta(description="default: in 12 hours")] | None = None
    node: Annotated[Name, Meta(description="only attempts on this node")] | None = None
    queue: Annotated[Name, Meta(description="only runs of this queue or below it")] | None = None
    limit: Limit = MAX_ROWS
    after: _After | None = None


class SpanOut(Struct, frozen=True, kw_only=True):
    """An attempt that ended or is live, or a promised start of a waiting run. state: ended, live or promised.

    phase: of the attempt; "" for a promise. attempt: its number; null for a promise. nodes: without
    duplicates; of a promise as far as they are known. gpu_milli: thousandths of GPUs on each of these nodes;
    total_gpu_milli: on all together. start_at: of a promise, the latest start. end_at: expected, unless the
    state is ended; null if it is not known yet.
    """

    run: str
    name: str
    user: str
    queue: str
    attempt: int | None
    state: Literal["ended", "live", "promised"]
    phase: str
    nodes: list[str]
    gpu_milli: list[int]
    total_gpu_milli: int
    start_at: datetime
    end_at: datetime | None


class TimelineOut(Struct, frozen=True):
    """spans: promises by their start (only in the first page, at most 1000), then attempts, the newest first.
    next: `after` of the next page; null at the end."""

    spans: list[SpanOut]
    next: str | None


class CalendarQuery(RequestModel, kw_only=True):
    since: Annotated[Time, Meta(description="default: now")] | None = None
    until: Annotated[Time, Meta(description="default: a week after `since`")] | None = None
    limit: Limit = MAX_ROWS
    after: _After | None = None


class OccurrenceOut(Struct, frozen=True, kw_only=True):
    """One occurrence of a reservation. nodes: those that it holds, at least partly. repeats: the reservation
    has others."""

    reservation: str
    start_at: datetime
    end_at: datetime
    users: Sequence[str]
    queue: str | None
    nodes: Sequence[str]
    repeats: bool
    created_by: str


class CalendarOut(Struct, frozen=True):
    """By start, then by name. next: `after` of the next page; null at the end."""

    occurrences: list[OccurrenceOut]
    next: str | None


def timeline_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def timeline(request: ApiRequest[TimelineQuery, Empty]) -> TimelineOut:
        """List what ran and runs in a time range, and what is promised in it. Attempts of deleted runs are
        not listed. 400 for an empty range, or one of more than 400 days."""
        query, now = request.query, services.now()
        since = query.since or now - DEFAULT_PAST
        until = query.until or max(now, since) + DEFAULT_FUTURE
        _check_range(since, until)
        snapshot = await services.controller.snapshot()
        queues = None if query.queue is None else _queues_below(snapshot.queues, QueueName(query.queue))
        found = await services.runs.attempts_between(
            AttemptFilter(
                since,
                min(until, now + timedelta.resolution),
                queues,
                query.node,
                None if query.after is None else _parse_cursor(query.after),
                query.limit + 1,
            )
        )
        page = found[: query.limit]
        promised = [] if query.after is not None else _promised_in(snapshot, query, queues, since, until)
        ends: Mapping[GangId, datetime] = {}
        if any(each.attempt.ended_at is None for each in page):
            progress = completed_fractions(services.ingest, snapshot)
            ends = await asyncio.to_thread(expected_ends, snapshot, progress)
        names = await run_names(services.runs, (span.gang.id for span in promised))
        spans = [_promised_out(span, names) for span in promised]
        spans += [_attempt_out(each, ends) for each in page]
        return TimelineOut(spans, _cursor(page[-1].attempt) if len(found) > len(page) else None)

    async def calendar(request: ApiRequest[CalendarQuery, Empty]) -> CalendarOut:
        """List the occurrences of reservations in a time range. 400 for an empty range, or one of more than
        400 days."""
        query, now = request.query, services.now()
        since = query.since or now
        until = query.until or since + DEFAULT_CALENDAR
        _check_range(since, until)
        reservations = await services.reservations.list()
        page = list(islice(_occurrences_after(reservations, since, until, query.after), query.limit + 1))
        following = _occurrence_key(page[query.limit - 1]) if len(page) > query.limit else None
        return CalendarOut(page[: query.limit], following)

    return [
        Endpoint(
            "GET", "/timeline", timeline, TimelineQuery, returns=TimelineOut, errors=(400, 404), is_heavy=True
        ),
        Endpoint("GET", "/calendar", calendar, CalendarQuery, returns=CalendarOut, errors=(400,)),
    ]


def _check_range(since: datetime, until: datetime) -> None:
    """Raises SpecError."""
    if since >= until:
        raise SpecError("since: must be before `until`", hints=("set an earlier --from or a later --to",))
    if until - since > MAX_SPAN:
        raise SpecError(
            f"until: the range is longer than {MAX_SPAN.days} days", hints=("choose a shorter range",)
        )


def _queues_below(tree: QueueTree, queue: QueueName) -> frozenset[str]:
    """Returns the queue and all below it. Raises NotFound."""
    if queue not in tree.queues:
        suggestion = closest_name(queue, tree.queues)
        raise NotFound(
            f"there is no queue `{queue}`",
            hints=(f"did you mean `{suggestion}`?" if suggestion else "list the queues with `hop queue ls`",),
        )
    return frozenset(name for name in tree.queues if queue in queue_path(tree, name))


def _promised_in(
    snapshot: Snapshot,
    query: TimelineQuery,
    queues: frozenset[str] | None,
    since: datetime,
    until: datetime,
) -> list[PromisedSpan]:
    spans = (
        span
        for span in promised_spans(snapshot)
        if span.start_at < until
        and span.end_at > since
        and (queues is None or span.gang.queue in queues)
        and (query.node is None or NodeId(query.node) in span.nodes)
    )
    return list(islice(spans, MAX_PROMISED))


def _promised_out(span: PromisedSpan, names: Mapping[str, str]) -> SpanOut:
    nodes = list(dict.fromkeys(span.nodes))
    total = requested_amounts(span.gang).get(GPU, 0)
    return SpanOut(
        run=span.gang.id,
        name=names.get(span.gang.id, span.gang.id),
        user=span.gang.user,
        queue=span.gang.queue,
        attempt=None,
        state="promised",
        phase="",
        nodes=list(nodes),
        gpu_milli=[total // len(nodes)] * len(nodes) if nodes else [],
        total_gpu_milli=total,
        start_at=span.start_at,
        end_at=span.end_at,
    )


def _attempt_out(found: RunAttempt, ends: Mapping[GangId, datetime]) -> SpanOut:
    attempt = found.attempt
    by_node: dict[str, int] = {}
    for node, gpus, milli in zip(attempt.nodes, attempt.gpus, attempt.gpu_milli, strict=True):
        by_node[node] = by_node.get(node, 0) + len(gpus) * milli
    is_ended = attempt.ended_at is not None
    return SpanOut(
        run=found.run,
        name=str(found.name),
        user=found.name.user,
        queue=found.queue,
        attempt=attempt.number,
        state="ended" if is_ended else "live",
        phase=attempt.phase,
        nodes=list(by_node),
        gpu_milli=list(by_node.values()),
        total_gpu_milli=sum(by_node.values()),
        start_at=attempt.placed_at,
        end_at=attempt.ended_at if is_ended else ends.get(GangId(found.run)),
    )


def _cursor(attempt: Attempt) -> str:
    return f"{attempt.placed_at.astimezone(UTC).isoformat(timespec='microseconds')} {attempt.id}"


def _parse_cursor(text: str) -> tuple[datetime, AttemptId]:
    """Raises SpecError."""
    moment, _, attempt = text.partition(" ")
    return _parse_moment(moment), AttemptId(attempt)


def _parse_moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment
    except ValueError:
        pass
    raise SpecError("after: this is not `next` of a page", hints=("list from the first page again",))


def _occurrences_after(
    reservations: Sequence[Reservation], since: datetime, until: datetime, after: str | None
) -> Iterator[OccurrenceOut]:
    """Yields the occurrences in order, after that of the cursor. Raises SpecError for a wrong cursor."""
    begin = since if after is None else max(since, _parse_moment(after.partition(" ")[0]))
    found = heapq.merge(
        *(_occurrences_of(reservation, begin, until) for reservation in reservations), key=_occurrence_key
    )
    return (each for each in found if after is None or _occurrence_key(each) > after)


def _occurrences_of(reservation: Reservation, since: datetime, until: datetime) -> Iterator[OccurrenceOut]:
    for start_at, end_at in occurrences(reservation, since, until):
        yield OccurrenceOut(
            reservation=reservation.name,
            start_at=start_at,
            end_at=end_at,
            users=reservation.users,
            queue=reservation.queue,
            nodes=list(dict.fromkeys(reservation.nodes)),
            repeats=reservation.every_s > 0,
            created_by=reservation.created_by,
        )


def _occurrence_key(occurrence: OccurrenceOut) -> str:
    return (
        f"{occurrence.start_at.astimezone(UTC).isoformat(timespec='microseconds')} {occurrence.reservation}"
    )
