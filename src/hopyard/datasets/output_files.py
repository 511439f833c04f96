"""The files that a run created or changed in its folder: which are stored, in which form, and which cannot be
stored."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hopyard.datasets.ignore_rules import SECRET_FILES
from hopyard.datasets.output_scan import UnstoredReason, scan_files
from hopyard.domain.path_filter import is_selected
from hopyard.domain.text import escape, shorten
from hopyard.private_files import open_no_follow

_BLOCK_BYTES = 1024 * 1024
_TIMESTAMP_GRANULARITY_NS = 20_000_000  # the kernel's clock for file times is late by up to one tick
_MAX_NAMES_SHOWN = 5

FileStamp = tuple[int, int, int, int]  # inode, size, mtime, ctime
FileStamps = Mapping[str, FileStamp]


RETAINED_OBSTACLES = (UnstoredReason.UNREADABLE,)  # these files are kept on the node


@dataclass(slots=True)
class ChangedFiles:
    """files: path of each regular file. links: paths of symbolic links. unstored: paths that cannot be
    stored, and why."""

    files: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    unstored: dict[str, UnstoredReason] = field(default_factory=dict)

    def select(self, patterns: Sequence[str]) -> list[str]:
        """Removes the files and links that the patterns do not select, and returns their paths. Without
        patterns, all are selected."""
        if not patterns:
            return []
        omitted = [path for path in (*self.files, *self.links) if not is_selected(path, patterns)]
        self.files = [path for path in self.files if is_selected(path, patterns)]
        self.links = [path for path in self.links if is_selected(path, patterns)]
        self.unstored = {
            path: reason for path, reason in self.unstored.items() if is_selected(path, patterns)
        }
        return omitted

    def without_unchanged(self, work: Path, tree: Path) -> ChangedFiles:
        """Returns the files that differ from those in `tree`, the code of the run."""
        return ChangedFiles(
            [path for path in self.files if has_different_content(work / path, tree / path)],
            [path for path in self.links if _link_text(work / path) != _link_text(tree / path)],
            {path: reason for path, reason in self.unstored.items() if not os.path.lexists(tree / path)},
        )


@dataclass(frozen=True, slots=True)
class StorableFiles:
    """files: the path in the run's folder, by path in the stored tree. links: the target text of each
    symbolic link, by path."""

    files: Mapping[str, str]
    links: Mapping[str, str]
    unstored: Mapping[str, UnstoredReason]


def scan_stamps(work: Path) -> FileStamps:
    """Returns a stamp of each file below `work` that changes with every write.

    The most recently written files are left out: another write within the same tick of the file system's
    clock might not change their stamp.
    """
    stamps = {path: _stamp(stat_result) for path, stat_result, _ in scan_files(work)}
    newest_ns = max((changed_ns for *_, changed_ns in stamps.values()), default=0)
    return {path: stamp for path, stamp in stamps.items() if newest_ns - stamp[3] > _TIMESTAMP_GRANULARITY_NS}


def changed_since(work: Path, old_stamps: FileStamps | None) -> ChangedFiles:
    """Returns the files below `work` that are not in `before`, or were written to since. Without `before`:
    all.

    Each file is compared with itself: the file system's times may come from another clock than this
    process's, and either may be set back meanwhile. Every write sets ctime, and no program can choose it.
    """
    stamps, changed = old_stamps or {}, ChangedFiles()
    for path, stat_result, obstacle in scan_files(work):
        if stamps.get(path) == _stamp(stat_result):
            continue
        if obstacle is not None:
            changed.unstored[path] = obstacle
        elif stat.S_ISLNK(stat_result.st_mode):
            changed.links.append(path)
        else:
            changed.files.append(path)
    return changed


def select_storable(work: Path, changes: ChangedFiles) -> StorableFiles:
    """Selects what is stored. A link within the folder stays a link if its target is stored as well. If it
    leads to another file of the folder, that file is stored in its place."""
    top = os.path.realpath(work)
    files, links, unstored = {path: path for path in changes.files}, {}, dict(changes.unstored)
    stored = {*changes.files, *(parent for path in changes.files for parent in _parent_folders(path))}
    for path in changes.links:
        if _link_text(work / path) is None:
            continue  # removed meanwhile
        real = os.path.realpath(work / path)
        target = real[len(top) + 1 :] if real.startswith(top + "/") else ""
        if target in stored:
            links[path] = os.path.relpath(target, os.path.dirname(path) or ".")
        elif (
            target
            and target not in changes.unstored
            and os.path.basename(target) not in SECRET_FILES
            and _is_readable_file(real)
        ):
            files[path] = target
        elif target in changes.unstored:
            unstored[path] = changes.unstored[target]
        elif os.path.basename(target) in SECRET_FILES:
            unstored[path] = UnstoredReason.SECRET
        else:
            is_inner = (real == top or target) and os.path.isdir(real)
            unstored[path] = UnstoredReason.FOLDER_LINK if is_inner else UnstoredReason.LINK
    return StorableFiles(files, links, unstored)


def describe_paths(paths: list[str]) -> str:
    """Returns the subject of a sentence about these paths."""
    names = ", ".join(f"`{escape(shorten(path))}`" for path in paths[:_MAX_NAMES_SHOWN])
    rest_text = f" and {len(paths) - _MAX_NAMES_SHOWN} more" if len(paths) > _MAX_NAMES_SHOWN else ""
    return f"{len(paths)} {'file' if len(paths) == 1 else 'files'} of the run's folder ({names}{rest_text})"


def has_different_content(file: Path, other: Path) -> bool:
    """Returns whether `other` is not a file with the same bytes."""
    try:
        with os.fdopen(open_no_follow(file, os.O_RDONLY), "rb") as stream, other.open("rb") as other_stream:
            if os.fstat(stream.fileno()).st_size != os.fstat(other_stream.fileno()).st_size:
                return True
            while block := stream.read(_BLOCK_BYTES):
                if block != other_stream.read(_BLOCK_BYTES):
                    return True
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return True
    return False


def _link_text(path: Path) -> str | None:
    """Returns the text of a link, or None if there is none (any more)."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def _parent_folders(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _is_readable_file(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.R_OK)


def _stamp(stat_result: os.stat_result) -> FileStamp:
    return stat_result.st_ino, stat_result.st_size, stat_result.st_mtime_ns, stat_result.st_ctime_ns
