"""`hop alert`: notifies the targets of a run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

import click

from hopyard.cli.options import complete_run, json_option
from hopyard.cli.terminal import console
from hopyard.errors import UsageError

if TYPE_CHECKING:
    from hopyard.api_client import types as api


@click.command("alert")
@click.argument("text")
@click.option(
    "--run",
    "ref",
    metavar="RUN",
    shell_complete=complete_run,
    help="The run.  [default: in a run, that run; else the newest]",
)
@click.option("--title", default="", help="A short title.")
@click.option(
    "--level",
    type=click.Choice(["info", "warning", "error"]),
    default="warning",
    show_default=True,
    help="How serious it is.",
)
@json_option
def alert(text: str, ref: str | None, title: str, level: str, as_json: bool) -> None:
    """Give notice of something to the targets of a run (`hop run --on-end TARGET`).

    A script calls it as a program, or `hop.alert` in Python. The alert is also an event of the run.
    """
    if ref is None and os.environ.get("HOPYARD_REPLICA_DIR"):
        from hopyard.sdk.api import alert as alert_in_run

        if as_json:
            raise UsageError("--json: in a run, an alert has no answer", hints=("leave it out",))
        alert_in_run(text, title=title, level=level)
        return
    from hopyard.api_client.local_server import connect
    from hopyard.client.run_lookup import get_run

    client = connect()
    run = get_run(client, ref or "last")
    answer = client.create_run_alert(
        run["id"], {"text": text, "title": title, "level": cast("api.AlertLevel", level)}
    )
    if as_json:
        console.print_json(answer)
    else:
        targets = ", ".join(answer["targets"])
        console.print_message(
            f"notifies {targets}" if targets else f"{run['name']} has no targets; the alert is an event of it"
        )
