"""`hop resume`: continues a paused run, or an ended run from what it saved."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from hopyard.cli.command_result import give_command
from hopyard.cli.fork import changed_roles, spec_changes
from hopyard.cli.options import (
    changed_tag_option,
    detach_option,
    json_option,
    last_run_argument,
    name_option,
    pool_option,
    preempt_option,
    priority_option,
    resource_options,
    where_option,
)
from hopyard.cli.terminal import console
from hopyard.client.run_commands import list_run_commands
from hopyard.client.run_lookup import get_run, wait_until_stopped
from hopyard.errors import SpecError

if TYPE_CHECKING:
    from hopyard.api_client import types as api
    from hopyard.api_client.client import Client


@click.command("resume")
@last_run_argument()
@name_option
@changed_tag_option
@resource_options
@pool_option
@where_option
@click.option(
    "--time", metavar="2h", help="Time limit of each attempt.  [default: the full limit of RUN again]"
)
@click.option("-q", "--queue", metavar="QUEUE", help="The queue of the run.  [default: that of RUN]")
@priority_option
@preempt_option
@detach_option
@json_option
def resume(ref: str, detach: bool, as_json: bool, **options: Any) -> int:
    """Continue RUN: end its pause, or, if it failed or was stopped, continue from what it saved.

    A run that `hop pause` paused continues where it waits. For an ended run, a new run with the same code,
    data and parameters starts from the newest checkpoint, and with the checkpoints that the script wrote
    itself. Without --name it takes the name of RUN. Lost and preempted runs continue by themselves. `hop
    fork --files` continues with other parameters or other code.
    """
    from datetime import UTC, datetime

    from hopyard.api_client.local_server import connect
    from hopyard.cli.attach import attach_to_run
    from hopyard.client.checkpoint_lookup import is_resumable
    from hopyard.domain.ids import new_run_id

    client = connect()
    source = client.get_run(get_run(client, ref)["id"])
    if _is_paused(client, source):
        _check_no_changes(source, options)
        body: api.CommandIn = {"kind": "resume"}
        no_wait = detach or source["phase"] == "queued"
        give_command(client, source, body, timeout="30s", no_wait=no_wait, as_json=as_json)
        return 0
    changes = spec_changes({"params": (), "env": (), "secrets": (), "project": None, **options})
    if source["spec"].get("study") is None:
        source = wait_until_stopped(client, source, console.print_message)
    _check_resumable(source)
    saved = [save for save in client.iterate_run_checkpoints(source["id"]) if is_resumable(save)]
    changes["id"] = new_run_id(datetime.now(UTC), os.urandom(7))
    changes["checkpoint"] = "newest" if saved else None
    changes["files"] = source["run_folder"] is not None
    if not saved and not changes["files"]:
        changes["live_params"] = True  # of `hop set`; a checkpoint or a file has them without it
    roles = changed_roles(source["spec"]["roles"], options)
    if roles is not None:
        changes["roles"] = roles
    origins = [f"its checkpoint of step {saved[-1]['step']}"] if saved else []
    origins += ["the files that it kept"] if changes["files"] else []
    run = client.fork_run(source["id"], changes, plan=1)
    console.print_message(
        f"continues {source['name']} from {' and '.join(origins)}"
        if origins
        else f"note: {source['name']} has saved nothing: {run['name']} starts from the beginning"
    )
    if changes["files"] and not saved and not source["spec"].get("resume_arguments"):
        console.print_message(
            "hint: a script that continues by an option gets it by `hop run --resume-arg …`, or by `hop "
            f"fork {source['name']} --files -p OPTION=VALUE`; `hop files {source['name']}` lists its files"
        )
    return attach_to_run(client, run, detach=detach, as_json=as_json)


def _is_paused(client: Client, run: api.RunOut) -> bool:
    """Returns whether the run is paused, will be at its next safe point, or is held in the queue."""
    if run["phase"] == "paused" or (run["phase"] == "queued" and run["held_by"] is not None):
        return True
    if run["ended_at"] is not None or run["stop_requested"]:
        return False
    kinds = [
        each["kind"]
        for each in list_run_commands(client, run)
        if each["kind"] != "set" and each["state"] != "refused"
    ]
    return kinds[-1:] == ["pause"]


def _check_no_changes(run: api.RunOut, options: Mapping[str, Any]) -> None:
    """Raises SpecError for an option that only a new run can follow."""
    given = [name for name, value in options.items() if value not in (None, (), False)]
    if given:
        raise SpecError(
            f"{run['name']} is {run['phase']} and continues as it is: its requests cannot change",
            hints=("leave the options out", f"change its parameters with `hop set {run['name']} lr=0.01`"),
        )


def _check_resumable(source: api.RunOut) -> None:
    """Raises SpecError for a run that `hop resume` cannot continue."""
    name = source["name"]
    if source["spec"].get("study") is not None:
        raise SpecError(f"{name} is a study", hints=(f"continue it with `hop search resume {name}`",))
    if source["phase"] == "succeeded":
        origin = "--files" if source["run_folder"] is not None else "--checkpoint newest"
        raise SpecError(
            f"{name} has succeeded, so there is nothing left to do",
            hints=(f"train it further with changes: `hop fork {name} {origin} -p epochs=20`",),
        )
    if source["phase"] not in ("failed", "cancelled"):
        raise SpecError(
            f"{name} is {source['phase']}, so there is nothing to continue",
            hints=(f"follow it with `hop logs -f {name}`, or end it first with `hop stop {name}`",),
        )
