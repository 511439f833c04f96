"""Scans a folder: lists files with the metadata that reveals changes, links, and empty folders. Reads no
file."""

from __future__ import annotations

import os
import stat
from collections.abc import Set
from pathlib import Path
from typing import Final, NamedTuple

from hopyard.datasets.home_detection import is_home, is_home_entry, is_sdk_link
from hopyard.datasets.ignore_rules import IgnoreRules, IgnoreStack
from hopyard.domain.path_check import check_path, is_bare_repository, is_repository_name, link_stays_inside
from hopyard.domain.text import escape
from hopyard.errors import SpecError

# A file: (path, size, mtime_ns, ctime_ns, inode, mode). A plain tuple, because each push makes many.
ScannedFile = tuple[str, int, int, int, int, int]
PATH: Final = 0
SIZE: Final = 1
MTIME: Final = 2
CTIME: Final = 3
INODE: Final = 4
MODE: Final = 5


_MAX_LEFT_OUT = 10_000


class IgnoredEntry(NamedTuple):
    """A file or folder that is not packed.

    path: of a folder, it ends with `/`. reason: the ignore file and its line. size_bytes: 0 for a folder.
    has_odd_name: left out for its name, which no manifest holds.
    """

    path: str
    reason: str
    size_bytes: int
    has_odd_name: bool = False


class FolderScan(NamedTuple):
    """The entries of a folder, each list sorted by path as in a manifest."""

    files: list[ScannedFile]
    links: list[tuple[str, str]]
    folders: list[str]  # empty ones
    homes: list[str]  # excluded homes of Hopyard, and parts of them; "." is the root itself
    left_out: list[IgnoredEntry]  # what ignore files exclude, at most `_MAX_LEFT_OUT` entries
    outside_links: list[tuple[str, str]]  # of code: links that lead out of the tree, with absolute targets


def scan_folder(
    root: Path, rules: IgnoreRules, *, excluded: Path | None = None, tracked: Set[str] = frozenset()
) -> FolderScan:
    """Scans the tree at `root`, a folder or a single file.

    excluded: a folder to skip with its content. Homes of Hopyard are always skipped, because they hold tokens
    and keys. tracked: files that git tracks although its ignore files name them.

    Raises SpecError for an entry that cannot be packed. These are a link of data that leads out of the tree,
    a device or socket, an unreadable folder, a missing path, and a name that is not UTF-8 or holds control
    characters. Of code, such a name is left out instead.
    """
    try:
        top = os.stat(root)
    except OSError as error:
        raise SpecError(
            f"`{root}` cannot be read: {error.strerror}",
            hints=("choose a file or folder that exists and that you can read",),
        ) from error
    if stat.S_ISREG(top.st_mode):
        if is_home_entry(root.name) and is_home(os.listdir(root.parent)):
            raise SpecError(
                f"`{root}` belongs to a home of Hopyard, which holds tokens and keys",
                hints=("choose another file: files of a home cannot be packed",),
            )
        return FolderScan([_scanned_file(_check_name(root.name), top)], [], [], [], [], [])
    if not stat.S_ISDIR(top.st_mode):
        raise SpecError(f"`{root}` is neither a file nor a folder")
    scan = FolderScan([], [], [], [], [], [])
    excluded_prefix, real_root = _relative_exclusion(root, excluded), os.path.realpath(root)
    pending = [("", str(root), IgnoreStack.at_root(rules, root, tracked))]
    while pending:
        prefix, folder, ignored = pending.pop()
        _scan_subfolder(root, real_root, prefix, folder, ignored, rules, excluded_prefix, scan, pending)
    scan.files.sort()
    scan.links.sort()
    scan.folders.sort()
    scan.homes.sort()
    scan.outside_links.sort()
    return scan


def _relative_exclusion(root: Path, folder: Path | None) -> str:
    """Returns `folder` as a path in the tree at `root`, ending with `/`, or "" if it is outside."""
    if folder is None:
        return ""
    relative_path = os.path.relpath(os.path.realpath(folder), os.path.realpath(root))
    return "" if relative_path.split("/")[0] in (os.curdir, os.pardir) else relative_path + "/"


def _scan_subfolder(
    root: Path,
    top: str,
    prefix: str,
    folder: str,
    ignored: IgnoreStack,
    rules: IgnoreRules,
    excluded: str,
    scan: FolderScan,
    pending: list[tuple[str, str, IgnoreStack]],
) -> None:
    files, links, folders, homes, left_out, outside_links = scan
    has_entries = False
    try:
        entries = _entries(top, prefix, folder)
        names = {entry.name for entry in entries if entry.name in rules.files or entry.name == ".git"}
        if not rules.ignore_nothing and is_home(entry.name for entry in entries):
            homes.append(prefix[:-1] or os.curdir)
            if prefix:
                return
            entries = [entry for entry in entries if not is_home_entry(entry.name)]
        if names:
            ignored = ignored.enter(Path(folder), prefix, names)
        if is_bare_repository(entry.name for entry in entries):
            if rules.only_files and prefix:
                return  # code: skipped like the `.git` of a working folder
            raise SpecError(
                f"`{folder}` is a git repository without a working folder",
                hints=("pack it into an archive, or add it to `.hopignore`",),
            )
        for entry in entries:
            name = entry.name
            path = prefix + name
            is_folder = entry.is_dir(follow_symlinks=False)
            if not rules.ignore_nothing and is_repository_name(name):
                continue  # even if an ignore file includes it: see `domain.manifest`
            if path in rules.omitted or (is_folder and path + "/" == excluded):
                continue
            reason = ignored.reason(path + "/" if is_folder else path, name)
            if reason is not None:
                if reason and len(left_out) < _MAX_LEFT_OUT:
                    left_out.append(_ignored_entry(entry, path, reason, is_folder=is_folder))
                continue
            if rules.ignore_nothing or not (name.isascii() and name.isprintable() and "\\" not in name):
                try:
                    _check_name(path)
                except SpecError:
                    if not rules.only_files:
                        raise
                    if len(left_out) < _MAX_LEFT_OUT:
                        odd = _ignored_entry(entry, path, _name_problem(path), is_folder=is_folder)
                        left_out.append(odd._replace(has_odd_name=True))
                    continue
            had_entries, has_entries = has_entries, True
            if is_folder:
                pending.append((path + "/", f"{folder}/{name}", ignored.enter_entry(path + "/", name)))
            elif entry.is_symlink():
                if not rules.ignore_nothing and is_sdk_link(f"{folder}/{name}"):
                    homes.append(path)
                    continue
                target, is_inside = _link_target(root, path, f"{folder}/{name}")
                if is_inside:
                    links.append((path, target))
                elif rules.only_files:
                    outside_links.append((path, target))
                    has_entries = had_entries
                else:
                    raise _outside_error(path, target)
            else:
                file_stat = entry.stat(follow_symlinks=False)
                if not stat.S_ISREG(file_stat.st_mode):
                    if rules.only_files:
                        continue
                    raise SpecError(
                        f"`{path}` is not a file but {_kind(file_stat.st_mode)}",
                        hints=("add it to `.hopignore`, or remove it",),
                    )
                files.append(
                    (
                        path,
                        file_stat.st_size,
                        file_stat.st_mtime_ns,
                        file_stat.st_ctime_ns,
                        file_stat.st_ino,
                        file_stat.st_mode,
                    )
                )
    except PermissionError as error:
        raise SpecError(
            f"`{error.filename}` may not be read",
            hints=("run `chmod u+rx` on a folder of yours, or add it to `.hopignore`",),
        ) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise changed_error(str(error.filename)) from error
    if not has_entries and prefix:
        folders.append(prefix[:-1])


def _ignored_entry(entry: os.DirEntry[str], path: str, reason: str, *, is_folder: bool) -> IgnoredEntry:
    if is_folder:
        return IgnoredEntry(path + "/", reason, 0)
    return IgnoredEntry(path, reason, entry.stat(follow_symlinks=False).st_size)


def _entries(top: str, prefix: str, folder: str) -> list[os.DirEntry[str]]:
    """Returns the entries of a folder of the tree, with their metadata.

    Rejects a folder that another program has just replaced by a link: it could lead out of the tree. top: the
    real path of the tree. Raises OSError, SpecError.
    """
    descriptor = os.open(
        folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (os.O_NOFOLLOW if prefix else 0)
    )
    try:
        if prefix and os.readlink(f"/proc/self/fd/{descriptor}") != os.path.join(top, prefix[:-1]):
            raise changed_error(prefix[:-1])
        with os.scandir(descriptor) as listing:
            entries = list(listing)
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                entry.stat(follow_symlinks=False)  # the entry caches it; the descriptor is closed later
        return entries
    finally:
        os.close(descriptor)


def changed_error(path: str) -> SpecError:
    """Returns the error for a file that changed after it was scanned."""
    return SpecError(
        f"`{path}` changed while it was packed",
        hints=("nothing was stored; try again when no program writes to it",),
    )


def is_unchanged(entry: ScannedFile, stat_result: os.stat_result) -> bool:
    """Returns whether the metadata of a file is still as scanned."""
    return (entry[SIZE], entry[MTIME], entry[CTIME], entry[INODE]) == (
        stat_result.st_size,
        stat_result.st_mtime_ns,
        stat_result.st_ctime_ns,
        stat_result.st_ino,
    )


def _scanned_file(path: str, stat_result: os.stat_result) -> ScannedFile:
    return (
        path,
        stat_result.st_size,
        stat_result.st_mtime_ns,
        stat_result.st_ctime_ns,
        stat_result.st_ino,
        stat_result.st_mode,
    )


def _check_name(path: str) -> str:
    try:
        return check_path(path)
    except SpecError as error:
        raise SpecError(
            f"the name `{escape(path)}` cannot be packed: {_name_problem(path)}",
            hints=("rename it, or add it to `.hopignore`",),
        ) from error


def _name_problem(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        return "it is not UTF-8"
    if is_repository_name(path):
        return "it belongs to a repository"
    return (
        "it holds a backslash"
        if "\\" in path
        else "it holds control characters"
        if not path.isprintable()
        else "it is too long"
    )


def _link_target(root: Path, path: str, full: str) -> tuple[str, bool]:
    """Returns the target of a link, and whether it is inside the tree. Inside, it is as the manifest stores
    it, with `..` only at its start. Outside, it is absolute."""
    target = os.readlink(full)
    if link_stays_inside(path, target):
        return target, True
    real_target, real_root = os.path.realpath(full), os.path.realpath(root)
    folder = os.path.realpath(os.path.dirname(full))
    if os.path.commonpath((real_target, real_root)) != real_root:
        return os.path.normpath(os.path.join(folder, target)), False
    # The link leaves and re-enters the tree on this machine only: store its real target instead.
    return os.path.relpath(real_target, folder), True


def _outside_error(path: str, target: str) -> SpecError:
    return SpecError(
        f"the link `{path}` leads out of the folder, to `{target}`",
        hints=("copy its target into the folder, or add the link to `.hopignore`",),
    )


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISBLK, "a device"),
        (stat.S_ISCHR, "a device"),
    )
    return next((name for is_kind, name in kinds if is_kind(mode)), "something else")
