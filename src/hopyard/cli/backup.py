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
    help="Give up what DIR has of an earlier backup, also of another home or database.",
)
@json_option
def backup(folder: Path, replace: bool, as_json: bool) -> int:
    """Copy the home of this machine to DIR while its server runs.

    DIR then holds the runs, datasets, checkpoints, logs, settings, tokens and secrets of one moment. Backed
    up there again, only what is new is copied. What the home has lost or damaged since, though its database
    refers to it, stays in DIR, and is named; the exit code is 1 then. The backup of another home or another
    database there is refused. A PostgreSQL database is dumped with `pg_dump`. Caches and the folders of live
    runs are left out.
    """
    from hopyard.api_client.local_server import check_own_server
    from hopyard.backup.create import create_backup

    home = Home.default()
    check_own_server(home)
    with TransferBar() as bar:
        made = create_backup(home, folder.absolute(), replace=replace, progress=bar)
    mark, restorable, missing = made.mark, [str(path) for path in made.restorable], list(made.missing)
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
            "refers to; "
            "the copies in the backup stay"
        )
        console.print_message(
            f"hint: to restore each: cp -p {folder}/PATH {mark.home}/PATH; then `hop doctor --verify` "
            "takes it in"
        )
    if missing:
        console.print_message(
            "warning: neither the home nor the backup has "
            f"{_shortened_list([digest[:12] for digest in missing])} of the blobs in use"
        )
        console.print_message("hint: `hop doctor --verify` says what to do")
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
    help="The empty PostgreSQL database to restore to, where the backup has a dump of one.",
)
@click.option(
    "--keep-database",
    is_flag=True,
    help="The database at URL was restored already, with another server of it: restore only files.",
)
@click.option(
    "--start-runs", is_flag=True, help="Start what waits at once, not only when `hop node uncordon` says so."
)
@json_option
def restore(folder: Path, database: str | None, keep_database: bool, start_runs: bool, as_json: bool) -> None:
    """Make the home of this machine (HOPYARD_HOME), which must be empty, of the backup in DIR.

    Runs that were live then are queued again, from their newest checkpoints. They and all that waits start
    only after `hop node uncordon`: the original may still run them. Of servers that share a database, restore
    one with it and the others with --keep-database.
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
            "hint: its nodes are cordoned at the first start; `hop node uncordon NODE` starts what waits"
        )
