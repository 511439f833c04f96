"""One tree for the files of replicas that have a working folder each: a top folder per rank."""

from __future__ import annotations

from dataclasses import replace

from hopyard.domain.encoded_path import encode_path
from hopyard.domain.manifest import Manifest


def merge_rank(tree: Manifest, rank: int, files: Manifest) -> Manifest:
    """Returns the tree with `files` as the folder of this rank, in place of its earlier files. Entries of
    `tree` outside of the folders of ranks are dropped."""
    if tree.encoded != files.encoded:
        tree, files = _encoded(tree), _encoded(files)
    folder = str(rank)

    def is_of_other_rank(path: str) -> bool:
        top, slash, _ = path.partition("/")
        return bool(slash) and _is_rank(top) and top != folder

    merged = Manifest.build(
        [
            *(file for file in tree.files if is_of_other_rank(file.path)),
            *(replace(file, path=f"{folder}/{file.path}") for file in files.files),
        ],
        [
            *(link for link in tree.links if is_of_other_rank(link.path)),
            *(replace(link, path=f"{folder}/{link.path}") for link in files.links),
        ],
        [
            *(path for path in tree.folders if is_of_other_rank(path)),
            *(f"{folder}/{path}" for path in files.folders),
        ],
    )
    return replace(merged, encoded=tree.encoded)


def split_rank(path: str) -> tuple[int, str] | None:
    """Returns the rank of a path in such a tree, and the path in its folder; None for another path."""
    top, slash, rest = path.partition("/")
    return (int(top), rest) if slash and _is_rank(top) else None


def _is_rank(name: str) -> bool:
    return name.isascii() and name.isdecimal() and str(int(name)) == name


def _encoded(tree: Manifest) -> Manifest:
    if tree.encoded:
        return tree
    encoded = Manifest.build(
        [replace(file, path=encode_path(file.path)) for file in tree.files],
        [replace(link, path=encode_path(link.path), target=encode_path(link.target)) for link in tree.links],
        [encode_path(path) for path in tree.folders],
    )
    return replace(encoded, encoded=True)
