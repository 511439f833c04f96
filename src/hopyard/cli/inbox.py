"""`hop inbox`: alerts and ends of a user's runs."""

from __future__ import annotations

import sys
from datetime import datetime
from itertools import takewhile
from typing import TYPE_CHECKING

import click

from hopyard.cli.options import json_option
from hopyard.cli.terminal import console
from hopyard.errors import UsageError

if TYPE_CHECKING:
    from hopyard.api_client import types as api


@click.command("inbox")
@click.option("-n", "limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most N.")
@click.option("--unread", is_flag=True, help="Only what is unread.")
@click.option("--read", "marks_read", is_flag=True, help="Mark all that is listed, and older, as read.")
@click.option("--user", metavar="NAME", help="The inbox of another user.")
@json_option
def inbox(limit: int, unread: bool, marks_read: bool, user: str | None, as_json: bool) -> None:
    """List alerts of your runs and the ends of your runs, newest first. `*` marks what is unread.

    A browser shows the same list and the same marks. Ends of trials are not listed.
    """
    from hopyard.api_client.local_server import connect

    if marks_read and user is not None:
        raise UsageError(
            "--read and --user exclude each other: only its user marks an inbox", hints=("leave one out",)
        )
    client = connect()
    # read entries are the older ones
    entries = client.iterate_inbox(max_rows=limit, user=user)
    rows = list(takewhile(lambda entry: entry["unread"], entries) if unread else entries)
    if as_json:
        console.print_json(rows)
    elif not rows:
        console.print_message("nothing is unread" if unread else "no alert yet, and no run has ended")
    else:
        width = console.terminal_width() if console.is_terminal(sys.stdout) else None
        heads = ["", "TIME", "RUN", "WHAT", ""]
        console.print_lines(console.format_table(heads, [_table_row(row) for row in rows], width=width))
    if marks_read and rows:
        client.put_inbox_read({"until": rows[0]["at"]})


def _table_row(entry: api.InboxEntryOut) -> list[str]:
    when = datetime.fromisoformat(entry["at"]).astimezone()
    is_alert = entry["kind"] == "alert"
    what = entry["level"] if is_alert else entry["phase"]
    text = ": ".join(filter(None, (entry["title"], entry["text"])))
    return [
        "*" if entry["unread"] else "",
        f"{when:%Y-%m-%d %H:%M:%S}",
        entry["label"] or entry["name"],
        what,
        " ".join(text.split()),
    ]
