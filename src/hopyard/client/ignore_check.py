"""Checks what ignore files leave out of the code: names it where a run needs it, or where it is large."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hopyard.datasets.folder_scan import IgnoredEntry, scan_folder
from hopyard.datasets.ignore_rules import CODE_RULES
from hopyard.domain.byte_text import format_bytes
from hopyard.domain.command_template import DATASET_PREFIX, placeholder_names
from hopyard.domain.text import escape
from hopyard.domain.text_decoding import escape_bytes
from hopyard.errors import SpecError

if TYPE_CHECKING:
    from hopyard.api_client import types as api

_MIN_NOTICE_BYTES = 1024 * 1024
_MAX_MEASURED_FILES = 5_000  # of folders that are left out
_MAX_NAMED = 3
_WORK_FOLDER = f"{os.sep}work{os.sep}"  # of an attempt, in the paths of its errors
_MAX_SCRIPT_BYTES = 2 * 1024 * 1024
_QUOTED_TEXT = re.compile(r"""(['"])([^'"\n\\]{1,200})\1""")
_MISSING_FILE = re.compile(r"No such file|NotFound|does not exist|cannot find", re.IGNORECASE)
_FILE_NAME = re.compile(r"['\"]([^'\"\n]{1,1000})['\"]")
# Results of earlier runs, which the next run seldom reads.
_RESULT_FOLDERS = frozenset(
    {"wandb", "runs", "mlruns", "lightning_logs", "outputs", "multirun", "logs", "log", "results", "tmp"}
    | {"build", "dist", "env", "htmlcov", "site", ".eggs", ".cache", ".vscode", ".dvc", ".hydra"}
)


def check_scripts(root: Path, left_out: Sequence[IgnoredEntry], commands: Iterable[Sequence[str]]) -> None:
    """Raises SpecError for a script of a command that is not in the packed code."""
    for word in {word for command in commands for word in command}:
        if not word.endswith((".py", ".sh", ".ipynb")) or not (root / word).is_file():
            continue
        entry = find_left_out(left_out, os.path.normpath(word))
        if entry is not None and entry.has_odd_name:
            raise SpecError(
                f"`{escape(escape_bytes(word))}` cannot be packed: {entry.reason}", hints=("rename it",)
            )
        if entry is not None:
            raise SpecError(
                f"{word} is not packed: {entry.reason} leaves out `{entry.path}`",
                hints=(f"write `!{entry.path}` into .hopignore",),
            )


def left_out_notices(
    root: Path,
    left_out: Sequence[IgnoredEntry],
    commands: Sequence[Sequence[str]],
    supplied: Iterable[str] = (),
) -> Iterator[str]:
    """Yields a notice for paths that a script or an argument names, and one for large files and folders.

    supplied: paths that the run has from elsewhere, such as those of its datasets.
    """
    odd_names = [entry for entry in left_out if entry.has_odd_name]
    if odd_names:
        texts = [f"{escape(escape_bytes(entry.path))} ({entry.reason})" for entry in odd_names[:_MAX_NAMED]]
        more = f" and {len(odd_names) - _MAX_NAMED} more" if len(odd_names) > _MAX_NAMED else ""
        yield f"warning: not packed, for its name: {', '.join(texts)}{more}"
    places = [os.path.normpath(path) for path in supplied if path]
    left_out = [
        entry for entry in left_out if not entry.has_odd_name and not _is_supplied(entry.path, places)
    ]
    if not left_out:
        return
    named = _named_paths(root, left_out, commands)
    for path, entry in list(named.items())[:_MAX_NAMED]:
        yield f"warning: the run names `{path}`, which is not packed: {entry.reason} leaves it out"
    large, is_complete = _large_entries(root, left_out, excluded={entry.path for entry in named.values()})
    if large:
        texts = [f"{entry.path} ({format_bytes(size)}; {entry.reason})" for entry, size in large[:_MAX_NAMED]]
        more = f" and {len(large) - _MAX_NAMED} more" if len(large) > _MAX_NAMED else ""
        limit = "" if is_complete else f"; only the first {_MAX_MEASURED_FILES} files were measured"
        yield f"note: not packed: {', '.join(texts)}{more}{limit}"
    first = next(iter(named.values()), None) or (large[0][0] if large else None)
    if first is not None:
        yield (
            f"hint: write `!{first.path}` into .hopignore to pack it, or share data with `hop dataset push`"
        )


def failed_run_hint(run: api.RunOut, folder: Path | None = None) -> str | None:
    """Returns the hint of `missing_file_hint` for an ended run, if `folder` seems to be that of its code.

    folder: the current one by default; None is returned if that was deleted.
    """
    exit_ = run.get("exit")
    if run["phase"] != "failed" or exit_ is None:
        return None
    try:
        folder = Path.cwd() if folder is None else folder
    except FileNotFoundError:
        return None
    words = {word for role in run["spec"]["roles"] for word in role["command"]}
    scripts = [word for word in words if word.endswith((".py", ".sh")) and not word.startswith("/")]
    if not any((folder / script).is_file() for script in scripts):
        return None
    try:
        return missing_file_hint(folder, exit_["reason"])
    except (SpecError, OSError):  # the folder holds something that cannot be packed
        return None


def missing_file_hint(folder: Path, reason: str) -> str | None:
    """Returns a hint for a run that ended because it found no file, if the file was left out of its code.

    folder: the code of the run on this machine. reason: why the run ended.
    """
    if not _MISSING_FILE.search(reason):
        return None
    left_out: list[IgnoredEntry] | None = None
    for name in _FILE_NAME.findall(reason):
        path = os.path.normpath(name.partition(_WORK_FOLDER)[2] if name.startswith("/") else name)
        if path.startswith(("..", "/")) or path == "." or not (folder / path).exists():
            continue
        if left_out is None:
            left_out = scan_folder(folder, CODE_RULES).left_out
        entry = find_left_out(left_out, path)
        if entry is not None:
            siblings = _siblings(left_out, entry)
            more, pattern = "", entry.path
            if siblings:  # the script needs them, too, and may go wrong without a word
                plural = "" if len(siblings) == 1 else "s"
                more = f" (and {len(siblings)} other path{plural} of its folder)"
                pattern = f"{_folder_of(entry)}/*"
            return (
                f"hint: `{path}`{more} was not packed: {entry.reason} leaves it out; write `!{pattern}` into "
                ".hopignore, or share it with `hop dataset push`"
            )
    return None


def _siblings(left_out: Sequence[IgnoredEntry], entry: IgnoredEntry) -> list[IgnoredEntry]:
    """Returns the other entries of the same folder, below the root."""
    folder = _folder_of(entry)
    return [other for other in left_out if folder and other is not entry and _folder_of(other) == folder]


def _folder_of(entry: IgnoredEntry) -> str:
    return entry.path.rstrip("/").rpartition("/")[0]


def find_left_out(left_out: Sequence[IgnoredEntry], path: str) -> IgnoredEntry | None:
    """Returns the entry that contains the path. path: relative and normal."""
    for entry in left_out:
        if path == entry.path or (entry.path.endswith("/") and f"{path}/".startswith(entry.path)):
            return entry
    return None


def _named_paths(
    root: Path, left_out: Sequence[IgnoredEntry], commands: Iterable[Sequence[str]]
) -> dict[str, IgnoredEntry]:
    named: dict[str, IgnoredEntry] = {}
    for text in _named_texts(root, commands):
        path = os.path.normpath(text)
        if path.startswith(("/", "..")) or path in (".", "") or not os.path.lexists(root / path):
            continue  # most texts are no path: the search in the list is only for those that are
        entry = find_left_out(left_out, path)
        if entry is not None and entry not in named.values() and not _is_result(entry):
            named[path] = entry
    return named


def _is_supplied(path: str, places: Sequence[str]) -> bool:
    """Returns whether the path contains one of the places, or is in it."""
    folder = path if path.endswith("/") else f"{path}/"
    return any(f"{place}/".startswith(folder) or folder.startswith(f"{place}/") for place in places)


def _named_texts(root: Path, commands: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yields the arguments of the commands, and the quoted texts of their scripts. An argument with the
    folder of a dataset replaces a path that the script has as its default."""
    for command in commands:
        has_dataset = any(name.startswith(DATASET_PREFIX) for name in placeholder_names(command))
        for word in command[1:]:
            yield word.rpartition("=")[2]
            script = root / word
            is_script = word.endswith((".py", ".sh")) and not word.startswith("/")
            if is_script and not has_dataset and script.is_file():
                with script.open("rb") as file:
                    source = file.read(_MAX_SCRIPT_BYTES).decode(errors="replace")
                yield from (text for _, text in _QUOTED_TEXT.findall(source))


def _large_entries(
    root: Path, left_out: Sequence[IgnoredEntry], *, excluded: set[str]
) -> tuple[list[tuple[IgnoredEntry, int]], bool]:
    """Returns entries with their sizes, the largest first, and whether all folders were measured to their
    end."""
    sizes: list[tuple[IgnoredEntry, int]] = []
    budget = _MAX_MEASURED_FILES
    for entry in left_out:
        if entry.path in excluded or _is_result(entry):
            continue
        size = entry.size_bytes
        if entry.path.endswith("/"):
            size, budget = _folder_size(root / entry.path, budget)
        if size >= _MIN_NOTICE_BYTES:
            sizes.append((entry, size))
    return sorted(sizes, key=lambda pair: -pair[1]), budget > 0


def _folder_size(folder: Path, budget: int) -> tuple[int, int]:
    """Returns the bytes of the first `budget` files, and the rest of the budget."""
    total, pending = 0, [os.fspath(folder)]
    while pending and budget > 0:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                        continue
                    budget -= 1
                    info = entry.stat(follow_symlinks=False)
                    total += info.st_size if stat.S_ISREG(info.st_mode) else 0
                    if budget <= 0:
                        break
        except OSError:
            continue  # unreadable, or removed meanwhile: only a notice depends on it
    return total, budget


def _is_result(entry: IgnoredEntry) -> bool:
    parts = entry.path.rstrip("/").split("/")
    return any(part in _RESULT_FOLDERS or part.endswith((".egg-info", ".so", ".o")) for part in parts)
