"""What runs held of the machines, summed by user, queue or project."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

from msgspec import Meta, Struct

from hopyard.domain.usage import Period, Usage, UsageKey, pieces, sum_usage
from hopyard.errors import SpecError
from hopyard.server.endpoint import Ask, Endpoint, Nothing
from hopyard.server.fields import In, Time, some_of
from hopyard.server.parts import Parts

SPAN = timedelta(days=30)  # of which is told where nothing is said
MOST_PIECES = 1000


class UsageQuery(In):
    since: Annotated[Time, Meta(description="30 days before `until` where it is not given")] | None = None
    until: Annotated[Time, Meta(description="now where it is not given")] | None = None
    by: Annotated[
        str, Meta(max_length=64, pattern=some_of(UsageKey), description="what to sum by, separated by commas")
    ] = "user"
    per: Annotated[Period, Meta(description="a row for each piece of the span, in UTC")] | None = None


class UsageOut(Struct, frozen=True, kw_only=True):
    """What attempts held between `since` and `until`, from their placement to their end. user, queue,
    project: null where it is not summed by them. held_s: wall time of all attempts together. gpu_s, cpu_s:
    GPUs and CPUs times seconds; memory_byte_s likewise."""

    since: datetime
    until: datetime
    user: str | None
    queue: str | None
    project: str | None
    attempts: int
    held_s: float
    gpu_s: float
    cpu_s: float
    memory_byte_s: float


class UsagesOut(Struct, frozen=True):
    since: datetime
    until: datetime
    usage: Sequence[UsageOut]


def usage_endpoints(parts: Parts) -> Sequence[Endpoint[Any, Any]]:
    async def usage(ask: Ask[UsageQuery, Nothing]) -> UsagesOut:
        """Sum what runs held of the machines, removed runs too.

        Live runs count until now. 400 when the span is empty or has too many pieces.
        """
        now, query = parts.now(), ask.query
        until = min(query.until or now, now)
        since = query.since or until - SPAN
        if since >= until:
            raise SpecError(
                "since: it is not before `until`", hints=("give an earlier --from or a later --to",)
            )
        spans = pieces(since, until, query.per)
        if len(spans) > MOST_PIECES:
            raise SpecError(
                f"per: the span has more than {MOST_PIECES} such pieces",
                hints=("choose a shorter span, or longer pieces",),
            )
        by = [UsageKey(word) for word in query.by.split(",")]
        found: list[UsageOut] = []
        for begin, end in spans:
            rows = await parts.usage.usage(begin, end, now=now)
            found += [_out(one, by, begin, end) for one in sum_usage(rows, by)]
        return UsagesOut(since, until, found)

    return [
        Endpoint(
            "GET",
            "/usage",
            usage,
            query=UsageQuery,
            returns=UsagesOut,
            errors=(400,),
            tag="usage",
            heavy=True,
        )
    ]


def _out(one: Usage, by: Sequence[UsageKey], since: datetime, until: datetime) -> UsageOut:
    return UsageOut(
        since=since,
        until=until,
        user=one.user if UsageKey.USER in by else None,
        queue=one.queue if UsageKey.QUEUE in by else None,
        project=one.project if UsageKey.PROJECT in by else None,
        attempts=one.attempts,
        held_s=one.held_s,
        gpu_s=one.gpu_s,
        cpu_s=one.cpu_s,
        memory_byte_s=one.memory_byte_s,
    )
