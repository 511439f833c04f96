"""Finds files that the database of a home refers to and the home has lost, and checks an earlier backup for
them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hopyard.backup.blob_reader import BlobFolderReader, is_intact
from hopyard.backup.layout import BLOB_INDEX, LARGE_BLOBS, PACKS, STREAMS, files_below
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import referenced_blobs
from hopyard.errors import IntegrityError
from hopyard.stores.sql.references import References


@dataclass(frozen=True, slots=True)
class HomeLosses:
    """Lost files.

    retained: files that the backup retains although the home lost them, relative to the backup.
    has_retained_blobs: whether any of these holds a blob. missing: blobs in use that neither has.
    manifests_unreadable: neither has some manifests, so their references are unknown. mostly_lost: whether
    the home has lost more blobs, or the streams of more runs, than it has.
    """

    retained: frozenset[Path]
    has_retained_blobs: bool
    missing: tuple[Digest, ...]
    manifests_unreadable: bool
    mostly_lost: bool


def find_losses(
    home: Path, folder: Path | None, references: References, *, index: Path, shared: bool
) -> HomeLosses:
    """Compares the references of the database with the home and the earlier backup.

    folder: the earlier backup, or None to ignore it. index: the index of the home's blobs. shared: other
    homes may hold the missing blobs.
    """
    home_blobs = BlobFolderReader(home, index)
    backup_blobs = None if folder is None else BlobFolderReader(folder, folder / BLOB_INDEX)
    referenced, has_unreadable = set(references.blobs), False
    for manifest in references.manifests:
        referenced.add(manifest)
        data = home_blobs.read(manifest) or (None if backup_blobs is None else backup_blobs.read(manifest))
        try:
            referenced |= set() if data is None else referenced_blobs(data)
        except IntegrityError:
            data = None
        has_unreadable = has_unreadable or data is None
    retained, missing, lost_count = set[Path](), list[Digest](), 0
    for digest in sorted(referenced):
        if home_blobs.find(digest) is not None:
            continue
        path = (
            None if backup_blobs is None or backup_blobs.read(digest) is None else backup_blobs.find(digest)
        )
        if path is not None:
            retained.add(path)
            lost_count += 1
        elif not shared:
            missing.append(digest)
    streams = set[Path]() if folder is None else _lost_streams(home, folder, references)
    lost_runs = {path.parts[1] for path in streams if not (home / STREAMS / path.parts[1]).is_dir()}
    present_runs = len([run for run in references.runs if (home / STREAMS / run).is_dir()])
    mostly_lost = 2 * lost_count > len(referenced) - len(missing) or len(lost_runs) > present_runs
    return HomeLosses(
        frozenset(retained | streams), bool(retained), tuple(missing), has_unreadable, mostly_lost
    )


def _lost_streams(home: Path, folder: Path, references: References) -> set[Path]:
    return {
        path
        for path in files_below(folder, STREAMS)
        if path.parts[1] in references.runs and not (home / path).exists()
    }


def should_retain_copy(home: Path, folder: Path, path: Path) -> bool:
    """Returns whether the backup keeps its copy of `path`: an intact blob, or a stream that is longer than
    the home's."""
    copy = folder / path
    if not copy.exists():
        return False
    if path.is_relative_to(STREAMS):
        return (home / path).exists() and copy.stat().st_size > (home / path).stat().st_size
    return _is_blob_path(path) and is_intact(copy)


def is_worse_than_copy(home: Path, path: Path) -> bool:
    """Returns whether the home's file of a retained `path` is missing or worse than the copy."""
    try:
        return not _is_blob_path(path) or not is_intact(home / path)
    except FileNotFoundError:
        return True


def _is_blob_path(path: Path) -> bool:
    return path.is_relative_to(PACKS) or path.is_relative_to(LARGE_BLOBS)
