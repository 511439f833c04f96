"""`hop visdom`: the Visdom server of a user, as a run."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hopyard.cli.options import json_option
from hopyard.cli.server_run import apply_server_options, open_served, server_options, submit_server
from hopyard.cli.terminal.console import print_message
from hopyard.domain.run_port import VISDOM_PORT


@click.command("visdom")
@server_options("Visdom")
@json_option
def visdom(print_only: bool, no_browser: bool, as_json: bool, **options: Any) -> int:
    """Run your Visdom server, and open it in a browser. If it is live already, it is opened.

    Runs that start while it is live reach it by `visdom.Visdom()`; their $HOPYARD_VISDOM is its address. It
    begins with the plots of the last one. The link is valid once, within a minute.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.client.run_files import is_ended
    from hopyard.client.server_interpreter import check_interpreter
    from hopyard.client.visdom_run import fetch_environments, find_visdom, list_visdom_runs, visdom_request

    interpreter = check_interpreter(options.pop("python"))
    request = apply_server_options(visdom_request(), options)
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
