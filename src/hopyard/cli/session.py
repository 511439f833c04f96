"""`hop session …`: the browsers that are logged in to the web UI."""

from __future__ import annotations

import click

from hopyard.cli.options import json_option
from hopyard.cli.terminal import console
from hopyard.errors import NotFound, UsageError


@click.group("session")
def session() -> None:
    """List the browsers that are logged in to the web UI, and log them out."""


@session.command("list")
@json_option
def list_sessions(as_json: bool) -> None:
    """List your sessions with browser, address, token and last use."""
    from hopyard.api_client.local_server import connect
    from hopyard.cli.terminal.times import format_clock

    sessions = list(connect().iterate_sessions())
    if as_json:
        console.print_json(sessions)
        return
    rows = [
        [
            entry["id"],
            entry["browser"] or "-",
            entry["address"] or "-",
            entry["token_name"] or entry["token"],
            format_clock(entry["created_at"]),
            "-" if entry["used_at"] is None else format_clock(entry["used_at"]),
            format_clock(entry["expires_at"]),
        ]
        for entry in sessions
    ]
    console.print_lines(
        console.format_table(["ID", "BROWSER", "ADDRESS", "TOKEN", "LOGGED IN", "LAST USED", "ENDS"], rows)
    )


@session.command("end")
@click.argument("which", metavar="[ID]", required=False)
@click.option("--all", "every", is_flag=True, help="End all of your sessions.")
@json_option
def end_session(which: str | None, every: bool, as_json: bool) -> None:
    """Log a browser out: at once on this server, within seconds on others that share its database.

    A token without the scope `admin` ends only its own sessions.
    """
    from hopyard.api_client.local_server import connect

    if every == (which is not None):
        raise UsageError(
            "`hop session end` needs either an ID or --all", hints=("list the ids: `hop session list`",)
        )
    client = connect()
    if which is None:
        ended = client.delete_sessions()
        if as_json:
            console.print_json(ended)
        else:
            count = len(ended["ended"])
            console.print_message(f"{count} session{'' if count == 1 else 's'} ended")
        return
    ids = [entry["id"] for entry in client.iterate_sessions()]
    if which not in ids:
        raise NotFound(f"you have no session `{which}`", hints=("list them with `hop session list`",))
    entry = client.delete_session(which)
    if as_json:
        console.print_json(entry)
    else:
        console.print_message(f"session {entry['id']} of {entry['browser'] or 'a browser'} has ended")
