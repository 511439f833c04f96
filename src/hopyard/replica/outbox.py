"""Trees that go from a replica to the server: checkpoints, and what a run leaves behind in its folder."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from blake3 import blake3

from hopyard.datasets.ignore import CODE, EVERYTHING, Rules
from hopyard.datasets.pack import pack
from hopyard.datasets.transfer import push
from hopyard.datasets.tree import PackedTree
from hopyard.domain.manifest import CHUNK_BYTES, FileEntry, Manifest
from hopyard.sdk.client import Client

_STAGE = "outputs"
_COARSE_S = 0.02  # the kernel's clock of file times lags behind by up to one of its ticks


def push_folder(client: Client, folder: Path, rules: Rules) -> PackedTree:
    """Pack a folder and see that the server holds all of it. Raises SpecError when it changes meanwhile, ServerUnavailable."""
    tree = pack(folder, rules=rules)
    push(client, tree)
    return tree


def push_outputs(client: Client, root: Path, work: Path, code: Manifest, *, since: float) -> PackedTree | None:
    """Send the files of `work` that the run made or changed since it started (unix seconds); None when there are none.

    root: the replica's folder, in which they are staged as hard links so that they are packed like any other tree.
    """
    stage = root / _STAGE
    shutil.rmtree(stage, ignore_errors=True)
    try:
        for path in outputs(work, code, since=since):
            target = stage / path
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(work / path, target, follow_symlinks=False)
        return push_folder(client, stage, EVERYTHING) if stage.exists() else None
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def outputs(work: Path, code: Manifest, *, since: float) -> Iterator[str]:
    """Paths of regular files that are not in the code's manifest, or no longer as they are there.

    Left out: what a working folder gathers by itself (`__pycache__` and the like), links, and files that may not be read.
    """
    known: Mapping[str, FileEntry] = {entry.path: entry for entry in code.files}
    for path, about in _walk(work, ""):
        # Every write sets ctime, and no program can set it back: an older one need not be read.
        if path in known and about.st_ctime < since - _COARSE_S:
            continue
        if path not in known or not _same(work / path, about.st_size, known[path]):
            yield path


def _walk(root: Path, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        with os.scandir(root) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        path = prefix + entry.name
        if CODE.default(entry.name) or not entry.name.isprintable() or "\\" in entry.name:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), path + "/")
        elif entry.is_file(follow_symlinks=False) and os.access(entry.path, os.R_OK):
            about = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(about.st_mode):
                yield path, about


def _same(file: Path, size: int, entry: FileEntry) -> bool:
    if size != entry.size:
        return False
    with file.open("rb") as stream:
        return all(blake3(stream.read(CHUNK_BYTES)).hexdigest() == chunk for chunk in entry.chunks)


