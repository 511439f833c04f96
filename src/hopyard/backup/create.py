"""`hop backup`: a home copied while its server runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hopyard import __version__
from hopyard.backup import copying, postgres
from hopyard.backup.layout import (
    BLOB_INDEX,
    DATABASE,
    DUMP,
    FOLDERS,
    LARGE_BLOBS,
    MARK_FILE,
    PACKS,
    BackupMark,
    files_below,
    top_level_files,
)
from hopyard.backup.losses import find_losses, is_worse_than_copy, should_retain_copy
from hopyard.backup.target import (
    check_database_present,
    check_same_database,
    check_same_home,
    check_target,
    mostly_lost_error,
)
from hopyard.config.home import Home
from hopyard.config.settings import read_settings
from hopyard.datasets.progress import NO_PROGRESS, ProgressListener
from hopyard.domain.ids import Digest
from hopyard.errors import Conflict, NotFound, StorageFull, is_disk_full
from hopyard.file_locks import try_lock
from hopyard.private_files import make_folder, open_file, write_atomically
from hopyard.stores.sql.references import References, read_references


@dataclass(frozen=True, slots=True)
class Backup:
    """mark: of the backup that was made. restorable: files that the home lost or damaged though its database
    refers to them, and that are kept in the backup, relative to both. missing: blobs in use that neither
    has."""

    mark: BackupMark
    restorable: tuple[Path, ...] = ()
    missing: tuple[Digest, ...] = ()


def create_backup(
    home: Home, folder: Path, *, replace: bool = False, progress: ProgressListener = NO_PROGRESS
) -> Backup:
    """Copy `home` to `folder`, or bring the backup there up to date. Blobs are not swept meanwhile. What the
    database refers to and the home has no more, or has damaged, stays in the backup. replace: the backup
    there is lost, whatever it has; it may be one of another home.

    Raises NotFound where there is no home, SpecError where `folder` cannot be used, Conflict while another
    backup of the home is made, where the backup there is of another home or database, or where the home has
    lost most of what it has; StorageFull.
    """
    if not home.root.is_dir():
        raise NotFound(
            f"there is no home at {home.root}", hints=("set HOPYARD_HOME to the folder of a home",)
        )
    check_target(home, folder)
    url = read_settings(home.settings_file).database
    if not replace:
        check_same_home(home, folder)
        check_database_present(home, folder, url)
    try:
        make_folder(folder)
        folder.chmod(0o700)
        with _gc_paused(home), copying.scratch_folder(folder) as scratch:
            return _create(home.root, folder, url, scratch, progress, replace=replace)
    except OSError as bad:
        if is_disk_full(bad):
            hint = "free some space, or choose another folder; the earlier backup there is intact"
            raise StorageFull(f"no space left at {folder}", hints=(hint,)) from bad
        raise


def _create(
    home: Path, folder: Path, url: str | None, scratch: Path, progress: ProgressListener, *, replace: bool
) -> Backup:
    # before the dump: what is removed meanwhile is in it
    used = read_references(url) if url is not None else None
    staged = _stage_databases(home, url, scratch)
    if used is None:
        used = (
            read_references(staged[DATABASE])
            if DATABASE in staged
            else References("", frozenset(), frozenset(), frozenset())
        )
    if not replace:
        check_same_database(folder, used.database_id)
    # nothing in the databases is later
    created_at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
    index = staged.get(BLOB_INDEX, home / BLOB_INDEX)
    losses = find_losses(home, None if replace else folder, used, index=index, shared=url is not None)
    if losses.mostly_lost:
        raise mostly_lost_error(home, folder)
    wanted = [*top_level_files(home), *(path for one in FOLDERS for path in files_below(home, one))]
    fresh, restorable = [], set(losses.retained)
    for path in wanted:
        if path in restorable or copying.is_up_to_date(home / path, folder / path):
            continue
        if replace or not should_retain_copy(home, folder, path):
            fresh.append(path)
        elif is_worse_than_copy(home, path):
            restorable.add(path)
        else:
            copying.copy_times(home / path, folder / path)
    progress.begin("copying", sum(_file_size(home / path) for path in fresh))
    copying.remove_blocking_links(folder, fresh)
    for path in fresh:
        copying.copy_file(home / path, folder / path, scratch, progress)
    copying.fsync_folders(folder, fresh)
    (folder / MARK_FILE).unlink(missing_ok=True)
    # the home's index does not know them: it is made again, of all files, when the backup is restored
    if losses.has_retained_blobs:
        staged.pop(BLOB_INDEX, None)
    for name in (DATABASE, DUMP, BLOB_INDEX):
        if name in staged:
            staged[name].replace(folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
    _remove_outdated(folder, {*wanted, *restorable}, blobs=replace or not losses.manifests_unreadable)
    kept = [
        path
        for path in folder.rglob("*")
        if (path.is_symlink() or path.is_file()) and scratch not in path.parents
    ]
    kind = "sqlite" if url is None else "postgresql"
    size = sum(path.lstat().st_size for path in kept)
    mark = BackupMark(
        created_at.isoformat(timespec="seconds"),
        str(home),
        __version__,
        kind,
        len(kept),
        size,
        database_id=used.database_id,
    )
    write_atomically(folder / MARK_FILE, mark.encode(), durable=True)
    copying.fsync_path(folder)
    return Backup(mark, tuple(sorted(restorable)), losses.missing)


def _stage_databases(home: Path, url: str | None, scratch: Path) -> dict[Path, Path]:
    """What takes the place of each database that the backup holds, once all that it refers to is there."""
    staged: dict[Path, Path] = {}
    if url is not None:
        staged[DUMP] = scratch / DUMP
        os.close(open_file(staged[DUMP], os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        postgres.dump_database(url, staged[DUMP])
    for name in (BLOB_INDEX,) if url is not None else (DATABASE, BLOB_INDEX):
        if (home / name).exists():
            staged[name] = scratch / name.name
            copying.copy_database(home / name, staged[name], scratch)
    return staged


def _remove_outdated(folder: Path, expected: set[Path], *, blobs: bool) -> None:
    """What an earlier backup had and the home has no more. blobs: also files of blobs."""
    for one in (None, *FOLDERS):
        if one in (PACKS, LARGE_BLOBS) and not blobs:
            continue
        there = top_level_files(folder) if one is None else files_below(folder, one)
        for path in list(there):
            if path not in expected:
                (folder / path).unlink()
        if one is not None and (folder / one).is_dir():
            copying.remove_empty_folders(folder / one)


@contextmanager
def _gc_paused(home: Home) -> Iterator[None]:
    """No blob goes within. Raises Conflict while blobs are swept, or another backup is made."""
    make_folder(home.gc_lock.parent)
    with try_lock(home.gc_lock) as free:
        if not free:
            raise Conflict(
                "a garbage collection of blobs or another backup is in progress",
                hints=("try again in a minute",),
            )
        yield


def _file_size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0
