"""Resource usage of runs, summed by user, queue or project."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Annotated, Any

from msgspec import Meta, Struct

from hopyard.config.schemas.fields import RequestModel, Time, word_list_pattern
from hopyard.domain.usage import Period, Usage, UsageKey, split_period, sum_usage
from hopyard.errors import SpecError
from hopyard.server.endpoint import ApiRequest, Empty, Endpoint
from hopyard.server.services import Services

DEFAULT_SPAN = timedelta(days=30)  # the default
MAX_PERIODS = 1000


class UsageQuery(RequestModel):
    since: Annotated[Time, Meta(description="default: 30 days before `until`")] | None = None
    until: Annotated[Time, Meta(description="default: now")] | None = None
    by: Annotated[
        str,
        Meta(
            max_length=64,
            pattern=word_list_pattern(UsageKey),
            description="keys to sum by, separated by commas",
        ),
    ] = "user"
    per: Annotated[Period, Meta(description="length of the intervals in UTC, one row each")] | None = None


class UsageOut(Struct, frozen=True, kw_only=True):
    """Resources that attempts held between `since` and `until`, from their placement to their end. user,
    queue, project: null unless summed by it. held_s: wall time of all attempts together. gpu_s, cpu_s: GPUs
    and CPUs times seconds; memory_byte_s: bytes times seconds."""

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


def usage_endpoints(services: Services) -> Sequence[Endpoint[Any, Any]]:
    async def usage(request: ApiRequest[UsageQuery, Empty]) -> UsagesOut:
        """Sum the resources that runs held, including deleted runs. Live runs count until now. 400 when the
        time span is empty or has too many intervals."""
        now, query = services.now(), request.query
        until = min(query.until or now, now)
        since = query.since or until - DEFAULT_SPAN
        if since >= until:
            raise SpecError("since: must be before `until`", hints=("set an earlier --from or a later --to",))
        # of a span of centuries, the server must not list each day
        spans = list(islice(split_period(since, until, query.per), MAX_PERIODS + 1))
        if len(spans) > MAX_PERIODS:
            raise SpecError(
                f"per: the span has more than {MAX_PERIODS} intervals of this length",
                hints=("choose a shorter span, or longer intervals",),
            )
        by = [UsageKey(word) for word in query.by.split(",")]
        sums: list[UsageOut] = []
        for begin, end in spans:
            rows = await services.usage.usage(begin, end, now=now)
            sums += [_to_out(row, by, begin, end) for row in sum_usage(rows, by)]
        return UsagesOut(since, until, sums)

    return [
        Endpoint(
            "GET",
            "/usage",
            usage,
            query=UsageQuery,
            returns=UsagesOut,
            errors=(400,),
            tag="usage",
            is_heavy=True,
        )
    ]


def _to_out(usage: Usage, by: Sequence[UsageKey], since: datetime, until: datetime) -> UsageOut:
    return UsageOut(
        since=since,
        until=until,
        user=usage.user if UsageKey.USER in by else None,
        queue=usage.queue if UsageKey.QUEUE in by else None,
        project=usage.project if UsageKey.PROJECT in by else None,
        attempts=usage.attempts,
        held_s=usage.held_s,
        gpu_s=usage.gpu_s,
        cpu_s=usage.cpu_s,
        memory_byte_s=usage.memory_byte_s,
    )
