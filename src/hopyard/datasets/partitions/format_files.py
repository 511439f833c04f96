"""Selects the files of a dataset for a plan, and detects their format."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from hopyard.domain.study import PartitionPlan
from hopyard.errors import SpecError

FORMATS = {
    "parquet": (".parquet", ".pq"),
    "npy": (".npy",),
    "npz": (".npz",),
    "images": (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"),
    "tar": (".tar",),
    "text": (".txt", ".text", ".jsonl"),
}
_FORMAT_BY_SUFFIX = {suffix: name for name, suffixes in FORMATS.items() for suffix in suffixes}
# files that many datasets contain beside data
_DOCUMENTATION_NAMES = ("readme", "license", "licence", "changelog", "requirements", "notice")
_TO_PARQUET = "convert it to Parquet: pandas.read_csv('{0}').to_parquet('data.parquet')"
_UNSUPPORTED_HINTS = {
    ".csv": _TO_PARQUET,
    ".tsv": _TO_PARQUET,
    ".gz": "unpack it: gunzip {0}",
    ".tgz": "unpack it: gunzip {0}",
    ".zip": "unpack it: unzip {0}",
}


@dataclass(frozen=True, slots=True)
class FormatFiles:
    """The files of one format. Paths are relative to `folder` and sorted. empty_folders: folders below
    `folder` without a file of the format."""

    folder: Path
    format: str
    train: tuple[str, ...]
    validation: tuple[str, ...]
    empty_folders: tuple[str, ...]


def find_files(folder: Path, plan: PartitionPlan) -> FormatFiles:
    """Selects the files of the plan. Raises SpecError if there are none, several formats, or an empty
    file."""
    if not folder.is_dir():
        raise SpecError(f"`{folder}` is not a folder", hints=("a dataset is a folder of files",))
    if plan.format and plan.format not in FORMATS:
        raise SpecError(
            f"partitions.format: unknown format `{plan.format}`", hints=(f"use one of {', '.join(FORMATS)}",)
        )
    all_paths = sorted(_walk(folder))
    if plan.validation_from and not any(path.startswith(plan.validation_from) for path in all_paths):
        hint = (
            "use a folder or the start of a file's path, such as "
            f"`{(all_paths or ['test/'])[-1].rpartition('/')[0] or 'test'}`"
        )
        raise SpecError(
            f"partitions.validation_from: no path starts with `{plan.validation_from}`", hints=(hint,)
        )
    validation = [
        path for path in all_paths if plan.validation_from and path.startswith(plan.validation_from)
    ]
    train = [path for path in all_paths if path not in set(validation)] if validation else all_paths
    train = [path for path in train if matches(path, plan.files)]
    if not train:
        if not plan.files:
            raise SpecError(
                "the dataset has no files for training",
                hints=("run `hop dataset push NAME FOLDER` to push a new version",),
            )
        hint = (
            (f"the first of its {len(all_paths):,} files is `{all_paths[0]}`; `*` matches any part of a path")
            if all_paths
            else "it holds no files"
        )
        raise SpecError(f"partitions.files: no file matches `{plan.files}`", hints=(hint,))
    format = plan.format or _format(train)
    train, validation = _files_of_format(train, format, plan), _files_of_format(validation, format, plan)
    if plan.validation_from and not validation:
        raise SpecError(
            f"partitions.validation_from: no file below `{plan.validation_from}` is of format "
            f"{format}, the format of the training files"
        )
    for path in (*train, *validation):
        if os.path.getsize(folder / path) == 0:
            raise SpecError(f"`{path}` is an empty file", hints=("remove it, or exclude it with `files`",))
    used_folders = {parent for path in (*train, *validation) for parent in _parents(path)}
    empty_folders = () if plan.files else tuple(sorted(set(_folders(folder)) - used_folders))
    return FormatFiles(folder, format, tuple(train), tuple(validation), empty_folders)


def matches(path: str, pattern: str) -> bool:
    """Returns whether a path matches. `*` matches any part of a path, `/` included; `**/` matches any number
    of folders, or none."""
    return not pattern or fnmatchcase(path, pattern) or fnmatchcase(path, pattern.replace("**/", ""))


def _format(paths: Sequence[str]) -> str:
    first: dict[str, str] = {}
    for path in paths:
        suffix = os.path.splitext(path)[1].lower()
        if suffix in _FORMAT_BY_SUFFIX and not _is_documentation(path):
            first.setdefault(_FORMAT_BY_SUFFIX[suffix], path)
    if len(first) > 1:
        examples = ", ".join(f"`{path}` ({name})" for name, path in first.items())
        hints = (
            "select one: `format: parquet`, or `files: '*.parquet'`",
            "a folder of images must not contain other files",
        )
        raise SpecError(f"files of several formats: {examples}", hints=hints)
    if not first:
        suffix = os.path.splitext(paths[0])[1].lower()
        hint = (
            _UNSUPPORTED_HINTS.get(suffix, "").format(os.path.basename(paths[0]))
            or f"known suffixes: {', '.join(_FORMAT_BY_SUFFIX)}; or use `format: text` for lines of any file"
        )
        raise SpecError(f"no file has a known format; the first is `{paths[0]}`", hints=(hint,))
    return next(iter(first))


def _files_of_format(paths: Sequence[str], format: str, plan: PartitionPlan) -> list[str]:
    if format == "text" and plan.format == "text":
        return list(paths)  # any file can be read as lines
    return [
        path
        for path in paths
        if path.lower().endswith(FORMATS[format]) and not (format == "text" and _is_documentation(path))
    ]


def _is_documentation(path: str) -> bool:
    return os.path.basename(path).lower().startswith(_DOCUMENTATION_NAMES)


def _walk(folder: Path) -> Iterator[str]:
    for prefix, _, names in _folder_index(folder):
        yield from (f"{prefix}{name}" for name in names if not name.startswith("."))


def _folders(folder: Path) -> Iterator[str]:
    for prefix, folders, _ in _folder_index(folder):
        yield from (f"{prefix}{name}" for name in folders)


def _folder_index(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yields each folder that is not hidden: its path ending with `/`, its folders, its files. Does not
    follow a link to a folder that contains it."""
    for parent, folders, names in os.walk(folder, followlinks=True):
        real_parent = os.path.realpath(parent) + os.sep
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and not real_parent.startswith(os.path.realpath(f"{parent}/{name}") + os.sep)
        )
        relative = os.path.relpath(parent, folder).replace(os.sep, "/")
        yield "" if relative == "." else f"{relative}/", folders, names


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
