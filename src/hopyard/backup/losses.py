"""What a home has lost of that to which its database refers, and whether an earlier backup has it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hopyard.backup.blob_files import BlobFiles, is_whole
from hopyard.backup.layout import BLOB_INDEX, LARGE, PACKS, STREAMS, files_below
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import referred_blobs
from hopyard.errors import IntegrityError
from hopyard.stores.sql.references import References


@dataclass(frozen=True, slots=True)
class Losses:
    """kept: files that stay in the backup though the home has them no more, relative to it. blobs: of these,
    whether any holds a blob. missing: blobs in use that neither has. unread: manifests that neither has, so
    that it is not known what they refer to. most: whether the home has lost more blobs, or streams of more
    runs, than it has."""

    kept: frozenset[Path]
    blobs: bool
    missing: tuple[Digest, ...]
    unread: bool
    most: bool


def find_losses(home: Path, folder: Path | None, used: References, *, index: Path, shared: bool) -> Losses:
    """folder: the earlier backup, None where nothing of it counts. index: of the home's blobs.
    shared: other homes may have what is in use."""
    here = BlobFiles(home, index)
    there = None if folder is None else BlobFiles(folder, folder / BLOB_INDEX)
    wanted, unread = set(used.blobs), False
    for manifest in used.manifests:
        wanted.add(manifest)
        data = here.read(manifest) or (None if there is None else there.read(manifest))
        try:
            wanted |= set() if data is None else referred_blobs(data)
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
    streams = set[Path]() if folder is None else _lost_streams(home, folder, used)
    gone = {path.parts[1] for path in streams if not (home / STREAMS / path.parts[1]).is_dir()}
    have = len([run for run in used.runs if (home / STREAMS / run).is_dir()])
    most = 2 * lost > len(wanted) - len(missing) or len(gone) > have
    return Losses(frozenset(kept | streams), bool(kept), tuple(missing), unread, most)


def _lost_streams(home: Path, folder: Path, used: References) -> set[Path]:
    return {
        path
        for path in files_below(folder, STREAMS)
        if path.parts[1] in used.runs and not (home / path).exists()
    }


def keeps_copy(home: Path, folder: Path, path: Path) -> bool:
    """Whether the copy that the backup has of `path` is not replaced by what the home has: a blob that is
    good, a stream that is longer."""
    copy = folder / path
    if not copy.exists():
        return False
    if path.is_relative_to(STREAMS):
        return (home / path).exists() and copy.stat().st_size > (home / path).stat().st_size
    return _holds_blobs(path) and is_whole(copy)


def is_damaged(home: Path, path: Path) -> bool:
    """Whether what the home has of a `path` with a kept copy is worse than the copy."""
    try:
        return not _holds_blobs(path) or not is_whole(home / path)
    except FileNotFoundError:
        return True


def _holds_blobs(path: Path) -> bool:
    return path.is_relative_to(PACKS) or path.is_relative_to(LARGE)
