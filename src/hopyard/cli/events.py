"""`hop events`: prints what changes."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from hopyard.cli.options import complete_run
from hopyard.cli.terminal import console
from hopyard.domain.change import RunChange
from hopyard.domain.text import first_line

if TYPE_CHECKING:
    from hopyard.client.events import EventRun, ReceivedEvent

_KINDS = ("run", "study", "node", "queues", "reservation", "report")


@click.command("events")
@click.option(
    "--run",
    "refs",
    multiple=True,
    metavar="RUN",
    shell_complete=complete_run,
    help="Only events of this run (repeatable).",
)
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(_KINDS), help="Only this kind (repeatable)."
)
@click.option(
    "--change",
    "changes",
    multiple=True,
    type=click.Choice([*(change.value for change in RunChange), "changed"]),
    metavar="NAME",
    help="Only this change, such as phase, values or checkpoint (repeatable).",
)
@click.option("--user", help="Only runs of this user.")
@click.option("--project", help="Only runs of this project.")
@click.option("--where", metavar="QUERY", help="Only runs that fulfil a query, as in `hop ps --where`.")
@click.option(
    "--after", "cursor", metavar="ID", default="", help="Also events since the one with this ID (of --json)."
)
@click.option("--json", "as_json", is_flag=True, help="Print each event as a line of JSON.")
def events(
    refs: tuple[str, ...],
    kinds: tuple[str, ...],
    changes: tuple[str, ...],
    user: str | None,
    project: str | None,
    where: str | None,
    cursor: str,
    as_json: bool,
) -> None:
    """Print what changes, until Ctrl-C: phases and values of runs, nodes, queues, reservations, reports.

    No event is lost or repeated when the server restarts. Values of a run, and nodes, are printed at most
    once a second.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.client.events import EventFollower
    from hopyard.client.run_lookup import get_run

    client = connect()
    query: dict[str, Any] = {
        "run": [get_run(client, ref)["id"] for ref in refs],
        "kind": list(kinds),
        "change": list(changes),
        "user": user,
        "project": project,
        "where": where,
    }
    given = {name: value for name, value in query.items() if value}
    follower = EventFollower(client, given, cursor=cursor)
    with suppress(KeyboardInterrupt):
        for event in follower.events():
            if as_json:
                sys.stdout.write(json.dumps({"id": follower.cursor, **event}) + "\n")
            else:
                console.print_lines([event_line(event)])
            sys.stdout.flush()


def event_line(event: ReceivedEvent) -> str:
    """Returns the line of an event: time, kind, subject, change, detail."""
    if event["kind"] == "reset":
        return "events may be missing here: list everything again"
    run, change, detail = event["run"], event["change"], event["detail"]
    subject = run["name"] if run is not None else event["subject"]
    if run is None and change == "deleted" and event["kind"] == "run":
        subject, detail = detail, ""
    if run is not None and change == "values":
        detail = _values_text(run)
    at = event["at"]
    time = "" if at is None else datetime.fromisoformat(at).astimezone().strftime("%H:%M:%S")
    return "  ".join(filter(None, (time, event["kind"], subject, change, first_line(detail))))


def _values_text(run: EventRun) -> str:
    from hopyard.cli.run_text import metrics_line

    latest = {name: pair[1] for name, pair in run["latest"].items()}
    return metrics_line({**latest, **run["summary"]}, limit=4)
