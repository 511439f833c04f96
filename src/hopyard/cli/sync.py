"""`hop sync`: bring runs that were recorded without a server to the server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hopyard.cli import console
from hopyard.cli.options import json_option

if TYPE_CHECKING:
    from hopyard.errors import HopyardError
    from hopyard.sdk.ship import Shipped


@click.command("sync")
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path), metavar="[FOLDER]...")
@click.option("--keep", is_flag=True, help="Leave the folders where they are; they count as sent.")
@json_option
@click.pass_context
def sync(context: click.Context, folders: tuple[Path, ...], keep: bool, as_json: bool) -> None:
    """Upload runs that were recorded by plain `python main.py`: all of them, or those in FOLDER….

    What was sent is removed here. Broken off, it goes on where it was. Scripts that still run are left for
    later; the exit code is 1 when something could not be sent.
    """
    from hopyard.config.home import Home
    from hopyard.sdk.connect import connect
    from hopyard.sdk.ship import StillRunning, clear_leftovers, offline_folders, ship_all

    root = Home.default().offline
    for lost in clear_leftovers(root):
        console.say(
            f"note: {lost} cannot be sent: it has no run.json, for which its disk had no room; look at "
            "its streams/, then remove it"
        )
    wanted = [_find(root, folder) for folder in folders] or offline_folders(root)
    if not wanted:
        console.say(f"nothing to sync below {root}")
    rows: list[dict[str, object]] = []
    for folder, outcome in ship_all(wanted, connect(), keep=keep, tell=_draw) if wanted else ():
        waits = isinstance(outcome, StillRunning) and not folders
        rows.append(_row(folder, outcome, waits=waits))
        if not as_json:
            _print(folder, outcome, waits=waits)
    if as_json:
        console.out_json(rows)
    if any(isinstance(outcome, str) for outcome in (row["error"] for row in rows)):
        context.exit(1)


def _find(root: Path, given: Path) -> Path:
    """A folder, or the id of one below the offline folder."""
    return root / given if not given.exists() and (root / given).is_dir() else given


def _row(folder: Path, outcome: Shipped | HopyardError, *, waits: bool) -> dict[str, object]:
    from hopyard.sdk.ship import Shipped

    if isinstance(outcome, Shipped):
        run = outcome.run
        sent = {
            "id": run["id"],
            "run": run["name"],
            "phase": run["phase"],
            "bytes": outcome.stream_bytes,
            "checkpoints": outcome.checkpoints,
        }
        return {"folder": str(folder), "state": "sent", "error": None, **sent}
    return {
        "folder": str(folder),
        "state": "running" if waits else "failed",
        "error": None if waits else outcome.message,
    }


def _print(folder: Path, outcome: Shipped | HopyardError, *, waits: bool) -> None:
    from hopyard.sdk.ship import Shipped

    if console.can_draw(sys.stderr):
        sys.stderr.write("\r\x1b[K")
    if isinstance(outcome, Shipped):
        more = (
            f", {outcome.checkpoints} checkpoint{'s' if outcome.checkpoints != 1 else ''}"
            if outcome.checkpoints
            else ""
        )
        console.out(
            f"{outcome.run['name']}  {outcome.run['phase']}  {console.bytes_text(outcome.stream_bytes)}{more}"
        )
    elif waits:
        console.say(f"{folder.name}: its script still runs, or another `hop sync` sends it")
    else:
        console.say(f"error: {outcome.message}")
        for hint in outcome.hints:
            console.say(f"hint: {hint}")


def _draw(what: str, done: int, total: int) -> None:
    if total and console.can_draw(sys.stderr):
        amount = (
            f"{console.bytes_text(done)} of {console.bytes_text(total)}"
            if what == "streams"
            else f"{done} of {total}"
        )
        sys.stderr.write(f"\r\x1b[Ksending {what}: {amount}")
        sys.stderr.flush()
