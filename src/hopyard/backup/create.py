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
    LARGE,
    MARK,
    PACKS,
    BackupMark,
    database_id_of,
    files_below,
    read_mark,
    single_files,
)
from hopyard.backup.losses import find_losses, is_damaged, keeps_copy
from hopyard.config.home import Home
from hopyard.config.settings import read_settings
from hopyard.datasets.progress import SILENT, Progress
from hopyard.domain.ids import Digest
from hopyard.errors import Conflict, NotFound, SpecError, StorageFull, is_disk_full
from hopyard.file_locks import try_lock
from hopyard.private_files import make_folder, open_file, write_atomically
from hopyard.stores.sql.references import References, read_references


@dataclass(frozen=True, slots=True)
class Backup:
    """mark: of the backup that was made. restorable: files that the home lost or damaged though its database refers to them, and that are kept in
    the backup, relative to both. missing: blobs in use that neither has."""

    mark: BackupMark
    restorable: tuple[Path, ...] = ()
    missing: tuple[Digest, ...] = ()


def create_backup(home: Home, folder: Path, *, replace: bool = False, progress: Progress = SILENT) -> Backup:
    """Copy `home` to `folder`, or bring the backup there up to date. Blobs are not swept meanwhile. What the database refers to and the home has
    no more, or has damaged, stays in the backup. replace: the backup there is lost, whatever it has; it may be one of another home.

    Raises NotFound where there is no home, SpecError where `folder` cannot be used, Conflict while another backup of the home is made,
    where the backup there is of another home or database, or where the home has lost most of what it has; StorageFull.
    """
    if not home.root.is_dir():
        raise NotFound(f"there is no home at {home.root}", hints=("HOPYARD_HOME names another one",))
    _check_target(home, folder)
    url = read_settings(home.settings_file).database
    if not replace:
        _check_same_home(home, folder)
        _check_database_there(home, folder, url)
    try:
        make_folder(folder)
        folder.chmod(0o700)
        with _sweeping_held_off(home), copying.scratch_in(folder) as scratch:
            return _create(home.root, folder, url, scratch, progress, replace=replace)
    except OSError as bad:
        if is_disk_full(bad):
            hint = "what is there of an earlier backup was kept; free some space, or choose another folder"
            raise StorageFull(f"no space left at {folder}", hints=(hint,)) from bad
        raise


def _create(home: Path, folder: Path, url: str | None, scratch: Path, progress: Progress, *, replace: bool) -> Backup:
    used = read_references(url) if url is not None else None  # before the dump: what is removed meanwhile is in it
    staged = _stage_databases(home, url, scratch)
    if used is None:
        used = read_references(staged[DATABASE]) if DATABASE in staged else References("", frozenset(), frozenset(), frozenset())
    if not replace:
        _check_same_database(folder, used.database_id)
    created_at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)  # nothing in the databases is later
    index = staged.get(BLOB_INDEX, home / BLOB_INDEX)
    losses = find_losses(home, None if replace else folder, used, index=index, shared=url is not None)
    if losses.most:
        raise _most_is_lost(home, folder)
    wanted = [*single_files(home), *(path for one in FOLDERS for path in files_below(home, one))]
    fresh, restorable = [], set(losses.kept)
    for path in wanted:
        if path in restorable or copying.is_same(home / path, folder / path):
            continue
        if replace or not keeps_copy(home, folder, path):
            fresh.append(path)
        elif is_damaged(home, path):
            restorable.add(path)
        else:
            copying.copy_times(home / path, folder / path)
    progress.begin("copying", sum(_size(home / path) for path in fresh))
    copying.remove_links_in_the_way(folder, fresh)
    for path in fresh:
        copying.copy_file(home / path, folder / path, scratch, progress)
    copying.flush_folders(folder, fresh)
    (folder / MARK).unlink(missing_ok=True)
    if losses.blobs:  # the home's index does not know them: it is made again, of all files, when the backup is restored
        staged.pop(BLOB_INDEX, None)
    for name in (DATABASE, DUMP, BLOB_INDEX):
        if name in staged:
            staged[name].replace(folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
    _remove_others(folder, {*wanted, *restorable}, blobs=replace or not losses.unread)
    kept = [path for path in folder.rglob("*") if (path.is_symlink() or path.is_file()) and scratch not in path.parents]
    kind = "sqlite" if url is None else "postgresql"
    size = sum(path.lstat().st_size for path in kept)
    mark = BackupMark(created_at.isoformat(timespec="seconds"), str(home), __version__, kind, len(kept), size, database_id=used.database_id)
    write_atomically(folder / MARK, mark.encode(), durable=True)
    copying.flush(folder)
    return Backup(mark, tuple(sorted(restorable)), losses.missing)


def _stage_databases(home: Path, url: str | None, scratch: Path) -> dict[Path, Path]:
    """What takes the place of each database that the backup holds, once all that it refers to is there."""
    staged: dict[Path, Path] = {}
    if url is not None:
        staged[DUMP] = scratch / DUMP
        os.close(open_file(staged[DUMP], os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        postgres.dump(url, staged[DUMP])
    for name in (BLOB_INDEX,) if url is not None else (DATABASE, BLOB_INDEX):
        if (home / name).exists():
            staged[name] = scratch / name.name
            copying.copy_database(home / name, staged[name], scratch)
    return staged


def _remove_others(folder: Path, wanted: set[Path], *, blobs: bool) -> None:
    """What an earlier backup had and the home has no more. blobs: also files of blobs."""
    for one in (None, *FOLDERS):
        if one in (PACKS, LARGE) and not blobs:
            continue
        there = single_files(folder) if one is None else files_below(folder, one)
        for path in list(there):
            if path not in wanted:
                (folder / path).unlink()
        if one is not None and (folder / one).is_dir():
            copying.remove_empty_folders(folder / one)


def _check_target(home: Home, folder: Path) -> None:
    root, target = home.root.resolve(), folder.resolve()
    if target == root or root in target.parents or target in root.parents:
        raise SpecError(f"{folder} and the home {home.root} are inside each other", hints=("choose a folder elsewhere, best on another disk",))
    if folder.exists() and not folder.is_dir():
        raise SpecError(f"{folder} is not a folder")
    if folder.is_dir():
        if folder.stat().st_uid != os.getuid():
            raise SpecError(f"{folder} belongs to another user", hints=("choose a folder of your own: a backup holds tokens and secrets",))
        if any(folder.iterdir()) and not _is_backup(folder):
            raise SpecError(f"{folder} holds other files", hints=("choose an empty folder, or one with an earlier backup",))


def _check_same_home(home: Home, folder: Path) -> None:
    """Raises Conflict where `folder` has the backup of another home: its only one, perhaps, and this home one on a disk that is not mounted."""
    try:
        earlier = read_mark(folder).home
    except NotFound:
        return
    kept = folder / home.mark_file.name
    if earlier == str(home.root) and (not kept.exists() or _is_equal(kept, home.mark_file)):
        return
    raise Conflict(
        f"{folder} holds the backup of the home {earlier}" + (", one before this" if earlier == str(home.root) else ""),
        hints=(
            f"is this the right home: {home.root}? HOPYARD_HOME names it; or choose another folder",
            "where that home was moved here or is gone for good: `hop backup --replace`",
        ),
    )


def _check_database_there(home: Home, folder: Path, url: str | None) -> None:
    """Raises Conflict where the backup has a database and the home has none, or one of another kind."""
    had = DATABASE if (folder / DATABASE).exists() else DUMP
    if (folder / had).exists() and (url is None) != (had == DATABASE):
        raise _other_database(folder, "is in another place now: see `database:` in its config.yaml")
    if url is None and had == DATABASE and (folder / had).exists() and not home.database.exists():
        raise _other_database(folder, f"is gone: there is no {home.database}")


def _check_same_database(folder: Path, now: str) -> None:
    """Raises Conflict where the backup is of another database than this, as of a home that began with an empty one."""
    try:
        before = database_id_of(read_mark(folder), folder)
    except NotFound:
        return
    if before and before != now:
        raise _other_database(folder, "is another one now, perhaps an empty one")


def _other_database(folder: Path, why: str) -> Conflict:
    return Conflict(
        f"the database of which {folder} has a backup {why}",
        hints=(
            f"give the home its database back: {folder / DATABASE} may have it; or choose another folder",
            "where that database is gone for good: `hop backup --replace`, which gives up what the backup has",
        ),
    )


def _most_is_lost(home: Path, folder: Path) -> Conflict:
    return Conflict(
        f"{home} has lost most of the blobs or streams that {folder} has, and that its database refers to",
        hints=(
            f"are all disks of the home mounted? To copy them back: `cp -an {folder}/blobs/packs {folder}/blobs/large {home}/blobs/`, `cp -an {folder}/streams {home}/`, then `hop doctor --verify`",
            "where they are to be given up: `hop backup --replace`, or another folder",
        ),
    )


def _is_equal(kept: Path, now: Path) -> bool:
    try:
        return kept.read_bytes() == now.read_bytes()
    except FileNotFoundError:
        return False


def _is_backup(folder: Path) -> bool:
    """Whole or broken off."""
    try:
        read_mark(folder)
        return True
    except NotFound:
        names = {path.name for path in folder.iterdir()}
        return bool(names & {str(DATABASE), str(DUMP), copying.SCRATCH})


@contextmanager
def _sweeping_held_off(home: Home) -> Iterator[None]:
    """No blob goes within. Raises Conflict while blobs are swept, or another backup is made."""
    make_folder(home.sweep_lock.parent)
    with try_lock(home.sweep_lock) as free:
        if not free:
            raise Conflict("blobs are being swept, or another backup is being made", hints=("try again in a minute",))
        yield


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0
