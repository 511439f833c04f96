"""`hop stop`: ends runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hopyard.cli.batch import apply_to_each, unique
from hopyard.cli.options import json_option, run_argument
from hopyard.cli.run_text import is_final
from hopyard.client.run_lookup import get_run
from hopyard.errors import NotFound

if TYPE_CHECKING:
    from hopyard.api_client import types as api


@click.command("stop")
@run_argument("refs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--grace",
    metavar="TIME",
    default="10s",
    show_default=True,
    help="Grace period: time for a script to save before SIGKILL.",
)
@json_option
def stop(refs: tuple[str, ...], grace: str, as_json: bool) -> None:
    """End runs: their processes get SIGTERM, then SIGKILL after the grace period.
    Queued runs leave the queue.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.config.units import parse_time

    grace_s = 0.0 if grace in ("0", "0s") else parse_time(grace, what="--grace")
    client = connect()
    try:
        runs = [get_run(client, ref) for ref in refs]  # all names are looked up before anything is stopped
    except NotFound as error:
        others = ("nothing was stopped: leave it out to stop the others",) if len(refs) > 1 else ()
        raise NotFound(error.message, hints=(*others, *error.hints)) from None

    def end(run: api.RunOut) -> api.RunOut:
        return run if is_final(run) else client.stop_run(run["id"], {"grace_s": grace_s})

    def said(before: api.RunOut, after: api.RunOut) -> str:
        return f"{after['name']}  {'had already ended: ' if is_final(before) else ''}{after['phase']}"

    apply_to_each(unique(runs), end, format_result=said, as_json=as_json)
