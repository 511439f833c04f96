"""Notices of code that git has not fetched: submodules without content, and pointers of Git LFS."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hopyard.domain.text import escape

if TYPE_CHECKING:
    from hopyard.datasets.packed_tree import PackedTree

_POINTER = b"version https://git-lfs.github.com/spec/"
_POINTER_BYTES = range(100, 1025)  # by the specification, shorter than 1024 bytes
_MAX_READ_FILES = 20_000
_MAX_NAMED = 3
_SUBMODULE_PATH = re.compile(r"^[ \t]*path[ \t]*=[ \t]*([^\n]+)", re.MULTILINE)


def unfetched_notices(tree: PackedTree) -> Iterator[str]:
    """Yields a warning for submodules and one for files, if their content is not on this machine."""
    top = next((place for place in (tree.root, *tree.root.parents) if (place / ".git").exists()), None)
    if top is None:
        return
    submodules = _empty_submodules(tree.root, top)
    if submodules:
        yield f"warning: not checked out: {_named(submodules, 'submodule')}"
        yield "hint: run `git submodule update --init`"
    pointers = list(_pointers(tree, top))
    if pointers:
        yield f"warning: pointers of Git LFS are packed in place of the content: {_named(pointers, 'file')}"
        yield "hint: run `git lfs pull`"


def _empty_submodules(root: Path, top: Path) -> list[str]:
    """Returns the submodules below `root` that have an empty folder. top: of the repository."""
    try:
        text = (top / ".gitmodules").read_text(errors="replace")
    except OSError:
        return []
    places = [top / path.strip().strip('"') for path in _SUBMODULE_PATH.findall(text)]
    return [
        os.path.relpath(place, root)
        for place in places
        if place.is_relative_to(root) and place.is_dir() and not any(place.iterdir())
    ]


def _pointers(tree: PackedTree, top: Path) -> Iterator[str]:
    entries = {path: size for path, size, *_ in json.loads(tree.encoded)["files"]}
    packed = [tree.root / path for path in entries if path.rpartition("/")[2] == ".gitattributes"]
    outer = [place / ".gitattributes" for place in tree.root.parents if place.is_relative_to(top)]
    if not any(map(_names_pointers, [*packed, *outer, top / ".git" / "info" / "attributes"])):
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


def _named(paths: list[str], kind: str) -> str:
    shown = ", ".join(escape(path) for path in paths[:_MAX_NAMED])
    return f"{kind} {shown}" + (f" and {len(paths) - _MAX_NAMED} more" if len(paths) > _MAX_NAMED else "")
