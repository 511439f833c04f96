"""`hop usage`: sums of the resources that runs held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Literal

import click

from hopyard.cli.options import json_option
from hopyard.cli.terminal import console
from hopyard.domain.suggest import unknown_name_hints
from hopyard.errors import UsageError

if TYPE_CHECKING:
    from hopyard.api_client import types as api

GroupKey = Literal["user", "queue", "project"]
GROUP_KEYS: tuple[GroupKey, ...] = ("user", "queue", "project")
PERIOD_KEYS: tuple[api.Period, ...] = ("day", "week", "month")
_COLUMNS = ("attempts", "held_s", "gpu_s", "cpu_s", "memory_byte_s")
_HOUR = 3600.0
_GIB_HOUR = 3600.0 * 2**30


@click.command("usage")
@click.option(
    "--by",
    default="user",
    show_default=True,
    metavar="KEY,...",
    help="Sum by user, queue, project; and day, week or month (UTC).",
)
@click.option(
    "--from",
    "since",
    metavar="TIME",
    help='Start of the span: 2026-11-01, "2026-11-01 09:00", yesterday, 7d.  [default: 30d]',
)
@click.option("--to", "until", metavar="TIME", help="End of the span.  [default: now]")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV on stdout, amounts in seconds.")
@json_option
def usage(by: str, since: str | None, until: str | None, as_csv: bool, as_json: bool) -> None:
    """Sum the resources that runs held, from their placement to their end; removed runs count too.

    GPU-hours are GPUs times hours (a share counts as that share), CPU-hours and memory likewise. Live runs
    count until now.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.config.past_time import parse_past_time

    keys, period = _split_keys(by)
    if as_csv and as_json:
        raise UsageError("--csv and --json exclude each other")
    now = datetime.now().astimezone()
    begin = None if since is None else parse_past_time(since, now, what="--from").isoformat()
    end = None if until is None else parse_past_time(until, now, what="--to", allow_future=True).isoformat()
    answer = connect().get_usage(by=",".join(keys) or "user", per=period, since=begin, until=end)
    rows = answer["usage"] if keys else _sum_by_period(answer["usage"])
    if as_json:
        console.print_json(rows)
    elif as_csv:
        columns = ["since", "until", *keys, *_COLUMNS]
        console.print_csv(columns, (_cells(row, columns) for row in rows))
    elif not rows:
        console.print_message(f"nothing ran {_period_text(answer)}")
    else:
        console.print_message(_period_text(answer))
        console.print_lines(usage_table(rows, keys, period))


def _cells(row: Mapping[str, object], columns: Sequence[str]) -> list[object]:
    return [row[column] for column in columns]


def _split_keys(by: str) -> tuple[list[GroupKey], api.Period | None]:
    words = [word.strip().lower() for word in by.split(",") if word.strip()]
    for word in words:
        if word not in (*GROUP_KEYS, *PERIOD_KEYS):
            raise UsageError(
                f"--by: `{word}` is not a valid grouping",
                hints=unknown_name_hints(word, (*GROUP_KEYS, *PERIOD_KEYS)),
            )
    periods = [period for word in words for period in PERIOD_KEYS if word == period]
    if len(periods) > 1:
        raise UsageError(f"--by: {' and '.join(periods)} exclude each other")
    return [word for word in GROUP_KEYS if word in words], periods[0] if periods else None


def _sum_by_period(rows: list[api.UsageOut]) -> list[api.UsageOut]:
    """Returns one row per span, for all users together."""
    totals: dict[str, api.UsageOut] = {}
    for row in rows:
        total = totals.get(row["since"])
        totals[row["since"]] = {**row, "user": None} if total is None else _sum(total, row)
    return list(totals.values())


def _sum(left: api.UsageOut, right: api.UsageOut) -> api.UsageOut:
    return {
        **left,
        "attempts": left["attempts"] + right["attempts"],
        "held_s": left["held_s"] + right["held_s"],
        "gpu_s": left["gpu_s"] + right["gpu_s"],
        "cpu_s": left["cpu_s"] + right["cpu_s"],
        "memory_byte_s": left["memory_byte_s"] + right["memory_byte_s"],
    }


def usage_table(rows: list[api.UsageOut], keys: list[GroupKey], period: str | None) -> list[str]:
    """Returns the lines of the table, head first, with a line of totals for several rows."""
    head = [
        *([period.upper()] if period else []),
        *(key.upper() for key in keys),
        "ATTEMPTS",
        "GPU-HOURS",
        "CPU-HOURS",
        "GIB-HOURS",
    ]
    lines = [
        [*([row["since"][:10]] if period else []), *(row[key] or "" for key in keys), *_amount_columns(row)]
        for row in rows
    ]
    if len(rows) > 1:
        lines.append(["total", *[""] * (len(head) - 5), *_amount_columns(reduce(_sum, rows))])
    return console.format_table(head, lines, right=range(len(head) - 4, len(head)))


def _amount_columns(row: api.UsageOut) -> list[str]:
    return [
        str(row["attempts"]),
        f"{row['gpu_s'] / _HOUR:.2f}",
        f"{row['cpu_s'] / _HOUR:.2f}",
        f"{row['memory_byte_s'] / _GIB_HOUR:.2f}",
    ]


def _period_text(response: api.UsagesOut) -> str:
    since, until = (
        datetime.fromisoformat(moment).astimezone() for moment in (response["since"], response["until"])
    )
    return f"from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M}"
