"""Looks over a folder: every file with what tells that it changed, links, and empty folders.
Reads no file."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final, NamedTuple

from hopyard.datasets.home_detection import is_home, is_home_entry, is_sdk_link
from hopyard.datasets.ignore_rules import IgnoreRules, IgnoreStack
from hopyard.domain.path_check import check_path, is_bare_repository, is_repository_name, link_stays_inside
from hopyard.domain.text import escape
from hopyard.errors import SpecError

# A file: (path, size, mtime_ns, ctime_ns, inode, mode). A plain tuple, because there are many and each push
# makes them all.
ScannedFile = tuple[str, int, int, int, int, int]
PATH: Final = 0
SIZE: Final = 1
MTIME: Final = 2
CTIME: Final = 3
INODE: Final = 4
MODE: Final = 5


class FolderScan(NamedTuple):
    """Everything sorted by path, as in a manifest."""

    files: list[ScannedFile]
    links: list[tuple[str, str]]
    folders: list[str]  # empty ones
    homes: list[str]  # homes of Hopyard, and parts of them, that are left out; "." is the root itself


def scan_folder(root: Path, rules: IgnoreRules, *, excluded: Path | None = None) -> FolderScan:
    """What belongs to the tree at `root`, a folder or a single file. `excluded`: a folder that is left out
    with all it holds. Homes of Hopyard are left out wherever they are: they hold tokens and keys.

    Raises SpecError naming the entry for what cannot be packed: a link that leads out, a device or socket, a
    name that is not UTF-8 or holds control characters, a folder that cannot be read, a path that is not
    there.
    """
    try:
        top = os.stat(root)
    except OSError as bad:
        raise SpecError(
            f"`{root}` cannot be read: {bad.strerror}",
            hints=("give a file or folder that is there and yours to read",),
        ) from bad
    if stat.S_ISREG(top.st_mode):
        if is_home_entry(root.name) and is_home(os.listdir(root.parent)):
            raise SpecError(
                f"`{root}` belongs to a home of Hopyard, which holds tokens and keys",
                hints=("no file of a home is packed",),
            )
        return FolderScan([_scanned_file(_check_name(root.name), top)], [], [], [])
    if not stat.S_ISDIR(top.st_mode):
        raise SpecError(f"`{root}` is neither a file nor a folder")
    found = FolderScan([], [], [], [])
    left_out, real = _relative_exclusion(root, excluded), os.path.realpath(root)
    pending = [("", str(root), IgnoreStack.at_root(rules, root))]
    while pending:
        prefix, folder, ignored = pending.pop()
        _scan_one_folder(root, real, prefix, folder, ignored, rules, left_out, found, pending)
    found.files.sort()
    found.links.sort()
    found.folders.sort()
    found.homes.sort()
    return found


def _relative_exclusion(root: Path, folder: Path | None) -> str:
    """`folder` as a path in the tree at `root`, with `/` at its end; "" where it is not in it."""
    if folder is None:
        return ""
    inside = os.path.relpath(os.path.realpath(folder), os.path.realpath(root))
    return "" if inside.split("/")[0] in (os.curdir, os.pardir) else inside + "/"


def _scan_one_folder(
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
    files, links, folders, homes = scan
    kept = False
    try:
        entries = _entries(top, prefix, folder)
        names = {entry.name for entry in entries if entry.name in rules.files}
        if not rules.ignore_nothing and is_home(entry.name for entry in entries):
            homes.append(prefix[:-1] or os.curdir)
            if prefix:
                return
            entries = [entry for entry in entries if not is_home_entry(entry.name)]
        if names:
            ignored = ignored.enter(Path(folder), prefix, names)
        if is_bare_repository(entry.name for entry in entries):
            if rules.only_files and prefix:
                return  # code: as the `.git` of a working folder
            raise SpecError(
                f"`{folder}` is a git repository without a working folder",
                hints=("pack it into an archive, or name it in `.hopignore`",),
            )
        for entry in entries:
            name = entry.name
            path = prefix + name
            is_folder = entry.is_dir(follow_symlinks=False)
            if not rules.ignore_nothing and is_repository_name(name):
                continue  # whatever an ignore file says: see `domain.manifest`
            if ignored.ignores(path + "/" if is_folder else path, name) or (
                is_folder and path + "/" == excluded
            ):
                continue
            kept = True
            if rules.ignore_nothing or not (name.isascii() and name.isprintable() and "\\" not in name):
                _check_name(path)
            if is_folder:
                pending.append((path + "/", f"{folder}/{name}", ignored))
            elif entry.is_symlink():
                if not rules.ignore_nothing and is_sdk_link(f"{folder}/{name}"):
                    homes.append(path)
                    continue
                links.append((path, _link_target(root, path, f"{folder}/{name}")))
            else:
                about = entry.stat(follow_symlinks=False)
                if not stat.S_ISREG(about.st_mode):
                    if rules.only_files:
                        continue
                    raise SpecError(
                        f"`{path}` is not a file but {_kind(about.st_mode)}",
                        hints=("name it in `.hopignore`, or remove it",),
                    )
                files.append(
                    (path, about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino, about.st_mode)
                )
    except PermissionError as bad:
        raise SpecError(
            f"`{bad.filename}` may not be read",
            hints=("`chmod u+rx` makes a folder of yours readable; or name it in `.hopignore`",),
        ) from bad
    except (FileNotFoundError, NotADirectoryError) as bad:
        raise changed_error(str(bad.filename)) from bad
    if not kept and prefix:
        folders.append(prefix[:-1])


def _entries(top: str, prefix: str, folder: str) -> list[os.DirEntry[str]]:
    """What lies in a folder of the tree, with what the kernel knows of it. A folder that another program
    replaces by a link meanwhile is not looked into: it would lead out of the tree. top: the real path of the
    tree. Raises OSError, SpecError."""
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
                entry.stat(follow_symlinks=False)  # kept by the entry; later there is no descriptor
        return entries
    finally:
        os.close(descriptor)


def changed_error(path: str) -> SpecError:
    """The error for a file that is not what it was when it was looked at first."""
    return SpecError(
        f"`{path}` changed while it was packed",
        hints=("nothing was recorded; try again when nobody writes to it",),
    )


def is_unchanged(entry: ScannedFile, stat_result: os.stat_result) -> bool:
    """Whether a file is still as it was seen."""
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
    except SpecError as bad:
        raise SpecError(
            f"the name `{escape(path)}` cannot be packed: {_name_problem(path)}",
            hints=("rename it, or name it in `.hopignore`",),
        ) from bad


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


def _link_target(root: Path, path: str, full: str) -> str:
    """The text of a link as the manifest keeps it: inside the tree, `..` only at its beginning."""
    target = os.readlink(full)
    if not link_stays_inside(path, target):
        real, top = os.path.realpath(full), os.path.realpath(root)
        if os.path.commonpath((real, top)) != top:
            raise SpecError(
                f"the link `{path}` leads out of the folder, to `{target}`",
                hints=("copy what it points to into the folder, or name the link in `.hopignore`",),
            )
        # It comes back inside by a way that means nothing on another machine: keep where it leads, not how.
        target = os.path.relpath(real, os.path.realpath(os.path.dirname(full)))
    return target


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISBLK, "a device"),
        (stat.S_ISCHR, "a device"),
    )
    return next((word for test, word in kinds if test(mode)), "something else")
