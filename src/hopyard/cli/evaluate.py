"""`hop evaluate`: a run that evaluates the checkpoints of another run, also while that trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from hopyard.cli.options import detach_option, json_option, param_option, run_argument, session_options
from hopyard.cli.terminal.console import print_message


@click.command("evaluate")
@run_argument()
@click.argument("what", metavar="SCRIPT|COMMAND|FILE.yaml")
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENT...]", type=click.UNPROCESSED)
@param_option
@click.option("--checkpoint", type=int, metavar="STEP", help="Evaluate only the checkpoint of this step.")
@click.option(
    "--newest",
    is_flag=True,
    help="Skip checkpoints when a newer one is complete, for an evaluation that is slower than the training.",
)
@click.option(
    "--follow/--no-follow",
    default=True,
    help="Wait for further checkpoints until RUN has ended.  [default: follow]",
)
@session_options
@detach_option
@json_option
def evaluate(
    ref: str,
    what: str,
    arguments: tuple[str, ...],
    checkpoint: int | None,
    newest: bool,
    follow: bool,
    detach: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Evaluate the checkpoints of RUN, each once, by a script in a run of its own.

    The script iterates over `hop.checkpoints()`. Its metrics appear in RUN at the steps of the checkpoints.
    RUN does not wait for it. The evaluation ends when RUN has ended and all checkpoints are evaluated. The
    current folder is packed, as for `hop run`.
    """
    from dataclasses import replace

    from hopyard.api_client.local_server import connect
    from hopyard.cli.attach import attach_to_run
    from hopyard.cli.terminal.transfer_bar import TransferBar
    from hopyard.client.build_run import build_request, check_code_folder, find_interpreter, target_folder
    from hopyard.client.param_forms import with_param_format
    from hopyard.client.run_lookup import get_run
    from hopyard.client.submit import submit_run

    evaluated = get_run(connect(), ref)
    folder = Path.cwd()
    request = build_request(what, arguments, folder, options, notify=print_message)
    code_folder = target_folder(what, folder)
    check_code_folder(code_folder)
    request = with_param_format(request, code_folder, notify=print_message)
    request = replace(
        request,
        evaluation={"run": evaluated["id"], "newest": newest, "step": checkpoint, "follow": follow},
    )
    client, submitted = submit_run(
        request,
        code_folder,
        interpreter=find_interpreter(options.get("python")),
        notify=print_message,
        on_progress=TransferBar,
    )
    print_message(f"evaluates {evaluated['name']}")
    return attach_to_run(client, submitted, detach=detach, as_json=as_json, folder=code_folder)
