"""`hop sync`: uploads runs that were recorded without a server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hopyard.cli.options import json_option
from hopyard.cli.terminal import console

if TYPE_CHECKING:
    from hopyard.errors import HopyardError
    from hopyard.sdk.sync_offline import SyncResult


@click.command("sync")
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path), metavar="[FOLDER]...")
@click.option("--keep", is_flag=True, help="Keep the folders; they count as sent.")
@json_option
@click.pass_context
def sync(context: click.Context, folders: tuple[Path, ...], keep: bool, as_json: bool) -> None:
    """Upload runs that plain `python main.py` recorded: all of them, or those in FOLDER….

    Sent data is removed from this machine. A repeated sync continues an interrupted one. Runs with a live
    script are skipped; the exit code is 1 if a run could not be sent.
    """
    from hopyard.api_client.local_server import connect
    from hopyard.config.home import Home
    from hopyard.sdk.sync_offline import StillRunning, clear_leftovers, offline_folders, sync_folders

    root = Home.default().offline
    for lost in clear_leftovers(root):
        console.print_message(
            f"note: {lost} cannot be sent without its run.json, which a full disk prevented; check its "
            "streams/, then remove it"
        )
    recordings = [_find_recordings(root, folder) for folder in folders] or offline_folders(root)
    if not recordings:
        console.print_message(f"nothing to sync below {root}")
    rows: list[dict[str, object]] = []
    for folder, outcome in (
        sync_folders(recordings, connect(), keep_folders=keep, on_progress=_draw_progress)
        if recordings
        else ()
    ):
        waits = isinstance(outcome, StillRunning) and not folders
        rows.append(_result_row(folder, outcome, is_running=waits))
        if not as_json:
            _print_result(folder, outcome, is_running=waits)
    if as_json:
        console.print_json(rows)
    if any(isinstance(outcome, str) for outcome in (row["error"] for row in rows)):
        context.exit(1)


def _find_recordings(root: Path, names: Path) -> Path:
    """Returns the folder of a path or of an id below the offline folder."""
    return root / names if not names.exists() and (root / names).is_dir() else names


def _result_row(folder: Path, outcome: SyncResult | HopyardError, *, is_running: bool) -> dict[str, object]:
    from hopyard.sdk.sync_offline import SyncResult

    if isinstance(outcome, SyncResult):
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
        "state": "running" if is_running else "failed",
        "error": None if is_running else outcome.message,
    }


def _print_result(folder: Path, outcome: SyncResult | HopyardError, *, is_running: bool) -> None:
    from hopyard.sdk.sync_offline import SyncResult

    if console.supports_cursor(sys.stderr):
        sys.stderr.write("\r\x1b[K")
    if isinstance(outcome, SyncResult):
        more = (
            f", {outcome.checkpoints} checkpoint{'s' if outcome.checkpoints != 1 else ''}"
            if outcome.checkpoints
            else ""
        )
        console.print_line(
            f"{outcome.run['name']}  {outcome.run['phase']}  "
            f"{console.format_bytes(outcome.stream_bytes)}{more}"
        )
    elif is_running:
        console.print_message(f"{folder.name}: its script still runs, or another `hop sync` sends it")
    else:
        place = "" if folder.name in outcome.message else f"{folder.name}: "
        console.print_message(f"error: {place}{outcome.message}")
        for hint in outcome.hints:
            console.print_message(f"hint: {hint}")


def _draw_progress(what: str, done: int, total: int) -> None:
    if total and console.supports_cursor(sys.stderr):
        amount = (
            f"{console.format_bytes(done)} of {console.format_bytes(total)}"
            if what == "streams"
            else f"{done} of {total}"
        )
        sys.stderr.write(f"\r\x1b[Ksending {what}: {amount}")
        sys.stderr.flush()
