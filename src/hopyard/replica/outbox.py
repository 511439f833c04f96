"""Trees that go from a replica to the server: checkpoints, and what a run leaves behind in its folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hopyard.datasets.ignore import CODE, EVERYTHING
from hopyard.datasets.pack import pack
from hopyard.datasets.transfer import push
from hopyard.datasets.tree import PackedTree
from hopyard.domain.manifest import is_path
from hopyard.private_files import FOLDER_MODE, open_inside, open_plain
from hopyard.sdk.client import Client

_STAGE = "outputs"
_BLOCK_BYTES = 1024 * 1024
_TICK_NS = 20_000_000  # the kernel's clock of file times is behind by up to one of its ticks

Stamp = tuple[int, int, int, int]  # inode, size, mtime, ctime
Stamps = Mapping[str, Stamp]


def push_folder(client: Client, folder: int) -> PackedTree:
    """Pack a folder, given by its descriptor, and see that the server holds all of it. Raises SpecError when it changes meanwhile, ServerUnavailable."""
    tree = pack(Path(f"/proc/self/fd/{folder}"), rules=EVERYTHING)
    push(tree, client)
    return tree


def push_files(client: Client, root: Path, work: Path, paths: list[str]) -> PackedTree:
    """Send these files of `work` as a tree. They are staged below `root` as hard links, to be packed like any other tree.

    Other replicas of the run may still write to both: each folder is reached through no link, and written to by its descriptor."""
    name = f"{_STAGE}-{os.urandom(8).hex()}"
    (root / name).mkdir(FOLDER_MODE)
    try:
        with _opened(root, name) as stage:
            for path in paths:
                above, _, last = path.rpartition("/")
                with _opened(root, f"{work.name}/{above}") as source, _made(stage, above) as target:
                    os.link(last, last, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
            return push_folder(client, stage)
    finally:
        shutil.rmtree(root / name, ignore_errors=True)


@contextmanager
def _opened(root: Path, path: str) -> Iterator[int]:
    descriptor = open_inside(root, path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _made(folder: int, path: str) -> Iterator[int]:
    """A folder below another one, made where it is missing."""
    descriptor = os.dup(folder)
    try:
        for name in filter(None, path.split("/")):
            with suppress(FileExistsError):
                os.mkdir(name, FOLDER_MODE, dir_fd=descriptor)
            above, descriptor = descriptor, os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
            os.close(above)
        yield descriptor
    finally:
        os.close(descriptor)


def stamps(work: Path) -> Stamps:
    """What lies below `work` now: by path, what changes with every write to a file. The files that were written last are left out:
    another write within the same tick of the file system's clock might not show."""
    found = {path: _stamp(about) for path, about in _walk(work, "")}
    newest_ns = max((changed_ns for *_, changed_ns in found.values()), default=0)
    return {path: stamp for path, stamp in found.items() if newest_ns - stamp[3] > _TICK_NS}


def written(work: Path, before: Stamps | None) -> list[str]:
    """Paths of regular files below `work` that were not there `before`, or were written to since. Without `before`: all.

    Compared is each file with itself: the file system's times may come from another clock than this process's, and either may be
    set back meanwhile. Every write sets ctime, and no program can choose it. Left out: what a working folder gathers by itself
    (`__pycache__` and the like), links, files that may not be read, and names that no tree holds.
    """
    known = before or {}
    return [path for path, about in _walk(work, "") if known.get(path) != _stamp(about)]


def _stamp(about: os.stat_result) -> Stamp:
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


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


def _walk(root: Path, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        with os.scandir(root) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        path = prefix + entry.name
        if CODE.default(entry.name) or not is_path(path):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), path + "/")
        elif entry.is_file(follow_symlinks=False) and os.access(entry.path, os.R_OK):
            yield path, entry.stat(follow_symlinks=False)
