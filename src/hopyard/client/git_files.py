"""Notices of code that git has not fetched: submodules without content, and pointers of Git LFS."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hopyard.datasets.lfs_pointers import find_lfs_pointers
from hopyard.domain.text import escape

if TYPE_CHECKING:
    from hopyard.datasets.packed_tree import PackedTree

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
    outer = [place / ".gitattributes" for place in tree.root.parents if place.is_relative_to(top)]
    pointers = list(find_lfs_pointers(tree, attributes=[*outer, top / ".git" / "info" / "attributes"]))
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


def _named(paths: list[str], kind: str) -> str:
    shown = ", ".join(escape(path) for path in paths[:_MAX_NAMED])
    return f"{kind} {shown}" + (f" and {len(paths) - _MAX_NAMED} more" if len(paths) > _MAX_NAMED else "")
