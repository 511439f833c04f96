"""Checks the target folder of a backup, so that no existing files are lost without consent."""

from __future__ import annotations

import os
from pathlib import Path

from hopyard.backup import copying
from hopyard.backup.layout import DATABASE, DUMP, database_id_of, read_mark
from hopyard.config.home import Home
from hopyard.errors import Conflict, NotFound, SpecError


def check_target(home: Home, folder: Path) -> None:
    root, target = home.root.resolve(), folder.resolve()
    if target == root or root in target.parents or target in root.parents:
        raise SpecError(
            f"{folder} and the home {home.root} overlap: one is inside the other",
            hints=("choose a folder elsewhere, best on another disk",),
        )
    if folder.exists() and not folder.is_dir():
        raise SpecError(f"{folder} is not a folder")
    if folder.is_dir():
        if folder.stat().st_uid != os.getuid():
            raise SpecError(
                f"{folder} belongs to another user",
                hints=("choose a folder of your own: a backup holds tokens and secrets",),
            )
        if any(folder.iterdir()) and not _is_backup(folder):
            raise SpecError(
                f"{folder} holds other files",
                hints=("choose an empty folder, or one with an earlier backup",),
            )


def check_same_home(home: Home, folder: Path) -> None:
    """Raises Conflict if `folder` holds the backup of another home. It may be the only backup, and this home
    may be an unmounted disk."""
    try:
        backup_home = read_mark(folder).home
    except NotFound:
        return
    backup_mark = folder / home.mark_file.name
    if backup_home == str(home.root) and (not backup_mark.exists() or _is_equal(backup_mark, home.mark_file)):
        return
    owner = "an earlier home" if backup_home == str(home.root) else "the home"
    raise Conflict(
        f"{folder} holds the backup of {owner} {backup_home}",
        hints=(
            f"set HOPYARD_HOME if {home.root} is the wrong home, or choose another folder",
            "if that home was moved here or no longer exists, run `hop backup --replace`",
        ),
    )


def check_database_present(home: Home, folder: Path, url: str | None) -> None:
    """Raises Conflict if the backup has a database and the home has none, or one of another kind."""
    backup_database = DATABASE if (folder / DATABASE).exists() else DUMP
    if (folder / backup_database).exists() and (url is None) != (backup_database == DATABASE):
        raise _other_database_error(folder, "was moved: check `database:` in the config.yaml of the home")
    if (
        url is None
        and backup_database == DATABASE
        and (folder / backup_database).exists()
        and not home.database.exists()
    ):
        raise _other_database_error(folder, f"is missing: {home.database} does not exist")


def check_same_database(folder: Path, database_id: str) -> None:
    """Raises Conflict if the backup is of another database, for example if the home started with an empty
    one."""
    try:
        backup_id = database_id_of(read_mark(folder), folder)
    except NotFound:
        return
    if backup_id and backup_id != database_id:
        raise _other_database_error(folder, "is now a different database, perhaps an empty one")


def _other_database_error(folder: Path, reason: str) -> Conflict:
    return Conflict(
        f"the database of the backup in {folder} {reason}",
        hints=(
            f"restore the database of the home: {folder / DATABASE} may have it; or choose another folder",
            "if that database no longer exists, run `hop backup --replace` (it deletes the backup's copy)",
        ),
    )


def mostly_lost_error(home: Path, folder: Path) -> Conflict:
    return Conflict(
        f"{home} lacks most of the blobs or streams that {folder} has and its database refers to",
        hints=(
            (
                f"mount all disks of the home, or copy the files back: `cp -an {folder}/blobs/packs "
                f"{folder}/blobs/large {home}/blobs/`, `cp -an {folder}/streams {home}/`, then `hop doctor "
                "--verify`"
            ),
            "if they can be abandoned: `hop backup --replace`, or choose another folder",
        ),
    )


def _is_equal(retained: Path, current: Path) -> bool:
    try:
        return retained.read_bytes() == current.read_bytes()
    except FileNotFoundError:
        return False


def _is_backup(folder: Path) -> bool:
    """Returns whether `folder` holds a complete or interrupted backup."""
    try:
        read_mark(folder)
        return True
    except NotFound:
        names = {path.name for path in folder.iterdir()}
        return bool(names & {str(DATABASE), str(DUMP), copying.SCRATCH_FOLDER})
