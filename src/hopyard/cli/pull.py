"""`hop pull`: downloads the code, checkpoint, files, logs, metrics and media of a run."""

from __future__ import annotations

from pathlib import Path

import click

from hopyard.cli.options import json_option, run_argument
from hopyard.cli.terminal import console
from hopyard.client.checkpoint_lookup import CheckpointChoice, parse_choice, split_reference
from hopyard.client.pull import PullResult, pull_run
from hopyard.client.run_lookup import get_run
from hopyard.errors import SpecError


@click.command("pull")
@run_argument(default="last", required=False, metavar="[RUN[@CHECKPOINT]]")
@click.argument("dest", required=False, type=click.Path(path_type=Path), metavar="[DEST]")
@click.option("--code", is_flag=True, help="The code as it was run.")
@click.option("--checkpoint", is_flag=True, help="The newest checkpoint, or the one of --step.")
@click.option("--files", is_flag=True, help="Files that the run made or changed in its folder.")
@click.option("--run-dir", is_flag=True, help="The files of its $HOPYARD_RUN_DIR.")
@click.option("--logs", is_flag=True, help="Its stdout and stderr.")
@click.option("--metrics", is_flag=True, help="Its metrics and its resource usage, as CSV.")
@click.option("--media", is_flag=True, help="The images and other media that it logged.")
@click.option(
    "--step", metavar="N|best", help="The step of the checkpoint, or the best one.  [default: the newest]"
)
@click.option(
    "--force",
    is_flag=True,
    help="Write into DEST even if it is not empty; files of the same name are replaced.",
)
@json_option
def pull(
    ref: str,
    dest: Path | None,
    code: bool,
    checkpoint: bool,
    files: bool,
    run_dir: bool,
    logs: bool,
    metrics: bool,
    media: bool,
    step: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Download code, checkpoint, files, logs, metrics and media of RUN to DEST.

    DEST is by default a new folder, which is named after the run. Without a selection, all of them are
    downloaded. A new folder gets a `.hopignore`, so that its contents do not travel with later runs.
    RUN@STEP, RUN@newest and RUN@best select the checkpoint and download it only, unless parts are selected.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.cli.terminal.transfer_bar import TransferBar

    ref, choice = _split_reference(ref, step)
    client = connect()
    run = client.get_run(get_run(client, ref)["id"])
    selected = {
        "code": code,
        "checkpoint": checkpoint or choice is not None,
        "files": files,
        "run-dir": run_dir,
        "logs": logs,
        "metrics": metrics,
        "media": media,
    }
    parts = [part for part, chosen in selected.items() if chosen] or list(selected)
    pulled: list[PullResult] = []

    def on_part(part: PullResult) -> None:
        pulled.append(part)
        console.print_message(part.text)

    folder = pull_run(
        client,
        run,
        dest,
        parts,
        step=choice,
        force=force,
        notify=console.print_message,
        on_part=on_part,
        on_progress=TransferBar,
    )
    if as_json:
        console.print_json(
            {
                "run": run["name"],
                "folder": str(folder),
                "parts": [
                    {
                        "part": part.part,
                        "path": str(part.path),
                        "files": part.files,
                        "size_bytes": part.size_bytes,
                    }
                    for part in pulled
                ],
            }
        )
        return
    console.print_line(str(folder))


def _split_reference(ref: str, step: str | None) -> tuple[str, CheckpointChoice]:
    """Returns the run and the checkpoint that its `@` or `--step` names. Raises SpecError for both."""
    run, choice = split_reference(ref)
    if choice is not None and step is not None:
        raise SpecError(f"--step: {ref} names a checkpoint, too", hints=("give only one of the two",))
    return run, choice if step is None else parse_choice(step, what="--step")
