"""Implements `hop backup`: copies a home while its server runs."""

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
    """The result of a backup.

    mark: the mark of the new backup. restorable: referenced files that the home lost or damaged and the
    backup retains, relative to both. missing: blobs in use that neither has.
    """

    mark: BackupMark
    restorable: tuple[Path, ...] = ()
    missing: tuple[Digest, ...] = ()


def create_backup(
    home: Home, folder: Path, *, replace: bool = False, progress: ProgressListener = NO_PROGRESS
) -> Backup:
    """Copies `home` to `folder`, or updates the backup there. No blobs are garbage-collected meanwhile.

    The backup retains files that the database refers to and that the home lost or damaged. replace: discards
    the backup there, even if it is of another home.

    Raises NotFound if there is no home, SpecError if `folder` cannot be used, and StorageFull. Raises
    Conflict while another backup of the home is made, or if the backup there is of another home or database.
    Also raises Conflict if the home has lost most of its files.
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
    except OSError as error:
        if is_disk_full(error):
            hint = "free some space, or choose another folder; the earlier backup there is intact"
            raise StorageFull(f"no space left at {folder}", hints=(hint,)) from error
        raise


def _create(
    home: Path, folder: Path, url: str | None, scratch: Path, progress: ProgressListener, *, replace: bool
) -> Backup:
    # Before the dump, so that references that are removed in the meantime are included.
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
    # no entry of the databases is later
    created_at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)
    index = staged.get(BLOB_INDEX, home / BLOB_INDEX)
    losses = find_losses(home, None if replace else folder, used, index=index, shared=url is not None)
    if losses.mostly_lost:
        raise mostly_lost_error(home, folder)
    paths = [
        *top_level_files(home),
        *(path for subfolder in FOLDERS for path in files_below(home, subfolder)),
    ]
    changed, restorable = [], set(losses.retained)
    for path in paths:
        if path in restorable or copying.is_up_to_date(home / path, folder / path):
            continue
        if replace or not should_retain_copy(home, folder, path):
            changed.append(path)
        elif is_worse_than_copy(home, path):
            restorable.add(path)
        else:
            copying.copy_times(home / path, folder / path)
    progress.begin("copying", sum(_file_size(home / path) for path in changed))
    copying.remove_blocking_links(folder, changed)
    for path in changed:
        copying.copy_file(home / path, folder / path, scratch, progress)
    copying.fsync_folders(folder, changed)
    (folder / MARK_FILE).unlink(missing_ok=True)
    # The home's index lacks the retained blobs. A restore rebuilds the index from all files.
    if losses.has_retained_blobs:
        staged.pop(BLOB_INDEX, None)
    for name in (DATABASE, DUMP, BLOB_INDEX):
        if name in staged:
            staged[name].replace(folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
    _remove_outdated(folder, {*paths, *restorable}, blobs=replace or not losses.manifests_unreadable)
    backup_files = [
        path
        for path in folder.rglob("*")
        if (path.is_symlink() or path.is_file()) and scratch not in path.parents
    ]
    kind = "sqlite" if url is None else "postgresql"
    size = sum(path.lstat().st_size for path in backup_files)
    mark = BackupMark(
        created_at.isoformat(timespec="seconds"),
        str(home),
        __version__,
        kind,
        len(backup_files),
        size,
        database_id=used.database_id,
    )
    write_atomically(folder / MARK_FILE, mark.encode(), durable=True)
    copying.fsync_path(folder)
    return Backup(mark, tuple(sorted(restorable)), losses.missing)


def _stage_databases(home: Path, url: str | None, scratch: Path) -> dict[Path, Path]:
    """Returns a copy of each database of the home, by its path in the backup."""
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
    """Removes files of an earlier backup that the home no longer has. blobs: also removes files of blobs."""
    for root in (None, *FOLDERS):
        if root in (PACKS, LARGE_BLOBS) and not blobs:
            continue
        present = top_level_files(folder) if root is None else files_below(folder, root)
        for path in list(present):
            if path not in expected:
                (folder / path).unlink()
        if root is not None and (folder / root).is_dir():
            copying.remove_empty_folders(folder / root)


@contextmanager
def _gc_paused(home: Home) -> Iterator[None]:
    """Blocks the garbage collection of blobs. Raises Conflict during a collection or another backup."""
    make_folder(home.gc_lock.parent)
    with try_lock(home.gc_lock) as locked:
        if not locked:
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
