"""`hop timeline`: what ran, what runs and what is promised."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import TYPE_CHECKING

import click

from hopyard.cli.node import complete_node
from hopyard.cli.options import complete_queue, json_option
from hopyard.cli.terminal import console

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_DEFAULT_LIMIT = 200


@click.command("timeline")
@click.option("--node", metavar="NODE", shell_complete=complete_node, help="Only what holds this node.")
@click.option(
    "-q",
    "--queue",
    metavar="QUEUE",
    shell_complete=complete_queue,
    help="Only this queue and those below it.",
)
@click.option(
    "--from",
    "since",
    metavar="TIME",
    help='Start of the span: "2026-11-01 09:00", yesterday, 6h.  [default: 12h]',
)
@click.option("--to", "until", metavar="TIME", help="End of the span.  [default: 12 hours from now]")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=_DEFAULT_LIMIT,
    show_default=True,
    help="At most so many rows: promises first, then the newest attempts.",
)
@json_option
def timeline(
    node: str | None, queue: str | None, since: str | None, until: str | None, limit: int, as_json: bool
) -> None:
    """List what ran, what runs and which starts are promised, on a node or for a queue.

    The end of a live run and of a promised run is an estimate. A promised run starts at START at the latest.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.config.past_time import parse_past_time
    from hopyard.domain.ids import check_name

    now = datetime.now().astimezone()
    begin = None if since is None else parse_past_time(since, now, what="--from").isoformat()
    end = None if until is None else parse_past_time(until, now, what="--to", allow_future=True).isoformat()
    spans = list(
        connect().iterate_timeline(
            since=begin,
            until=end,
            node=None if node is None else check_name(node, subject="node"),
            queue=None if queue is None else check_name(queue, subject="queue"),
            max_rows=limit,
        )
    )
    if as_json:
        console.print_json(spans)
    elif not spans:
        console.print_message("nothing ran, and nothing is promised")
    else:
        console.print_lines(timeline_table(spans))


def timeline_table(spans: list[api.SpanOut]) -> list[str]:
    """Returns the lines of the table, head first, by start."""
    from hopyard.cli.terminal.times import format_clock

    rows = [
        [
            format_clock(span["start_at"], show_seconds=False),
            _end_text(span),
            span["phase"] or span["state"],
            span["name"],
            span["queue"],
            f"{span['total_gpu_milli'] / 1000:g}" if span["total_gpu_milli"] else "-",
            ", ".join(span["nodes"]) or "-",
        ]
        for span in sorted(spans, key=lambda span: datetime.fromisoformat(span["start_at"]))
    ]
    head = ["START", "END", "STATE", "RUN", "QUEUE", "GPU", "NODES"]
    width = console.terminal_width() if console.is_terminal(sys.stdout) else None
    return console.format_table(head, rows, right=(5,), width=width)


def _end_text(span: api.SpanOut) -> str:
    from hopyard.cli.terminal.times import format_clock

    if span["end_at"] is None:
        return "-"
    mark = "" if span["state"] == "ended" else "~"
    return mark + format_clock(span["end_at"], show_seconds=False)
