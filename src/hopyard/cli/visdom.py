"""`hop visdom`: the Visdom server of a user, as a run."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hopyard.cli.options import (
    idle_option,
    json_option,
    pool_option,
    priority_option,
    queue_option,
    run_memory_option,
    where_option,
)
from hopyard.cli.server_run import open_served, page_options, submit_server
from hopyard.cli.terminal.console import print_message
from hopyard.domain.run_port import VISDOM_PORT


@click.command("visdom")
@click.option("--cpus", metavar="N", help="CPUs, also fractions; a limit if given.  [default: 0.1]")
@run_memory_option
@click.option("--python", metavar="PATH", help="An interpreter with Visdom.  [default: the caller's]")
@idle_option
@queue_option
@priority_option
@pool_option
@where_option
@page_options
@json_option
def visdom(print_only: bool, no_browser: bool, as_json: bool, **options: Any) -> int:
    """Run your Visdom server, and open it in a browser. If it is live already, it is opened.

    Runs that start while it is live reach it by `visdom.Visdom()`; their $HOPYARD_VISDOM is its address. It
    begins with the plots of the last one. The link is valid once, within a minute.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.client.build_run import apply_options
    from hopyard.client.run_files import is_ended
    from hopyard.client.visdom_run import (
        check_interpreter,
        fetch_environments,
        find_visdom,
        list_visdom_runs,
        visdom_request,
    )
    from hopyard.config.run_request import parse_placement, parse_sizes

    interpreter = check_interpreter(options.pop("python"))
    request, sizes, placement = visdom_request(), parse_sizes(options), parse_placement(options)
    roles = tuple(replace(role, **sizes, **placement) for role in request.roles)
    request = replace(apply_options(request, options), roles=roles)
    page = {"print_only": print_only, "no_browser": no_browser, "as_json": as_json}
    client = connect()
    runs = list_visdom_runs(client)
    live = next((run for run in runs if not is_ended(run) and run["phase"] != "stopping"), None)
    if live is not None:
        print_message(f"run {live['name']} serves Visdom already; it keeps its options")
        return open_served(client, live, VISDOM_PORT[0], **page)
    request = replace(request, interpreter=find_visdom(interpreter))
    with tempfile.TemporaryDirectory() as folder:
        fetch_environments(client, runs, Path(folder))
        return submit_server(request, Path(folder), VISDOM_PORT[0], **page)
