"""`hop pull`: fetches what a run consists of and made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hopyard.api_client.client import Client
from hopyard.cli.options import last_run_argument
from hopyard.cli.run_text import Run
from hopyard.cli.terminal import console
from hopyard.client.download import download_tree
from hopyard.client.run_lookup import get_run
from hopyard.datasets.ignore_rules import HOPIGNORE
from hopyard.datasets.open_folder import OpenFolder
from hopyard.errors import IntegrityError, NotFound, SpecError

_BLOCK_BYTES = 1024 * 1024
_IGNORE_FILE_TEXT = "# by hop pull: what was fetched does not travel with later runs of the folder above\n*\n"


@click.command("pull")
@last_run_argument()
@click.argument("dest", required=False, type=click.Path(path_type=Path), metavar="[DEST]")
@click.option("--code", is_flag=True, help="The code as it was run.")
@click.option("--checkpoint", is_flag=True, help="The newest checkpoint, or the one of --step.")
@click.option("--files", is_flag=True, help="Files that the run made or changed in its folder.")
@click.option("--logs", is_flag=True, help="What it wrote to stdout and stderr.")
@click.option("--step", type=int, metavar="N", help="Which checkpoint.")
@click.option(
    "--force",
    is_flag=True,
    help="Write into DEST even if it holds something; parts of the same name are replaced.",
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
    """Fetch code, checkpoint, files and logs of RUN into DEST (a new folder named after the run); all unless
    some are named.

    A folder that is made for it has a `.hopignore`, so that what was fetched does not travel with later runs.
    """
    from hopyard.api_client.local_server import connect

    client = connect()
    run = client.get(f"/runs/{get_run(client, ref)['id']}")
    dest = dest or Path(f"{run['name'].split('/')[1]}-{run['name'].rpartition('/')[2]}")
    wanted = {"code": code, "checkpoint": checkpoint or step is not None, "files": files, "logs": logs}
    if not any(wanted.values()):
        wanted = dict.fromkeys(wanted, True)
    named = not all(wanted.values())
    parts = [part for part, chosen in wanted.items() if chosen]
    saved = _find_checkpoint(client, run, step) if "checkpoint" in parts else None
    _check_destination(dest, force)
    made = not dest.exists()
    try:
        dest.mkdir(parents=True, exist_ok=True)
    except OSError as broken:
        raise SpecError(f"{dest} cannot be made: {broken.strerror}", hints=("name another DEST",)) from broken
    try:
        with OpenFolder.open_path(dest) as top:
            if made:
                top.write(HOPIGNORE, [_IGNORE_FILE_TEXT.encode()])
            for part in parts:
                told = _PULL_FUNCTIONS[part](client, run, dest, force, saved, top)
                if told:
                    console.print_message(told)
                elif named:
                    console.print_message(f"note: {run['name']} has no {part}")
            top.write("run.json", [console.format_json(run).encode()])
    except OSError as broken:
        raise SpecError(
            f"{dest} cannot be written: {broken.strerror}", hints=("name another DEST",)
        ) from broken
    console.print_line(str(dest))


def _check_destination(dest: Path, force: bool) -> None:
    if dest.exists() and not dest.is_dir():
        raise SpecError(f"{dest} is not a folder", hints=("name another DEST",))
    if dest.is_dir() and any(dest.iterdir()) and not force:
        raise SpecError(f"{dest} is not empty", hints=("name another DEST, or --force to write into it",))


def _find_checkpoint(client: Client, run: Run, step: int | None) -> dict[str, Any] | None:
    """The checkpoint of `step`, or the newest that is not damaged; None where the run has none.
    Raises NotFound for a step without one, IntegrityError for a damaged one."""
    listed = {
        one["step"]: one for one in client.iterate_pages(f"/runs/{run['id']}/checkpoints", "checkpoints")
    }
    found = {at: one for at, one in listed.items() if not one.get("damaged")}
    if step is None:
        if listed and (not found or max(listed) > max(found)):
            console.print_message(
                f"warning: the checkpoint of step {max(listed)} is damaged"
                + (f": that of step {max(found)} is fetched" if found else ", and there is no other")
            )
        return found[max(found)] if found else None
    if step in listed and step not in found:
        raise IntegrityError(
            f"--step: the checkpoint of step {step} of {run['name']} is damaged",
            hints=(f"it has: {', '.join(map(str, sorted(found))) or 'no other'}",),
        )
    if step not in found:
        raise NotFound(
            f"--step: {run['name']} has no checkpoint at step {step}",
            hints=(f"it has: {', '.join(map(str, sorted(found))) or 'none'}",),
        )
    return dict(found[step])


def _pull_code(
    client: Client, run: Run, dest: Path, force: bool, _checkpoint: dict[str, Any] | None, _top: OpenFolder
) -> str:
    digest = run["spec"].get("code")
    return _pull_tree(client, digest, dest / "code", force) if digest else ""


def _pull_files(
    client: Client, run: Run, dest: Path, force: bool, _checkpoint: dict[str, Any] | None, _top: OpenFolder
) -> str:
    digest = run.get("artifact")
    return _pull_tree(client, digest, dest / "files", force) if digest else ""


def _pull_checkpoint(
    client: Client, _run: Run, dest: Path, force: bool, checkpoint: dict[str, Any] | None, _top: OpenFolder
) -> str:
    return (
        _pull_tree(client, checkpoint["manifest"], dest / f"checkpoint-{checkpoint['step']}", force)
        if checkpoint
        else ""
    )


def _pull_tree(client: Client, digest: str, into: Path, force: bool) -> str:
    from hopyard.cli.terminal.transfer_bar import TransferBar

    manifest = download_tree(client, digest, into, replace=force, on_progress=TransferBar)
    count = len(manifest.files)
    return f"{into}  {count:,} file{'' if count == 1 else 's'}, {console.format_bytes(manifest.size_bytes)}"


def _pull_logs(
    client: Client, run: Run, dest: Path, _force: bool, _saved: dict[str, Any] | None, top: OpenFolder
) -> str:
    size = sum(role["replicas"] for role in run["spec"]["roles"])
    total = 0
    with top.ensure_folder("logs") as folder:
        for rank in range(size):
            for stream in ("stdout", "stderr"):
                name = f"{stream}.log" if size == 1 else f"{rank}.{stream}.log"
                with client.open(
                    "GET", f"/runs/{run['id']}/log", query={"stream": stream, "rank": rank}
                ) as response:
                    # read before the loop goes on
                    total += folder.write(name, iter(lambda: response.read(_BLOCK_BYTES), b""))
    return f"{dest / 'logs'}  {console.format_bytes(total)}"


_PULL_FUNCTIONS: dict[str, Callable[[Client, Run, Path, bool, dict[str, Any] | None, OpenFolder], str]] = {
    "code": _pull_code, "checkpoint": _pull_checkpoint, "files": _pull_files, "logs": _pull_logs,
}  # fmt: skip
