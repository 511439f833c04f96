"""`hop backup`: a home copied while its server runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hopyard import __version__
from hopyard.backup import copying, postgres
from hopyard.backup.layout import BLOB_INDEX, DATABASE, DUMP, FOLDERS, MARK, NEW, BackupMark, files_below, read_mark, single_files
from hopyard.config.home import Home
from hopyard.config.settings import read_settings
from hopyard.datasets.progress import SILENT, Progress
from hopyard.errors import Conflict, NotFound, SpecError, StorageFull, is_disk_full
from hopyard.file_locks import try_lock
from hopyard.private_files import make_folder, open_file, write_atomically


def create_backup(home: Home, folder: Path, *, replace: bool = False, progress: Progress = SILENT) -> BackupMark:
    """Copy `home` to `folder`, or bring the backup there up to date. Blobs are not swept meanwhile. replace: the backup there may be
    one of another home, which is lost then.

    Raises NotFound where there is no home, SpecError where `folder` cannot be used, Conflict while another backup of the home is made
    or where the backup there is of another home, StorageFull.
    """
    if not home.root.is_dir():
        raise NotFound(f"there is no home at {home.root}", hints=("HOPYARD_HOME names another one",))
    _check_target(home, folder)
    if not replace:
        _check_same_home(home, folder)
    url = read_settings(home.settings_file).database
    try:
        make_folder(folder)
        folder.chmod(0o700)
        with _sweeping_held_off(home), copying.scratch_in(folder) as scratch:
            return _create(home.root, folder, url, scratch, progress)
    except OSError as bad:
        if is_disk_full(bad):
            hint = "what is there of an earlier backup was kept; free some space, or choose another folder"
            raise StorageFull(f"no space left at {folder}", hints=(hint,)) from bad
        raise


def _create(home: Path, folder: Path, url: str | None, scratch: Path, progress: Progress) -> BackupMark:
    staged = _stage_databases(home, folder, url, scratch)
    created_at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)  # nothing in the databases is later
    wanted = [*single_files(home), *(path for one in FOLDERS for path in files_below(home, one))]
    fresh = [path for path in wanted if not copying.is_same(home / path, folder / path)]
    progress.begin("copying", sum(_size(home / path) for path in fresh))
    for path in fresh:
        copying.copy_file(home / path, folder / path, scratch, progress)
    copying.flush_folders(folder, fresh)
    (folder / MARK).unlink(missing_ok=True)
    for name in (DATABASE, DUMP, BLOB_INDEX):
        if name in staged:
            staged[name].replace(folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
    _remove_others(folder, set(wanted))
    kept = [path for path in folder.rglob("*") if path.is_file() and scratch not in path.parents]
    kind = "sqlite" if url is None else "postgresql"
    size = sum(path.stat().st_size for path in kept)
    mark = BackupMark(created_at.isoformat(timespec="seconds"), str(home), __version__, kind, len(kept), size)
    write_atomically(folder / MARK, mark.encode(), durable=True)
    copying.flush(folder)
    return mark


def _stage_databases(home: Path, folder: Path, url: str | None, scratch: Path) -> dict[Path, Path]:
    """What takes the place of each database that the backup holds, once all that it refers to is there."""
    staged: dict[Path, Path] = {}
    if url is not None:
        staged[DUMP] = folder / f"{DUMP}{NEW}"
        staged[DUMP].unlink(missing_ok=True)
        os.close(open_file(staged[DUMP], os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        postgres.dump(url, staged[DUMP])
    for name in (BLOB_INDEX,) if url is not None else (DATABASE, BLOB_INDEX):
        if (home / name).exists():
            staged[name] = folder / f"{name}{NEW}"
            copying.copy_database(home / name, staged[name], scratch)
    return staged


def _remove_others(folder: Path, wanted: set[Path]) -> None:
    """What an earlier backup had and the home has no more."""
    for one in (None, *FOLDERS):
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
    """Raises Conflict where `folder` has the backup of another home: its only one, perhaps, and this home one whose disk is not mounted."""
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
        names = {path.name.removesuffix(NEW) for path in folder.iterdir()}
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
        return path.stat().st_size
    except FileNotFoundError:
        return 0
