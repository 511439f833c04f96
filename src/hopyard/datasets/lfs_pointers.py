"""Finds pointers of Git LFS, which stand in a tree in place of the content."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hopyard.datasets.packed_tree import PackedTree

_POINTER = b"version https://git-lfs.github.com/spec/"
_POINTER_BYTES = range(100, 1025)  # by the specification, shorter than 1024 bytes
_MAX_READ_FILES = 20_000


def find_lfs_pointers(tree: PackedTree, *, attributes: Iterable[Path] = ()) -> Iterator[str]:
    """Yields the paths of pointers. attributes: files outside the tree that may name patterns of LFS, as its
    own `.gitattributes` do; without any such pattern, no file is read."""
    entries = {path: size for path, size, *_ in json.loads(tree.encoded)["files"]}
    packed = [tree.root / path for path in entries if path.rpartition("/")[2] == ".gitattributes"]
    if not any(map(_names_pointers, [*packed, *attributes])):
        return
    small = [path for path, size in entries.items() if size in _POINTER_BYTES]
    for path in small[:_MAX_READ_FILES]:
        try:
            with (tree.root / path).open("rb") as file:
                is_pointer = file.read(len(_POINTER)) == _POINTER
        except OSError:
            continue  # removed meanwhile: only a notice depends on it
        if is_pointer:
            yield path


def _names_pointers(attributes: Path) -> bool:
    try:
        return b"filter=lfs" in attributes.read_bytes()
    except OSError:
        return False
