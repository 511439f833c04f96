"""What a home has lost of that to which its database refers, and whether an earlier backup has it."""

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
    """retained: files that stay in the backup though the home has them no more, relative to it.
    has_retained_blobs: of these, whether any holds a blob. missing: blobs in use that neither has.
    manifests_unreadable: manifests that neither has, so that it is not known what they refer to. mostly_lost:
    whether the home has lost more blobs, or streams of more runs, than it has."""

    retained: frozenset[Path]
    has_retained_blobs: bool
    missing: tuple[Digest, ...]
    manifests_unreadable: bool
    mostly_lost: bool


def find_losses(
    home: Path, folder: Path | None, references: References, *, index: Path, shared: bool
) -> HomeLosses:
    """folder: the earlier backup, None where nothing of it counts. index: of the home's blobs.
    shared: other homes may have what is in use."""
    here = BlobFolderReader(home, index)
    there = None if folder is None else BlobFolderReader(folder, folder / BLOB_INDEX)
    wanted, unread = set(references.blobs), False
    for manifest in references.manifests:
        wanted.add(manifest)
        data = here.read(manifest) or (None if there is None else there.read(manifest))
        try:
            wanted |= set() if data is None else referenced_blobs(data)
        except IntegrityError:
            data = None
        unread = unread or data is None
    kept, missing, lost = set[Path](), list[Digest](), 0
    for digest in sorted(wanted):
        if here.find(digest) is not None:
            continue
        path = None if there is None or there.read(digest) is None else there.find(digest)
        if path is not None:
            kept.add(path)
            lost += 1
        elif not shared:
            missing.append(digest)
    streams = set[Path]() if folder is None else _lost_streams(home, folder, references)
    gone = {path.parts[1] for path in streams if not (home / STREAMS / path.parts[1]).is_dir()}
    have = len([run for run in references.runs if (home / STREAMS / run).is_dir()])
    most = 2 * lost > len(wanted) - len(missing) or len(gone) > have
    return HomeLosses(frozenset(kept | streams), bool(kept), tuple(missing), unread, most)


def _lost_streams(home: Path, folder: Path, references: References) -> set[Path]:
    return {
        path
        for path in files_below(folder, STREAMS)
        if path.parts[1] in references.runs and not (home / path).exists()
    }


def should_retain_copy(home: Path, folder: Path, path: Path) -> bool:
    """Whether the copy that the backup has of `path` is not replaced by what the home has: a blob that is
    good, a stream that is longer."""
    copy = folder / path
    if not copy.exists():
        return False
    if path.is_relative_to(STREAMS):
        return (home / path).exists() and copy.stat().st_size > (home / path).stat().st_size
    return _is_blob_path(path) and is_intact(copy)


def is_worse_than_copy(home: Path, path: Path) -> bool:
    """Whether what the home has of a `path` with a kept copy is worse than the copy."""
    try:
        return not _is_blob_path(path) or not is_intact(home / path)
    except FileNotFoundError:
        return True


def _is_blob_path(path: Path) -> bool:
    return path.is_relative_to(PACKS) or path.is_relative_to(LARGE_BLOBS)
