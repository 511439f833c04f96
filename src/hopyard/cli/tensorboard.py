"""`hop tensorboard`: TensorBoard of several runs, as a run."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hopyard.cli.options import json_option, name_option, project_option, run_argument
from hopyard.cli.server_run import apply_server_options, server_options, submit_server
from hopyard.domain.run_port import TENSORBOARD_PORT


@click.command("tensorboard")
@run_argument("refs", nargs=-1, required=True, metavar="RUN...")
@name_option
@project_option
@server_options("TensorBoard")
@json_option
def tensorboard(
    refs: tuple[str, ...], print_only: bool, no_browser: bool, as_json: bool, **options: Any
) -> int:
    """Show the metrics and event files of runs in TensorBoard; open it in a browser.

    New points of live runs appear by themselves. Runs that only log with `hop.log` are shown, too. The link
    is valid once, within a minute.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.client.run_lookup import get_run
    from hopyard.client.server_interpreter import check_interpreter
    from hopyard.client.tensorboard_run import find_tensorboard, tensorboard_request

    interpreter = find_tensorboard(check_interpreter(options.pop("python")))
    client = connect()
    request = tensorboard_request(get_run(client, ref)["id"] for ref in refs)
    request = replace(apply_server_options(request, options), interpreter=interpreter)
    with tempfile.TemporaryDirectory() as empty:  # the run needs no code
        return submit_server(
            request,
            Path(empty),
            TENSORBOARD_PORT[0],
            print_only=print_only,
            no_browser=no_browser,
            as_json=as_json,
        )
