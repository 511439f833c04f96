"""Implements `hop restore`: makes a home from a backup."""

from __future__ import annotations

import glob
import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

from hopyard.backup import copying, postgres
from hopyard.backup.layout import (
    BLOB_INDEX,
    DATABASE,
    DUMP,
    FOLDERS,
    BackupMark,
    database_id_of,
    files_below,
    read_mark,
    top_level_files,
)
from hopyard.config.home import Home
from hopyard.config.settings import read_settings
from hopyard.datasets.progress import NO_PROGRESS, ProgressListener
from hopyard.errors import Conflict, SpecError, StorageFull, is_disk_full
from hopyard.private_files import make_folder, write_atomically
from hopyard.stores.sql.references import read_references

# The suffix of an incomplete home, after the process ID of the restore.
_RESTORING_FILE = ".restoring"


def restore_backup(
    folder: Path,
    home: Home,
    *,
    database: str | None = None,
    keep_database: bool = False,
    hold: bool = True,
    progress: ProgressListener = NO_PROGRESS,
) -> BackupMark:
    """Makes `home`, which must be missing or empty, from the backup in `folder`.

    database: the empty PostgreSQL database for a backup that holds a dump; by default the one in the settings
    of the backup. keep_database: the database already holds the content of the dump, restored with another
    server; only files are restored. hold: the server of the home starts no run until its nodes are
    uncordoned, so that no run runs twice beside the original.

    Raises NotFound or IntegrityError (see `read_mark`), Conflict if the home is in use, SpecError,
    StorageFull.
    """
    mark = read_mark(folder)
    if home.root.exists() and any(home.root.iterdir()):
        raise Conflict(
            f"the home {home.root} is not empty",
            hints=("choose another folder: HOPYARD_HOME=DIR hop restore …", "or move it away first"),
        )
    url = database or read_settings(folder / home.settings_file.name).database
    if mark.database == "postgresql" and url is None:
        raise SpecError(
            "the backup contains a dump of a PostgreSQL database",
            hints=("set an empty database to restore into: --database URL",),
        )
    if mark.database == "sqlite" and database is not None:
        raise SpecError(
            "--database: the backup holds an SQLite file, not a dump of PostgreSQL",
            hints=("leave --database out",),
        )
    if mark.database == "postgresql" and url is not None:
        _check_database(mark, folder, url, keep_database=keep_database)
    elif keep_database:
        raise SpecError(
            "--keep-database: the backup holds an SQLite file, not a dump of PostgreSQL",
            hints=("leave it out",),
        )
    for leftover in home.root.parent.glob(f"{glob.escape(home.root.name)}.*{_RESTORING_FILE}"):
        if (pid := leftover.name.removesuffix(_RESTORING_FILE).rpartition(".")[2]).isdecimal() and not Path(
            f"/proc/{pid}"
        ).exists():
            shutil.rmtree(leftover, ignore_errors=True)  # of a restore that was killed
    target = (
        home.root
        if home.root.exists()
        else home.root.with_name(f"{home.root.name}.{os.getpid()}{_RESTORING_FILE}")
    )
    try:
        _copy_backup(mark, folder, target, progress)
        if mark.database == "postgresql" and url is not None:
            if not keep_database:
                postgres.restore_database(url, folder / DUMP)
            if database is not None:
                _set_database(target / home.settings_file.name, database)
        if hold:
            # A retained database may be later than these files: its live runs cannot have ended before.
            created_at = datetime.now(UTC).isoformat(timespec="seconds") if keep_database else mark.created_at
            note = json.dumps({"created_at": created_at, "home": mark.home}).encode() + b"\n"
            write_atomically(target / home.restored_file.name, note, durable=True)
        copying.fsync_path(target)
        if target != home.root:
            target.rename(home.root)
    except BaseException as error:
        _remove_restored(target, itself=target != home.root)
        if isinstance(error, OSError) and is_disk_full(error):
            raise StorageFull(
                f"no space left at {home.root}", hints=("nothing was restored; restore to another disk",)
            ) from error
        raise
    return mark


def _check_database(mark: BackupMark, folder: Path, url: str, *, keep_database: bool) -> None:
    """Raises Conflict if the database at `url` is not empty, or, with `keep_database`, is not the one of the
    backup."""
    present_id, backup_id = read_references(url).database_id, database_id_of(mark, folder)
    if keep_database and present_id != backup_id:
        problem = "is empty" if not present_id else "is not the database of this backup"
        raise Conflict(
            f"the database {problem}, so there is nothing to keep",
            hints=("remove --keep-database, and set an empty database",),
        )
    if present_id and not keep_database:
        hint = (
            f"to keep the content of this backup that it holds: `hop restore {folder} --database "
            "URL --keep-database` restores only the files"
        )
        raise Conflict(
            "the database is not empty",
            hints=((hint,) if present_id == backup_id else ()) + ("set an empty database: --database URL",),
        )


def _copy_backup(mark: BackupMark, folder: Path, target: Path, progress: ProgressListener) -> None:
    make_folder(target)
    target.chmod(0o700)
    with copying.scratch_folder(target) as scratch:
        _copy_files(mark, folder, target, scratch, progress)


def _copy_files(
    mark: BackupMark, folder: Path, target: Path, scratch: Path, progress: ProgressListener
) -> None:
    for name in (DATABASE, BLOB_INDEX) if mark.database == "sqlite" else (BLOB_INDEX,):
        if (folder / name).exists():
            copying.copy_database(folder / name, target / name, scratch)
    paths = [
        *top_level_files(folder),
        *(path for subfolder in FOLDERS for path in files_below(folder, subfolder)),
    ]
    progress.begin("copying", sum((folder / path).lstat().st_size for path in paths))
    for path in paths:
        copying.copy_file(folder / path, target / path, scratch, progress)


def _remove_restored(target: Path, *, itself: bool) -> None:
    """Removes restored files, so that the home is missing or empty as before. itself: also removes the
    folder."""
    if itself:
        # files that cannot be removed stay under the temporary name
        shutil.rmtree(target, ignore_errors=True)
        return
    for path in target.iterdir():
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() and not path.is_symlink() else path.unlink(
            missing_ok=True
        )


def _set_database(settings: Path, url: str) -> None:
    """Sets the database in the settings of the restored home."""
    lines = settings.read_text().splitlines() if settings.exists() else []
    other_lines = [line for line in lines if not line.startswith("database:")]
    write_atomically(settings, "\n".join([*other_lines, f"database: {url}", ""]).encode(), durable=True)
