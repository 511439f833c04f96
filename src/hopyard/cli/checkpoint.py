"""`hop checkpoint …`: lists, keeps and removes the checkpoints of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hopyard.api_client.client import Client
from hopyard.cli.options import json_option, last_run_argument, run_argument
from hopyard.cli.terminal import console
from hopyard.cli.terminal.console import format_bytes, format_number
from hopyard.domain.text import escape
from hopyard.errors import SpecError

if TYPE_CHECKING:
    from hopyard.api_client import types as api


@click.group("checkpoint", no_args_is_help=False, invoke_without_command=True)
@click.pass_context
def checkpoint(ctx: click.Context) -> None:
    """List, keep and remove the checkpoints of a run.

    A run keeps its newest checkpoints, the best one, and those that `keep` or `hop.save(keep=True)` marks.
    `hop run --keep` chooses others.
    RUN@STEP, RUN@newest and RUN@best name one: `hop fork RUN@best`, `hop pull RUN@best`.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@checkpoint.command("ls")
@last_run_argument()
@json_option
def list_checkpoints(ref: str, as_json: bool) -> None:
    """List the checkpoints of RUN in the order in which they were saved.

    The marks are: newest, best (by the metric of the run), kept, damaged. KEPT FOR shows why `--keep` keeps a
    checkpoint: last=3, best=2, every=10, `kept` (a mark), `resumed` (an attempt began with it).
    """
    from hopyard.api_client.local_server import connect
    from hopyard.client.run_lookup import get_run

    client = connect()
    run = get_run(client, ref)
    checkpoints = list(client.iterate_run_checkpoints(run["id"]))
    if as_json:
        console.print_json(checkpoints)
    elif not checkpoints:
        console.print_message(f"{run['name']} has no checkpoint")
    else:
        console.print_lines(_format_rows(checkpoints))


@checkpoint.command("keep")
@run_argument(metavar="RUN@CHECKPOINT")
@click.option("--undo", is_flag=True, help="Remove the mark: retention may delete the checkpoint again.")
@json_option
def keep(ref: str, undo: bool, as_json: bool) -> None:
    """Exempt a checkpoint from retention, so that it stays as long as its run."""
    from hopyard.api_client.local_server import connect

    client = connect()
    run, step = _resolve(client, ref)
    kept = client.keep_run_checkpoint(run["id"], step, kept=0 if undo else 1)["checkpoints"]
    if as_json:
        console.print_json(kept)
    else:
        state = "follows the retention again" if undo else "is kept"
        console.print_message(f"the checkpoint of step {step} of {run['name']} {state}")


@checkpoint.command("rm")
@run_argument(metavar="RUN@CHECKPOINT")
@json_option
def remove(ref: str, as_json: bool) -> None:
    """Delete a checkpoint. A live run retains the ones from which it can resume."""
    from hopyard.api_client.local_server import connect

    client = connect()
    run, step = _resolve(client, ref)
    client.delete_run_checkpoint(run["id"], step)
    if as_json:
        console.print_json({"run": run["id"], "step": step})
    else:
        console.print_message(f"the checkpoint of step {step} of {run['name']} is deleted")


def _resolve(client: Client, ref: str) -> tuple[api.RunOut, int]:
    """Returns the run and the step of `RUN@CHECKPOINT`. Raises SpecError without a checkpoint."""
    from hopyard.client.checkpoint_lookup import find_checkpoint, split_reference
    from hopyard.client.run_lookup import get_run

    run_ref, choice = split_reference(ref)
    if choice is None:
        raise SpecError(
            f"{ref}: no checkpoint is named",
            hints=(f"name one: `{ref}@STEP`, `{ref}@newest` or `{ref}@best`",),
        )
    run = get_run(client, run_ref)
    if isinstance(choice, int):
        return run, choice  # a damaged one, too
    return run, find_checkpoint(client, run, choice, what=ref)["step"]


def _format_rows(checkpoints: list[api.CheckpointOut]) -> list[str]:
    from hopyard.cli.terminal.times import format_clock

    newest = next((c for c in reversed(checkpoints) if not c.get("damaged")), None)
    rows = []
    for saved in checkpoints:
        marks = {
            "newest": saved is newest,
            "best": saved.get("best"),
            "kept": saved.get("kept"),
            "damaged": saved.get("damaged"),
        }
        rows.append(
            [
                str(saved["step"]),
                saved["attempt"].rpartition(".")[2],
                format_clock(saved["created_at"]),
                format_bytes(saved["size_bytes"]),
                " ".join(mark for mark, is_set in marks.items() if is_set),
                " ".join(saved.get("kept_for", ())),
                escape(saved.get("path", "").partition("/")[2]),
                "  ".join(f"{escape(k)} {format_number(v)}" for k, v in (saved.get("metrics") or {}).items()),
            ]
        )
    names = ["STEP", "ATTEMPT", "SAVED", "SIZE", "", "KEPT FOR", "FILE", "METRICS"]
    return console.format_table(names, rows, right=(0, 1, 3))
