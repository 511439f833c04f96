"""Which paths and links a tree may hold. Every uploaded manifest is checked by these rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hopyard.domain.text import escape
from hopyard.errors import SpecError

MAX_PART_BYTES = 255  # of a path: what Linux file systems take
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Folders whose files make a version control program run commands: hooks, monitors, filters. Also as NTFS
# (short names, dots and spaces at the end, streams) and HFS (characters that it ignores) would read them.
_REPOSITORY = re.compile(r"(?:^|/)(?:\.(?:git|hg|jj)|(?:git|hg|jj)~1)[ .]*(?=[/:]|\Z)", re.I)
_IGNORED_BY_HFS = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")


def is_repository_name(name: str) -> bool:
    """Whether a file or folder of this name is, on any file system, what git, Mercurial or Jujutsu keep a
    repository in."""
    return _REPOSITORY.search(_hfs_folded(name)) is not None


def _hfs_folded(name: str) -> str:
    """As HFS compares it."""
    return name if name.isascii() else _IGNORED_BY_HFS.sub("", name)


def is_bare_repository(names: Iterable[str]) -> bool:
    """Whether git takes a folder with these entries for a repository, though it is not called `.git`."""
    there = {_hfs_folded(name).casefold() for name in names}
    return "head" in there and ("commondir" in there or {"objects", "refs"} <= there)


def repository_folders(paths: Iterable[str]) -> Iterator[str]:
    """Folders that git takes for repositories; "" is the tree itself."""
    paths = list(paths)
    inside: dict[str, set[str]] = {path.rpartition("/")[0]: set() for path in paths if _is_git_head(path)}
    for path in paths if inside else ():
        for parent in ("", *parent_paths(path)):
            if parent in inside:
                inside[parent].add(path[len(parent) + 1 if parent else 0 :].partition("/")[0])
    return (folder for folder, names in inside.items() if is_bare_repository(names))


def _is_git_head(path: str) -> bool:
    return _hfs_folded(path[path.rfind("/") + 1 :]).casefold() == "head"


def parent_paths(path: str) -> Iterator[str]:
    at = path.rfind("/")
    while at > 0:
        path = path[:at]
        yield path
        at = path.rfind("/")


def check_path(path: str) -> str:
    """Return `path` if it may stand in a manifest: relative, normal, no `..`, no control characters, no part
    longer than a file system takes; else raise SpecError."""
    if not isinstance(path, str) or not path or path.startswith("/") or "\\" in path or _CONTROL.search(path):
        raise SpecError(
            f"`{escape(str(path)[:200])}` is not a path inside a tree",
            hints=("paths are relative, with `/` between parts",),
        )
    if is_repository_name(path):
        raise SpecError(
            f"`{path}` belongs to a repository, whose configuration can run commands of its author",
            hints=("remove it from the tree",),
        )
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise SpecError(
            f"`{path}` leads out of the tree or is not in normal form",
            hints=("remove `..`, `.` and empty parts",),
        )
    try:
        size = len(path.encode())
    except UnicodeEncodeError as bad:
        raise SpecError(f"the path {path!r} is not valid UTF-8", hints=("rename the file",)) from bad
    if size > MAX_PART_BYTES and any(len(part.encode()) > MAX_PART_BYTES for part in path.split("/")):
        raise SpecError(
            f"`{path[:80]}…` has a part longer than {MAX_PART_BYTES} bytes", hints=("rename the file",)
        )
    return path


def is_manifest_path(path: str) -> bool:
    """Whether `check_path` takes it."""
    try:
        check_path(path)
    except SpecError:
        return False
    return True


def link_stays_inside(path: str, target: str) -> bool:
    """Whether a symbolic link at `path` with text `target` points into the tree, whatever other links the
    tree holds.

    `..` may stand only at the beginning: after a name it would go up from where *that* leads, which may be
    another link (`x -> d/up/..` with `d/up -> ..` is the folder above the tree).
    """
    if not target or target.startswith("/") or _CONTROL.search(target):
        return False
    depth, named = path.count("/"), False
    for part in target.split("/"):
        if part == "..":
            depth -= 1
            if named or depth < 0:
                return False
        elif part not in ("", "."):
            named = True
    return _is_encodable(target)


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
