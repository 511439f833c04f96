"""`hop pause`: makes a run wait at its next safe point."""

from __future__ import annotations

import click

from hopyard.cli.command_result import give_command, no_wait_option, timeout_option
from hopyard.cli.options import json_option, last_run_argument
from hopyard.client.run_lookup import get_run


@click.command("pause")
@last_run_argument()
@click.option(
    "--release",
    is_flag=True,
    help="Free its resources: it saves a checkpoint and waits in the queue, held until `hop resume`.",
)
@no_wait_option
@timeout_option
@json_option
def pause(ref: str, release: bool, no_wait: bool, timeout: str, as_json: bool) -> None:
    """Pause RUN at the next safe point of its script: an iteration of hop.loop, or without one a hop.log.

    All processes of a gang pause at the same iteration and keep their GPUs. `hop resume` continues it. A run
    that waits in the queue is held there. The time limit continues to run.
    """
    from hopyard.api_client.local_server import connect

    client = connect()
    give_command(
        client,
        get_run(client, ref),
        {"kind": "pause", "release": release},
        timeout=timeout,
        no_wait=no_wait,
        as_json=as_json,
    )
