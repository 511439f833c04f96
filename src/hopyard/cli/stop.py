"""`hop stop`: ends runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

import click

from hopyard.cli.batch import apply_to_each, unique
from hopyard.cli.options import json_option, run_argument
from hopyard.cli.run_text import is_final
from hopyard.client.run_lookup import get_run
from hopyard.domain.replica import STOP_SIGNALS
from hopyard.errors import NotFound, SpecError

if TYPE_CHECKING:
    from hopyard.api_client import types as api

    _Signal = Literal["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"]


@click.command("stop")
@run_argument("refs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--grace",
    metavar="TIME",
    default="10s",
    show_default=True,
    help="Grace period: time for a script to save before SIGKILL.",
)
@click.option(
    "--signal",
    metavar="NAME",
    help="Signal that the processes get first: INT acts as Ctrl-C. Default: that of an earlier `hop stop`,"
    " or TERM.",
)
@json_option
def stop(refs: tuple[str, ...], grace: str, signal: str | None, as_json: bool) -> None:
    """End runs: their processes get SIGTERM, then SIGKILL after the grace period.
    Queued runs leave the queue.

    --signal sends INT, HUP, QUIT, USR1 or USR2 in place of SIGTERM. INT, HUP and QUIT reach all processes of
    a command, as from a terminal; the others reach the process that the command started.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.config.units import parse_time

    grace_s = 0.0 if grace in ("0", "0s") else parse_time(grace, what="--grace")
    chosen = None if signal is None else _parse_signal(signal)
    client = connect()
    try:
        runs = [get_run(client, ref) for ref in refs]  # all names are looked up before anything is stopped
    except NotFound as error:
        others = ("nothing was stopped: leave it out to stop the others",) if len(refs) > 1 else ()
        raise NotFound(error.message, hints=(*others, *error.hints)) from None

    body: api.StopIn = {"grace_s": grace_s}
    if chosen is not None:
        body["signal"] = chosen

    def end(run: api.RunOut) -> api.RunOut:
        return run if is_final(run) else client.stop_run(run["id"], body)

    def said(before: api.RunOut, after: api.RunOut) -> str:
        sent = f" with SIG{chosen}" if after["phase"] == "stopping" and chosen not in (None, "TERM") else ""
        return f"{after['name']}  {'had already ended: ' if is_final(before) else ''}{after['phase']}{sent}"

    apply_to_each(unique(runs), end, format_result=said, as_json=as_json)


def _parse_signal(name: str) -> _Signal:
    """Returns the name without `SIG`. Raises SpecError."""
    wanted = name.upper().removeprefix("SIG")
    for known in STOP_SIGNALS:
        if wanted == known:
            return cast("_Signal", known)
    hints = ["use --grace 0 to kill at once"] if wanted in ("KILL", "9") else []
    raise SpecError(
        f"--signal: `{name}` is not a signal that stops runs",
        hints=(*hints, f"use {', '.join(STOP_SIGNALS)}"),
    )
