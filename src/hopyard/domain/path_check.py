"""The rules for paths and links in a tree. They are applied to every uploaded manifest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from hopyard.domain.text import escape
from hopyard.errors import SpecError

MAX_PART_BYTES = 255  # of a path: the limit of Linux file systems
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Folders whose files make a version control program run commands: hooks, monitors, filters. The pattern also
# covers the forms that NTFS (short names, trailing dots and spaces, streams) and HFS (ignored characters)
# accept.
_REPOSITORY = re.compile(r"(?:^|/)(?:\.(?:git|hg|jj)|(?:git|hg|jj)~1)[ .]*(?=[/:]|\Z)", re.I)
_IGNORED_BY_HFS = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")


def is_repository_name(name: str) -> bool:
    """Returns whether git, Mercurial or Jujutsu would use a file or folder of this name as a repository, on
    any file system."""
    return _REPOSITORY.search(_hfs_folded(name)) is not None


def _hfs_folded(name: str) -> str:
    """Returns the name as HFS compares it."""
    return name if name.isascii() else _IGNORED_BY_HFS.sub("", name)


def is_bare_repository(names: Iterable[str]) -> bool:
    """Returns whether git uses a folder with these entries as a repository although its name is not
    `.git`."""
    folded = {_hfs_folded(name).casefold() for name in names}
    return "head" in folded and ("commondir" in folded or {"objects", "refs"} <= folded)


def repository_folders(paths: Iterable[str]) -> Iterator[str]:
    """Returns the folders that git uses as repositories; "" is the tree itself."""
    paths = list(paths)
    entries: dict[str, set[str]] = {path.rpartition("/")[0]: set() for path in paths if _is_git_head(path)}
    for path in paths if entries else ():
        for parent in ("", *parent_paths(path)):
            if parent in entries:
                entries[parent].add(path[len(parent) + 1 if parent else 0 :].partition("/")[0])
    return (folder for folder, names in entries.items() if is_bare_repository(names))


def _is_git_head(path: str) -> bool:
    return _hfs_folded(path[path.rfind("/") + 1 :]).casefold() == "head"


def parent_paths(path: str) -> Iterator[str]:
    slash = path.rfind("/")
    while slash > 0:
        path = path[:slash]
        yield path
        slash = path.rfind("/")


def check_path(path: str, *, max_part_bytes: int = MAX_PART_BYTES) -> str:
    """Returns `path` if it is legal in a manifest: relative, normal, without `..` and control characters, and
    without a part that is too long for file systems. Else raises SpecError."""
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
    except UnicodeEncodeError as error:
        raise SpecError(f"the path {path!r} is not valid UTF-8", hints=("rename the file",)) from error
    if size > max_part_bytes and any(len(part.encode()) > max_part_bytes for part in path.split("/")):
        raise SpecError(
            f"`{path[:80]}…` has a part longer than {max_part_bytes} bytes", hints=("rename the file",)
        )
    return path


def is_manifest_path(path: str) -> bool:
    """Returns whether `check_path` accepts the path."""
    try:
        check_path(path)
    except SpecError:
        return False
    return True


def link_stays_inside(path: str, target: str) -> bool:
    """Returns whether a symbolic link at `path` with text `target` points into the tree, for any other links
    in the tree.

    `..` is allowed only at the start. After a name it would go up from the target of *that* name, which may
    be another link (`x -> d/up/..` with `d/up -> ..` is the folder above the tree).
    """
    if not target or target.startswith("/") or _CONTROL.search(target):
        return False
    depth, has_name = path.count("/"), False
    for part in target.split("/"):
        if part == "..":
            depth -= 1
            if has_name or depth < 0:
                return False
        elif part not in ("", "."):
            has_name = True
    return _is_encodable(target)


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
