"""`hop audit`: the record of changes and their users."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from hopyard.cli.options import json_option
from hopyard.cli.terminal import console
from hopyard.errors import SpecError, UsageError

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_COLUMNS = ("at", "user", "action", "target", "target_id", "outcome", "origin", "token", "detail")


@click.command("audit")
@click.option("--user", help="Only changes by this user.")
@click.option(
    "--action",
    metavar="ACTION",
    help="Only this action: run.stop; or all actions on a noun: run, dataset, queue, node, token.",
)
@click.option(
    "--target", metavar="NAME", help="Only changes of this object: a name, such as alice/mnist/12, or an id."
)
@click.option("--refused", is_flag=True, help="Only refused requests.")
@click.option(
    "--since", metavar="TIME", help=('Start of the span: 2026-11-01, "2026-11-01 09:00", yesterday, 7d.')
)
@click.option("--until", metavar="TIME", help="End of the span.")
@click.option(
    "-n",
    "limit",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help=("Maximum number of changes, the newest first."),
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV on stdout.")
@json_option
def audit(
    user: str | None,
    action: str | None,
    target: str | None,
    refused: bool,
    since: str | None,
    until: str | None,
    limit: int,
    as_csv: bool,
    as_json: bool,
) -> None:
    """List changes, the newest first: user, action, time and address. Changes of removed runs are included.

    The owner of the server sees all changes, other users only their own.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.config.past_time import parse_past_time

    if as_csv and as_json:
        raise UsageError("--csv and --json exclude each other")
    now = datetime.now().astimezone()
    begin = None if since is None else parse_past_time(since, now, what="--since")
    end = None if until is None else parse_past_time(until, now, what="--until", allow_future=True)
    if begin is not None and end is not None and begin >= end:
        raise SpecError(
            "--until: the span from `--since` to `--until` is empty",
            hints=("give --since a time before --until",),
        )
    records = connect().iterate_audit(
        max_rows=limit,
        user=user,
        action=action,
        target=target,
        outcome="refused" if refused else None,
        since=None if begin is None else begin.isoformat(),
        until=None if end is None else end.isoformat(),
    )
    rows = list(records)
    if as_json:
        console.print_json(rows)
    elif as_csv:
        console.print_csv(
            _COLUMNS,
            map(_csv_row, rows),
        )
    elif not rows:
        console.print_message("no recorded change matches")
    else:
        width = console.terminal_width() if console.is_terminal(sys.stdout) else None
        console.print_lines(
            console.format_table(
                ["TIME", "USER", "ACTION", "TARGET", "FROM", ""],
                [table_row(row) for row in rows],
                width=width,
            )
        )


def _csv_row(row: Mapping[str, object]) -> list[object]:
    return [json.dumps(row[name]) if name == "detail" else row[name] for name in _COLUMNS]


def table_row(row: api.AuditOut) -> list[str]:
    when = datetime.fromisoformat(row["at"]).astimezone()
    outcome = "" if row["outcome"] == "done" else f"{row['outcome']}: "
    detail = " ".join(
        f"{name}={cell_text(value)}" for name, value in row["detail"].items() if name not in ("id", "why")
    )
    return [
        f"{when:%Y-%m-%d %H:%M:%S}",
        row["user"] or "-",
        row["action"],
        row["target"],
        row["origin"],
        f"{outcome}{row['detail'].get('why', detail)}",
    ]


def cell_text(value: Any) -> str:
    return (
        ",".join(map(str, value))
        if isinstance(value, list)
        else value
        if isinstance(value, str)
        else json.dumps(value)
    )
