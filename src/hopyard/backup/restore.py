"""`hop restore`: a home made of a backup."""

from __future__ import annotations

import json
import secrets
import shutil
from pathlib import Path

from hopyard.backup import copying, postgres
from hopyard.backup.layout import BLOB_INDEX, DATABASE, DUMP, FOLDERS, BackupMark, files_below, read_mark, single_files
from hopyard.config.home import Home
from hopyard.config.settings import read_settings
from hopyard.datasets.progress import SILENT, Progress
from hopyard.errors import Conflict, SpecError, StorageFull, is_disk_full
from hopyard.private_files import make_folder, write_atomically


def restore_backup(folder: Path, home: Home, *, database: str | None = None, hold: bool = True, progress: Progress = SILENT) -> BackupMark:
    """Make `home`, which must not exist or be empty, of the backup in `folder`.

    database: the empty PostgreSQL database for a backup that has a dump of one; else that of the backup's settings. hold: the server
    of the home starts no run until its nodes are uncordoned, so that nothing runs twice beside the original.
    Raises NotFound or IntegrityError (see `read_mark`), Conflict where the home is in use, SpecError, StorageFull.
    """
    mark = read_mark(folder)
    if home.root.exists() and any(home.root.iterdir()):
        raise Conflict(f"the home {home.root} is not empty", hints=("name another one: HOPYARD_HOME=DIR hop restore …", "or move it away first"))
    url = database or read_settings(folder / home.settings_file.name).database
    if mark.database == "postgresql" and url is None:
        raise SpecError("the backup has a dump of a PostgreSQL database", hints=("name an empty database to restore it to: --database URL",))
    if mark.database == "sqlite" and database is not None:
        raise SpecError("--database: the backup holds an SQLite file, not a dump of PostgreSQL", hints=("leave --database out",))
    target = home.root if home.root.exists() else home.root.with_name(f"{home.root.name}.{secrets.token_hex(4)}.restoring")
    try:
        _copy(mark, folder, target, progress)
        if mark.database == "postgresql" and url is not None:
            postgres.restore(url, folder / DUMP)
            if database is not None:
                _set_database(target / home.settings_file.name, database)
        if hold:
            note = json.dumps({"created_at": mark.created_at, "home": mark.home}).encode() + b"\n"
            write_atomically(target / home.restored_file.name, note, durable=True)
        copying.flush(target)
        if target != home.root:
            target.rename(home.root)
    except BaseException as bad:
        _clear(target, itself=target != home.root)
        if isinstance(bad, OSError) and is_disk_full(bad):
            raise StorageFull(f"no space left at {home.root}", hints=("nothing was restored; restore to another disk",)) from bad
        raise
    return mark


def _copy(mark: BackupMark, folder: Path, target: Path, progress: Progress) -> None:
    make_folder(target)
    target.chmod(0o700)
    with copying.scratch_in(target) as scratch:
        _copy_files(mark, folder, target, scratch, progress)


def _copy_files(mark: BackupMark, folder: Path, target: Path, scratch: Path, progress: Progress) -> None:
    for name in (DATABASE, BLOB_INDEX) if mark.database == "sqlite" else (BLOB_INDEX,):
        if (folder / name).exists():
            copying.copy_database(folder / name, target / name, scratch)
    wanted = [*single_files(folder), *(path for one in FOLDERS for path in files_below(folder, one))]
    progress.begin("copying", sum((folder / path).stat().st_size for path in wanted))
    for path in wanted:
        copying.copy_file(folder / path, target / path, scratch, progress)


def _clear(target: Path, *, itself: bool) -> None:
    """Remove what was restored, so that the home is as it was: missing, or empty."""
    if itself:
        shutil.rmtree(target, ignore_errors=True)  # what could not be removed is told apart by its name
        return
    for path in target.iterdir():
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def _set_database(settings: Path, url: str) -> None:
    """The restored home uses the database that was named."""
    lines = settings.read_text().splitlines() if settings.exists() else []
    kept = [line for line in lines if not line.startswith("database:")]
    write_atomically(settings, "\n".join([*kept, f"database: {url}", ""]).encode(), durable=True)
