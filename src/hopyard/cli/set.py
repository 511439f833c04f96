"""`hop set`: changes parameters of a live run."""

from __future__ import annotations

import click

from hopyard.cli.command_result import give_command, no_wait_option, timeout_option
from hopyard.cli.options import json_option, run_argument
from hopyard.client.run_lookup import get_run


@click.command("set")
@run_argument()
@click.argument("assignments", nargs=-1, required=True, metavar="NAME=VALUE...")
@no_wait_option
@timeout_option
@json_option
def set_params(ref: str, assignments: tuple[str, ...], no_wait: bool, timeout: str, as_json: bool) -> None:
    """Set parameters of RUN while it runs, such as `hop set RUN lr=1e-4`.

    The values have the types of `hop.params` in the script. All processes apply them at the same safe point,
    an iteration of hop.loop. Bound optimizers that were built with the value follow: lr, weight_decay,
    momentum. Later attempts of the run keep the values.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.config.key_values import parse_params

    params = parse_params(assignments, what="NAME=VALUE")
    client = connect()
    give_command(
        client,
        get_run(client, ref),
        {"kind": "set", "params": params},
        timeout=timeout,
        no_wait=no_wait,
        as_json=as_json,
    )
