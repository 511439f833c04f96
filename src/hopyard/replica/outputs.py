"""The files that a run made or changed in its folder: which are stored, as what, and which cannot be."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from hopyard.datasets.ignore import CACHES, REPOSITORIES, SECRETS
from hopyard.domain.manifest import is_path, is_repository_name
from hopyard.domain.text import shown
from hopyard.private_files import open_plain

_BLOCK_BYTES = 1024 * 1024
_TICK_NS = 20_000_000  # the kernel's clock of file times is behind by up to one of its ticks
_NAMES_SHOWN = 5
_COMPILED = (".pyc", ".pyo", ".nbi", ".nbc")  # what Python and Numba keep in `__pycache__`

Stamp = tuple[int, int, int, int]  # inode, size, mtime, ctime
Stamps = Mapping[str, Stamp]


class Obstacle(StrEnum):
    """Why something is not stored, as the run says it."""

    NAME = "their names hold control characters or a backslash, or are not UTF-8, or too long"
    UNREADABLE = "they may not be read"
    LINK = "they are links that lead out of the run's folder or to nothing"
    SECRET = "they hold passwords and keys"
    TOOLS = "they are virtual environments, `node_modules` or repositories"


KEPT = (Obstacle.NAME, Obstacle.UNREADABLE)  # of which the files are kept on the node


@dataclass(slots=True)
class Outputs:
    """files: path of each regular file. links: paths of symbolic links.
    unstored: paths of what cannot be stored, and why."""

    files: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    unstored: dict[str, Obstacle] = field(default_factory=dict)

    def unlike(self, work: Path, tree: Path) -> Outputs:
        """Those that are not the same in `tree`, the code of the run."""
        return Outputs(
            [path for path in self.files if differs(work / path, tree / path)],
            [
                path
                for path in self.links
                if not (tree / path).is_symlink() or os.readlink(work / path) != os.readlink(tree / path)
            ],
            {path: why for path, why in self.unstored.items() if not os.path.lexists(tree / path)},
        )


@dataclass(frozen=True, slots=True)
class Storable:
    """files: by path in the stored tree, the path in the run's folder.
    links: by path, the text of the symbolic link."""

    files: Mapping[str, str]
    links: Mapping[str, str]
    unstored: Mapping[str, Obstacle]


def stamps(work: Path) -> Stamps:
    """What lies below `work` now: by path, what changes with every write to a file. The files that were
    written last are left out: another write within the same tick of the file system's clock might not
    show."""
    found = {path: _stamp(about) for path, about, _ in _walk(work, "")}
    newest_ns = max((changed_ns for *_, changed_ns in found.values()), default=0)
    return {path: stamp for path, stamp in found.items() if newest_ns - stamp[3] > _TICK_NS}


def written(work: Path, before: Stamps | None) -> Outputs:
    """What lies below `work` and was not there `before`, or was written to since. Without `before`: all.

    Compared is each file with itself: the file system's times may come from another clock than this
    process's, and either may be set back meanwhile. Every write sets ctime, and no program can choose it.
    Left out without a word: pipes, sockets, devices, and the caches of Python and other tools.
    """
    known, found = before or {}, Outputs()
    for path, about, obstacle in _walk(work, ""):
        if known.get(path) == _stamp(about):
            continue
        if obstacle is not None:
            found.unstored[path] = obstacle
        elif stat.S_ISLNK(about.st_mode):
            found.links.append(path)
        else:
            found.files.append(path)
    return found


def storable(work: Path, found: Outputs) -> Storable:
    """A link within the folder stays a link where what it leads to is stored as well.
    Where it leads to another file of the folder, that file is stored in its place."""
    top = os.path.realpath(work)
    files, links, unstored = {path: path for path in found.files}, {}, dict(found.unstored)
    stored = {*found.files, *(above for path in found.files for above in _above(path))}
    for path in found.links:
        real = os.path.realpath(work / path)
        target = real[len(top) + 1 :] if real.startswith(top + "/") else ""
        if target in stored:
            links[path] = os.path.relpath(target, os.path.dirname(path) or ".")
        elif (
            target
            and found.unstored.get(target, Obstacle.NAME) is Obstacle.NAME
            and os.path.basename(target) not in SECRETS
            and _is_readable_file(real)
        ):
            files[path] = target
        else:
            unstored[path] = Obstacle.LINK
    return Storable(files, links, unstored)


def sentence_of(paths: list[str]) -> str:
    """How these are named in a sentence about them."""
    names = ", ".join(f"`{shown(path)}`" for path in paths[:_NAMES_SHOWN])
    more = f" and {len(paths) - _NAMES_SHOWN} more" if len(paths) > _NAMES_SHOWN else ""
    return f"{len(paths)} {'file' if len(paths) == 1 else 'files'} of the run's folder ({names}{more})"


def differs(file: Path, other: Path) -> bool:
    """Whether `other` is not a file with the same bytes."""
    try:
        with os.fdopen(open_plain(file, os.O_RDONLY), "rb") as ours, other.open("rb") as theirs:
            if os.fstat(ours.fileno()).st_size != os.fstat(theirs.fileno()).st_size:
                return True
            while block := ours.read(_BLOCK_BYTES):
                if block != theirs.read(_BLOCK_BYTES):
                    return True
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return True
    return False


def _above(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def _is_readable_file(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.R_OK)


def _stamp(about: os.stat_result) -> Stamp:
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


def _walk(root: Path, prefix: str) -> Iterator[tuple[str, os.stat_result, Obstacle | None]]:
    """Files and links, and what cannot be stored. Of a folder that is left out whole, only the folder
    itself."""
    try:
        with os.scandir(root) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        path, is_folder = prefix + entry.name, entry.is_dir(follow_symlinks=False)
        try:
            about = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # another replica removed it
            continue
        if _is_cache(path, entry.name) or not (
            is_folder or stat.S_ISREG(about.st_mode) or stat.S_ISLNK(about.st_mode)
        ):
            continue
        obstacle = _obstacle(entry, path, is_folder=is_folder)
        if is_folder and obstacle in (None, Obstacle.NAME):
            yield from _walk(Path(entry.path), path + "/")
        else:
            yield path, about, obstacle


def _is_cache(path: str, name: str) -> bool:
    return name in CACHES or (
        f"/{path}".endswith(f"/__pycache__/{name}")
        and any(f"{suffix}." in f"{name}." for suffix in _COMPILED)
    )


def _obstacle(entry: os.DirEntry[str], path: str, *, is_folder: bool) -> Obstacle | None:
    if entry.name in SECRETS:
        return Obstacle.SECRET
    if entry.name in REPOSITORIES or is_repository_name(entry.name):
        return Obstacle.TOOLS
    if is_folder and (entry.name == "node_modules" or os.path.isfile(f"{entry.path}/pyvenv.cfg")):
        return Obstacle.TOOLS
    if not is_path(path):
        return Obstacle.NAME
    if not entry.is_symlink() and not os.access(entry.path, os.R_OK | os.X_OK if is_folder else os.R_OK):
        return Obstacle.UNREADABLE
    return None
