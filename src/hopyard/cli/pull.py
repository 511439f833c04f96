"""`hop pull`: downloads the code, checkpoint, files and logs of a run."""

from __future__ import annotations

from pathlib import Path

import click

from hopyard.cli.options import last_run_argument
from hopyard.cli.terminal import console
from hopyard.client.pull import pull_run
from hopyard.client.run_lookup import get_run


@click.command("pull")
@last_run_argument()
@click.argument("dest", required=False, type=click.Path(path_type=Path), metavar="[DEST]")
@click.option("--code", is_flag=True, help="The code as it was run.")
@click.option("--checkpoint", is_flag=True, help="The newest checkpoint, or the one of --step.")
@click.option("--files", is_flag=True, help="Files that the run made or changed in its folder.")
@click.option("--logs", is_flag=True, help="Its stdout and stderr.")
@click.option("--step", type=int, metavar="N", help="The step of the checkpoint.  [default: the newest]")
@click.option(
    "--force",
    is_flag=True,
    help="Write into DEST even if it is not empty; parts of the same name are replaced.",
)
def pull(
    ref: str,
    dest: Path | None,
    code: bool,
    checkpoint: bool,
    files: bool,
    logs: bool,
    step: int | None,
    force: bool,
) -> None:
    """Download code, checkpoint, files and logs of RUN to DEST, by default a new folder named after the run.

    Without a selection, all of them are downloaded. A new folder gets a `.hopignore`, so that its contents do
    not travel with later runs.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.cli.terminal.transfer_bar import TransferBar

    client = connect()
    run = client.get_run(get_run(client, ref)["id"])
    selected = {"code": code, "checkpoint": checkpoint or step is not None, "files": files, "logs": logs}
    parts = [part for part, chosen in selected.items() if chosen] or list(selected)
    folder = pull_run(
        client,
        run,
        dest,
        parts,
        step=step,
        force=force,
        notify=console.print_message,
        on_part=console.print_message,
        on_progress=TransferBar,
    )
    console.print_line(str(folder))
