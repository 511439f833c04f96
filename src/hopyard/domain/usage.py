"""The resources that runs held, and for how long: the sums of `hop usage`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from hopyard.domain.queue import CPU, GPU, MEMORY, Amounts


class UsageKey(StrEnum):
    """The keys by which use is summed."""

    USER = "user"
    QUEUE = "queue"
    PROJECT = "project"


class Period(StrEnum):
    """Parts of a time range, in UTC. Weeks begin on Monday."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that attempts held in a time range, from placement to end; "" means all users, queues or
    projects.

    attempts: the number that held something. held_s: their total wall time. gpu_s, cpu_s, memory_byte_s:
    amounts times seconds.
    """

    user: str = ""
    queue: str = ""
    project: str = ""
    attempts: int = 0
    held_s: float = 0.0
    gpu_s: float = 0.0
    cpu_s: float = 0.0
    memory_byte_s: float = 0.0


def usage_between(
    placed_at: datetime,
    ended_at: datetime,
    amounts: Amounts,
    *,
    since: datetime,
    until: datetime,
    user: str,
    queue: str,
    project: str,
) -> Usage | None:
    """Returns the resources that one attempt held between `since` and `until`; None if it held nothing."""
    held_s = (min(ended_at, until) - max(placed_at, since)).total_seconds()
    if held_s <= 0:
        return None
    gpus, cpus = amounts.get(GPU, 0) / 1000, amounts.get(CPU, 0) / 1000
    return Usage(
        user, queue, project, 1, held_s, gpus * held_s, cpus * held_s, amounts.get(MEMORY, 0) * held_s
    )


def sum_usage(rows: Iterable[Usage], by: Sequence[UsageKey]) -> list[Usage]:
    """Returns one row per combination of `by`, sorted by GPU use, then CPU use (largest first), then name."""
    totals: dict[tuple[str, str, str], Usage] = {}
    for row in rows:
        key = (
            row.user if UsageKey.USER in by else "",
            row.queue if UsageKey.QUEUE in by else "",
            row.project if UsageKey.PROJECT in by else "",
        )
        total = totals.get(key) or Usage(*key)
        totals[key] = replace(
            total,
            attempts=total.attempts + row.attempts,
            held_s=total.held_s + row.held_s,
            gpu_s=total.gpu_s + row.gpu_s,
            cpu_s=total.cpu_s + row.cpu_s,
            memory_byte_s=total.memory_byte_s + row.memory_byte_s,
        )
    return sorted(
        totals.values(),
        key=lambda total: (-total.gpu_s, -total.cpu_s, total.user, total.queue, total.project),
    )


def split_period(
    since: datetime, until: datetime, period: Period | None
) -> Iterator[tuple[datetime, datetime]]:
    """Yields the parts of a time range, split at the starts of days, weeks or months."""
    begin = since
    while begin < until:
        end = until if period is None else min(_next_period_start(begin, period), until)
        yield begin, end
        begin = end


def _next_period_start(moment: datetime, period: Period) -> datetime:
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    if period is Period.DAY:
        return midnight + timedelta(days=1)
    if period is Period.WEEK:
        return midnight + timedelta(days=7 - midnight.weekday())
    return (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
