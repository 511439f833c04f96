"""Trees that go from a replica to the server: checkpoints, and the files that a run made in its folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hopyard.api_client.client import Client
from hopyard.datasets.ignore_rules import ALL_FILES_RULES
from hopyard.datasets.pack import pack_tree
from hopyard.datasets.packed_tree import PackedTree
from hopyard.datasets.transfer import push_tree
from hopyard.private_files import FOLDER_MODE, open_below

_STAGING_DIR = "outputs"


def upload_folder(client: Client, folder: int) -> PackedTree:
    """Pack a folder, given by its descriptor, and see that the server holds all of it.
    Raises SpecError when it changes meanwhile, ServerUnavailable."""
    tree = pack_tree(Path(f"/proc/self/fd/{folder}"), rules=ALL_FILES_RULES)
    push_tree(tree, client)
    return tree


def upload_files(
    client: Client, root: Path, work: Path, files: Mapping[str, str], links: Mapping[str, str]
) -> PackedTree:
    """Send files of `work` as a tree. files: the path of each, by its path in the tree.
    links: texts of symbolic links, by their paths."""
    folder = stage_files(root, work, files)
    try:
        with _open_folder(root, folder.name) as stage:
            for path, text in links.items():
                above, _, last = path.rpartition("/")
                with _make_folder(stage, above) as target:
                    os.symlink(text, last, dir_fd=target)
            return upload_folder(client, stage)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def stage_files(root: Path, work: Path, files: Mapping[str, str]) -> Path:
    """A new folder below `root` with hard links to files of `work`, given by their paths in the new folder.

    Other replicas of the run may still write to both: each folder is reached through no link, and written to
    by its descriptor."""
    name = f"{_STAGING_DIR}-{os.urandom(8).hex()}"
    (root / name).mkdir(FOLDER_MODE)
    try:
        with _open_folder(root, name) as stage:
            for path, of in files.items():
                (above, _, last), (source_above, _, source_last) = path.rpartition("/"), of.rpartition("/")
                with (
                    _open_folder(root, f"{work.name}/{source_above}") as source,
                    _make_folder(stage, above) as target,
                ):
                    os.link(source_last, last, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    except BaseException:
        shutil.rmtree(root / name, ignore_errors=True)
        raise
    return root / name


@contextmanager
def _open_folder(root: Path, path: str) -> Iterator[int]:
    descriptor = open_below(root, path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _make_folder(folder: int, path: str) -> Iterator[int]:
    """A folder below another one, made where it is missing."""
    descriptor = os.dup(folder)
    try:
        for name in filter(None, path.split("/")):
            with suppress(FileExistsError):
                os.mkdir(name, FOLDER_MODE, dir_fd=descriptor)
            above, descriptor = (
                descriptor,
                os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor),
            )
            os.close(above)
        yield descriptor
    finally:
        os.close(descriptor)
