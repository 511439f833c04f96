"""`hop notebook`: JupyterLab as a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hopyard.cli.options import json_option, session_options
from hopyard.cli.server_run import page_options, submit_server
from hopyard.cli.terminal.console import print_message
from hopyard.domain.run_port import NOTEBOOK_PORT


@click.command("notebook")
@click.argument("file", required=False, metavar="[FILE.ipynb]", type=click.Path())
@session_options
@page_options
@json_option
def notebook(file: str | None, print_only: bool, no_browser: bool, as_json: bool, **options: Any) -> int:
    """Run JupyterLab with the resources, data and environment of a run; open it in a browser.

    It begins with the files of the current folder. Files that change in JupyterLab are kept with the run:
    `hop pull` fetches them. The link is valid once, within a minute.
    """
    from dataclasses import replace

    from hopyard.client.build_run import build_request, check_code_folder, find_interpreter
    from hopyard.client.notebook_run import check_notebook, check_notebook_server, notebook_arguments

    folder = Path.cwd()
    check_code_folder(folder)
    interpreter = find_interpreter(options.get("python"))
    if options.get("requirements") is None:
        check_notebook_server(interpreter)
    name = None if file is None else check_notebook(file, folder)
    request = build_request("python", notebook_arguments(name), folder, options, notify=print_message)
    request = replace(
        request,
        ports=dict([NOTEBOOK_PORT]),
        label=request.label or "notebook",
        interpreter=interpreter or request.interpreter,
    )
    return submit_server(
        request, folder, NOTEBOOK_PORT[0], print_only=print_only, no_browser=no_browser, as_json=as_json
    )
