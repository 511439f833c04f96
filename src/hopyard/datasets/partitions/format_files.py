"""Which files of a dataset belong to a plan, and of what format they are."""

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
# of any data set, and not data
_DOCUMENTATION_NAMES = ("readme", "license", "licence", "changelog", "requirements", "notice")
_TO_PARQUET = "make it Parquet: pandas.read_csv('{0}').to_parquet('data.parquet')"
_UNSUPPORTED_HINTS = {
    ".csv": _TO_PARQUET,
    ".tsv": _TO_PARQUET,
    ".gz": "unpack it: gunzip {0}",
    ".tgz": "unpack it: gunzip {0}",
    ".zip": "unpack it: unzip {0}",
}


@dataclass(frozen=True, slots=True)
class FormatFiles:
    """Paths relative to `folder`, sorted. empty_folders: those below `folder` that hold nothing of the
    format."""

    folder: Path
    format: str
    train: tuple[str, ...]
    validation: tuple[str, ...]
    empty_folders: tuple[str, ...]


def find_files(folder: Path, plan: PartitionPlan) -> FormatFiles:
    """Raises SpecError where there are none, several formats, or an empty one."""
    if not folder.is_dir():
        raise SpecError(f"`{folder}` is no folder", hints=("a dataset is a folder of files",))
    if plan.format and plan.format not in FORMATS:
        raise SpecError(
            f"partitions.format: there is no format `{plan.format}`", hints=(f"one of {', '.join(FORMATS)}",)
        )
    everything = sorted(_walk(folder))
    if plan.validation_from and not any(path.startswith(plan.validation_from) for path in everything):
        hint = (
            "it is a folder or the beginning of a file's path, such as "
            f"`{(everything or ['test/'])[-1].rpartition('/')[0] or 'test'}`"
        )
        raise SpecError(
            f"partitions.validation_from: no file begins with `{plan.validation_from}`", hints=(hint,)
        )
    validation = [
        path for path in everything if plan.validation_from and path.startswith(plan.validation_from)
    ]
    train = [path for path in everything if path not in set(validation)] if validation else everything
    train = [path for path in train if matches(path, plan.files)]
    if not train:
        if not plan.files:
            raise SpecError(
                "there are no files to train on",
                hints=("`hop dataset push NAME FOLDER` makes a new version of a dataset",),
            )
        hint = (
            (
                f"the first of its {len(everything):,} files is `{everything[0]}`; `*` stands for any part "
                "of a path"
            )
            if everything
            else "it holds no files"
        )
        raise SpecError(f"partitions.files: no file matches `{plan.files}`", hints=(hint,))
    format = plan.format or _format(train)
    train, validation = _files_of_format(train, format, plan), _files_of_format(validation, format, plan)
    if plan.validation_from and not validation:
        raise SpecError(
            f"partitions.validation_from: no file below `{plan.validation_from}` is of format "
            f"{format}, as those to train on are"
        )
    for path in (*train, *validation):
        if os.path.getsize(folder / path) == 0:
            raise SpecError(f"`{path}` is an empty file", hints=("remove it, or leave it out with `files`",))
    holding = {parent for path in (*train, *validation) for parent in _parents(path)}
    empty = () if plan.files else tuple(sorted(set(_folders(folder)) - holding))
    return FormatFiles(folder, format, tuple(train), tuple(validation), empty)


def matches(path: str, pattern: str) -> bool:
    """`*` stands for any part of a path, folders too; `**/` for any number of folders, none too."""
    return not pattern or fnmatchcase(path, pattern) or fnmatchcase(path, pattern.replace("**/", ""))


def _format(paths: Sequence[str]) -> str:
    first: dict[str, str] = {}
    for path in paths:
        suffix = os.path.splitext(path)[1].lower()
        if suffix in _FORMAT_BY_SUFFIX and not _is_documentation(path):
            first.setdefault(_FORMAT_BY_SUFFIX[suffix], path)
    if len(first) > 1:
        told = ", ".join(f"`{path}` ({name})" for name, path in first.items())
        hints = (
            "say which: `format: parquet`, or `files: '*.parquet'`",
            "a folder of images holds nothing else",
        )
        raise SpecError(f"files of several formats: {told}", hints=hints)
    if not first:
        suffix = os.path.splitext(paths[0])[1].lower()
        hint = (
            _UNSUPPORTED_HINTS.get(suffix, "").format(os.path.basename(paths[0]))
            or f"known: {', '.join(_FORMAT_BY_SUFFIX)}; or `format: text` for lines of any file"
        )
        raise SpecError(f"no file is of a known format; the first is `{paths[0]}`", hints=(hint,))
    return next(iter(first))


def _files_of_format(paths: Sequence[str], format: str, plan: PartitionPlan) -> list[str]:
    if format == "text" and plan.format == "text":
        return list(paths)  # lines of whatever files were named
    return [
        path
        for path in paths
        if path.lower().endswith(FORMATS[format]) and not (format == "text" and _is_documentation(path))
    ]


def _is_documentation(path: str) -> bool:
    return os.path.basename(path).lower().startswith(_DOCUMENTATION_NAMES)


def _walk(folder: Path) -> Iterator[str]:
    for inner, _, names in _folder_index(folder):
        yield from (f"{inner}{name}" for name in names if not name.startswith("."))


def _folders(folder: Path) -> Iterator[str]:
    for inner, folders, _ in _folder_index(folder):
        yield from (f"{inner}{name}" for name in folders)


def _folder_index(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Of each folder that is not hidden: its path with a slash at the end, the folders and the files in it.
    A link that leads back to a folder that it lies in is not followed."""
    for parent, folders, names in os.walk(folder, followlinks=True):
        above = os.path.realpath(parent) + os.sep
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and not above.startswith(os.path.realpath(f"{parent}/{name}") + os.sep)
        )
        inner = os.path.relpath(parent, folder).replace(os.sep, "/")
        yield "" if inner == "." else f"{inner}/", folders, names


def _parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
