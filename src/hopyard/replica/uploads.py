"""Uploads trees from a replica to the server: checkpoints, and the files that a run created in its folder."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from blake3 import blake3

from hopyard.api_client.client import Client
from hopyard.datasets.ignore_rules import ALL_FILES_RULES
from hopyard.datasets.pack import pack_tree
from hopyard.datasets.packed_tree import PackedTree
from hopyard.datasets.transfer import push_tree
from hopyard.domain.encoded_path import encode_path
from hopyard.domain.ids import Digest
from hopyard.domain.manifest import LinkEntry, Manifest
from hopyard.domain.path_check import is_manifest_path
from hopyard.private_files import FOLDER_MODE, open_below, open_file, open_no_follow

_STAGING_DIR = "outputs"
# a file of another user, one with too many links, another file system, and one without hard links
_UNLINKABLE_ERRNOS = frozenset({errno.EPERM, errno.EACCES, errno.EMLINK, errno.EXDEV, errno.EOPNOTSUPP})
_COPY_BYTES = 1024 * 1024


def upload_folder(client: Client, folder: int) -> PackedTree:
    """Packs a folder, given by its descriptor, and uploads it. Raises SpecError if it changes meanwhile,
    ServerUnavailable."""
    tree = pack_tree(Path(f"/proc/self/fd/{folder}"), rules=ALL_FILES_RULES)
    push_tree(tree, client)
    return tree


def upload_files(
    client: Client, root: Path, work: Path, files: Mapping[str, str], links: Mapping[str, str]
) -> Digest:
    """Uploads files of `work` as a tree, and returns the digest of its manifest. files: the path of each, by
    its path in the tree. links: target texts of symbolic links, by their paths."""
    if not all(map(is_manifest_path, (*files, *links))):
        return _upload_encoded(client, root, work, files, links)
    folder = stage_files(root, work, files)
    try:
        with _open_folder(root, folder.name) as stage:
            for path, text in links.items():
                parent, _, name = path.rpartition("/")
                with make_folder_below(stage, parent) as target:
                    os.symlink(text, name, dir_fd=target)
            return upload_folder(client, stage).digest
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _upload_encoded(
    client: Client, root: Path, work: Path, files: Mapping[str, str], links: Mapping[str, str]
) -> Digest:
    """Uploads files of which some have a name that no tree can have. They are packed under numbers."""
    numbers = {str(number): path for number, path in enumerate(files)}
    folder = stage_files(root, work, {number: files[path] for number, path in numbers.items()})
    try:
        with _open_folder(root, folder.name) as stage:
            packed = Manifest.decode(upload_folder(client, stage).encoded)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tree = Manifest.build(
        [replace(file, path=encode_path(numbers[file.path])) for file in packed.files],
        [LinkEntry(encode_path(path), encode_path(target)) for path, target in links.items()],
    )
    data = replace(tree, encoded=True).encode()
    digest = Digest(blake3(data).hexdigest())
    client.put_blob(digest, data)
    return digest


def stage_files(root: Path, work: Path, files: Mapping[str, str]) -> Path:
    """Creates a folder below `root` with hard links to files of `work`, given by their paths in the new
    folder.

    Other replicas of the run may write to both meanwhile. So each folder is opened without following links,
    and written to by its descriptor.
    """
    name = f"{_STAGING_DIR}-{os.urandom(8).hex()}"
    (root / name).mkdir(FOLDER_MODE)
    try:
        with _open_folder(root, name) as stage:
            for path, source_path in files.items():
                (parent, _, link_name), (source_parent, _, source_name) = (
                    path.rpartition("/"),
                    source_path.rpartition("/"),
                )
                try:
                    with (
                        _open_folder(root, f"{work.name}/{source_parent}") as source,
                        make_folder_below(stage, parent) as target,
                    ):
                        _stage_file(source, source_name, target, link_name)
                except FileNotFoundError:
                    # the processes of the run may remove a file at any time; not the folder itself
                    if not (root / work.name).is_dir() or os.path.lexists(root / work.name / source_path):
                        raise
    except BaseException:
        shutil.rmtree(root / name, ignore_errors=True)
        raise
    return root / name


def _stage_file(source: int, source_name: str, target: int, name: str) -> None:
    """Creates a hard link to a file. A file that the kernel refuses to link, such as one of another user, is
    copied."""
    try:
        os.link(source_name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno not in _UNLINKABLE_ERRNOS:
            raise
        with (
            os.fdopen(open_no_follow(source_name, os.O_RDONLY, folder=source), "rb") as original,
            os.fdopen(open_file(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder=target), "wb") as copy,
        ):
            shutil.copyfileobj(original, copy, _COPY_BYTES)
            os.fchmod(copy.fileno(), os.fstat(original.fileno()).st_mode & 0o777 | 0o600)


@contextmanager
def _open_folder(root: Path, path: str) -> Iterator[int]:
    descriptor = open_below(root, path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_folder_below(root: Path, path: str) -> Iterator[int]:
    """Opens a folder below `root`, and creates it if it is missing. Raises OSError for a link on the way."""
    with _open_folder(root, ".") as base, make_folder_below(base, path) as folder:
        yield folder


@contextmanager
def make_folder_below(folder: int, path: str) -> Iterator[int]:
    """Opens a folder below another one, and creates it if it is missing."""
    descriptor = os.dup(folder)
    try:
        for name in filter(None, path.split("/")):
            with suppress(FileExistsError):
                os.mkdir(name, FOLDER_MODE, dir_fd=descriptor)
            parent, descriptor = (
                descriptor,
                os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor),
            )
            os.close(parent)
        yield descriptor
    finally:
        os.close(descriptor)
