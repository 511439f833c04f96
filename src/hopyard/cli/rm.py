"""`hop rm`: deletes runs."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from hopyard.cli import errors
from hopyard.cli.batch import apply_to_each, unique
from hopyard.cli.options import run_argument
from hopyard.cli.run_text import is_final, sync_text
from hopyard.cli.terminal import console
from hopyard.client.run_lookup import get_run
from hopyard.errors import Conflict, NotFound, UsageError

if TYPE_CHECKING:
    from hopyard.api_client import types as api
    from hopyard.api_client.client import Client

_STOP_TIMEOUT_S = 90.0


@click.command("rm")
@run_argument("refs", nargs=-1, required=True, metavar="RUN...")
@click.option("-y", "--yes", is_flag=True, help="Delete without confirmation.")
@click.option("--force", is_flag=True, help="End live runs first.")
@click.option("--dry-run", is_flag=True, help="Only print what would be deleted, and how much that frees.")
def rm(refs: tuple[str, ...], yes: bool, force: bool, dry_run: bool) -> None:
    """Delete ended runs with their logs, metrics and checkpoints, and a study with its trials.
    This cannot be undone.

    Code, datasets and environments that other runs use stay.
    """
    from hopyard.api_client.local_server import connect

    client = connect()
    runs = unique([get_run(client, ref) for ref in refs])
    live = [run["name"] for run in runs if not (is_final(run) or sync_text(run))]
    if live and not force:
        raise Conflict(
            f"{', '.join(live)} {'has' if len(live) == 1 else 'have'} not ended",
            hints=("use --force to end live runs first",),
        )
    if dry_run:
        _print_freed(client, runs, force=force)
        return
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(
                "stdin is not a terminal, so the deletion cannot be confirmed",
                hints=("use -y to delete without a question",),
            )
        names = ", ".join(_run_name(run) for run in runs)
        if not click.confirm(f"delete {names}?", err=True):
            console.print_message("nothing was deleted")
            return

    def delete(run: api.RunOut) -> api.RunOut:
        with suppress(NotFound):  # a trial went with its study
            client.delete_run(run["id"], force=int(force), timeout_s=_STOP_TIMEOUT_S)
        return run

    apply_to_each(runs, delete, format_result=lambda run, _: f"deleted {_run_name(run)}")


def _print_freed(client: Client, runs: list[api.RunOut], *, force: bool) -> None:
    from hopyard.config.units import format_bytes

    answer = client.batch_runs(
        {"runs": [run["id"] for run in runs], "action": "delete", "force": force, "dry_run": True}
    )
    names = {run["id"]: _run_name(run) for run in runs}
    failed = False
    for result in answer["results"]:
        name, error = names[result["id"]], result["error"]
        if error is not None:
            failed = True
            errors.print_error(f"{name}: {error['message']}", error.get("hints") or ())
        else:
            console.print_message(f"would delete {name}")
    console.print_message(f"this would free about {format_bytes(answer.get('frees_bytes') or 0)}")
    if failed:
        click.get_current_context().exit(errors.EXIT_FAILED)


def _run_name(run: api.RunOut) -> str:
    """Returns the name of the run, with the number of runs of its trials, which are deleted with a study."""
    trials = sum((run.get("trials") or {}).values())
    return (
        f"{run['name']} and {trials} {'run' if trials == 1 else 'runs'} of its trials"
        if trials
        else str(run["name"])
    )
