"""`hop backup` and `hop restore`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from hopyard.cli.options import json_option
from hopyard.cli.terminal import console
from hopyard.cli.terminal.times import format_clock
from hopyard.cli.terminal.transfer_bar import TransferBar
from hopyard.config.home import Home

_FOLDER = click.Path(file_okay=True, dir_okay=True, path_type=Path)
_MAX_NAMES_SHOWN = 20


@click.command("backup")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.option(
    "--replace",
    is_flag=True,
    help="Delete an earlier backup in DIR, even one of another home or database.",
)
@json_option
def backup(folder: Path, replace: bool, as_json: bool) -> int:
    """Copy the home of this machine to DIR while its server runs.

    DIR then holds the runs, datasets, checkpoints, logs, settings, tokens and secrets of one moment. A
    repeated backup to DIR copies only new files. Files that the home has lost or damaged since stay in DIR
    and are listed; the exit code is then 1. A backup of another home or another database in DIR is refused. A
    PostgreSQL database is dumped with `pg_dump`. Caches and the folders of live runs are left out.
    """
    from hopyard.api_client.local_server import check_own_server
    from hopyard.backup.create import create_backup

    home = Home.default()
    check_own_server(home)
    with TransferBar() as bar:
        copy = create_backup(home, folder.absolute(), replace=replace, progress=bar)
    mark, restorable, missing = copy.mark, [str(path) for path in copy.restorable], list(copy.missing)
    if as_json:
        console.print_json(
            {"folder": str(folder.absolute()), **asdict(mark), "restorable": restorable, "missing": missing}
        )
    else:
        console.print_message(
            f"backed up {mark.home} to {folder}: {mark.files:,} files, "
            f"{console.format_bytes(mark.size_bytes)}"
        )
    if restorable:
        console.print_message(
            f"warning: the home has lost or damaged {_shortened_list(restorable)}, which its database "
            "refers to; the backup keeps its copies"
        )
        console.print_message(
            f"hint: restore each with `cp -p {folder}/PATH {mark.home}/PATH`, then run `hop doctor --verify`"
        )
    if missing:
        console.print_message(
            "warning: neither the home nor the backup has "
            f"{_shortened_list([digest[:12] for digest in missing])} of the blobs in use"
        )
        console.print_message("hint: run `hop doctor --verify`, which lists what to repair")
    return 1 if restorable or missing else 0


def _shortened_list(names: list[str]) -> str:
    return ", ".join(names[:_MAX_NAMES_SHOWN]) + (
        f" and {len(names) - _MAX_NAMES_SHOWN} more" if len(names) > _MAX_NAMES_SHOWN else ""
    )


@click.command("restore")
@click.argument("folder", metavar="DIR", type=_FOLDER)
@click.option(
    "--database",
    metavar="URL",
    help="URL of the empty PostgreSQL database to restore to, for a backup with a database dump.",
)
@click.option(
    "--keep-database",
    is_flag=True,
    help="Restore only files: another server has already restored the database at URL.",
)
@click.option("--start-runs", is_flag=True, help="Start waiting runs at once, without `hop node uncordon`.")
@json_option
def restore(folder: Path, database: str | None, keep_database: bool, start_runs: bool, as_json: bool) -> None:
    """Restore the backup in DIR to the home of this machine (HOPYARD_HOME), which must be empty.

    Runs that were live at the backup are queued again from their newest checkpoints. They and all waiting
    runs start only after `hop node uncordon`, because the original server may still run them. Of servers that
    share a database, restore one with the database and the others with --keep-database.
    """
    from hopyard.api_client.local_server import check_own_server
    from hopyard.backup.restore import restore_backup

    home = Home.default()
    check_own_server(home)
    with TransferBar() as bar:
        mark = restore_backup(
            folder.absolute(),
            home,
            database=database,
            keep_database=keep_database,
            hold=not start_runs,
            progress=bar,
        )
    if as_json:
        console.print_json({"home": str(home.root), "held": not start_runs, "backup": asdict(mark)})
        return
    console.print_message(
        f"restored {mark.home} as it was at {format_clock(mark.created_at, show_seconds=True)} to {home.root}"
    )
    if not start_runs:
        console.print_message(
            "hint: its nodes are cordoned at the first start; run `hop node uncordon NODE` to start "
            "waiting runs"
        )
