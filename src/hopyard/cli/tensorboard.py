"""`hop tensorboard`: TensorBoard of several runs, as a run."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hopyard.cli.options import (
    idle_option,
    json_option,
    name_option,
    pool_option,
    priority_option,
    project_option,
    queue_option,
    run_argument,
    run_memory_option,
    where_option,
)
from hopyard.cli.server_run import page_options, submit_server
from hopyard.domain.run_port import TENSORBOARD_PORT


@click.command("tensorboard")
@run_argument("refs", nargs=-1, required=True, metavar="RUN...")
@click.option("--cpus", metavar="N", help="CPUs, also fractions; a limit if given.  [default: 0.1]")
@run_memory_option
@click.option("--python", metavar="PATH", help="An interpreter with TensorBoard.  [default: the caller's]")
@idle_option
@name_option
@queue_option
@priority_option
@pool_option
@where_option
@project_option
@page_options
@json_option
def tensorboard(
    refs: tuple[str, ...], print_only: bool, no_browser: bool, as_json: bool, **options: Any
) -> int:
    """Show the metrics and event files of runs in TensorBoard; open it in a browser.

    New points of live runs appear by themselves. Runs that only log with `hop.log` are shown, too. The link
    is valid once, within a minute.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.client.build_run import apply_options, find_interpreter
    from hopyard.client.run_lookup import get_run
    from hopyard.client.tensorboard_run import find_tensorboard, tensorboard_request
    from hopyard.config.run_request import parse_placement, parse_sizes

    interpreter = find_tensorboard(find_interpreter(options.pop("python")))
    client = connect()
    request = tensorboard_request(get_run(client, ref)["id"] for ref in refs)
    sizes, placement = parse_sizes(options), parse_placement(options)
    roles = tuple(replace(role, **sizes, **placement) for role in request.roles)
    request = replace(apply_options(request, options), roles=roles, interpreter=interpreter)
    with tempfile.TemporaryDirectory() as empty:  # the run needs no code
        return submit_server(
            request,
            Path(empty),
            TENSORBOARD_PORT[0],
            print_only=print_only,
            no_browser=no_browser,
            as_json=as_json,
        )
