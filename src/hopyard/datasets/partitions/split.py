"""Splits a dataset version into partitions, once for each plan.

The index stores the position of each row, by partition; the rows themselves are not copied. It is an .npz
file, and a worker reads only the part of its own partition.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from hopyard.datasets.partitions import images, numpy_files, parquet, tar, text
from hopyard.datasets.partitions.arrays import Array, np
from hopyard.datasets.partitions.build_once import build_once
from hopyard.datasets.partitions.data_format import DataFormat, FormatInfo, FormatScan
from hopyard.datasets.partitions.format_files import FormatFiles, find_files
from hopyard.datasets.partitions.memory_budget import DEFAULT_BUDGET
from hopyard.datasets.partitions.name_errors import count_text, shortened_list, unknown_name_hints
from hopyard.datasets.partitions.partition import Kind, Partition
from hopyard.datasets.partitions.row_assignment import assign_rows, split_validation, stratified_order
from hopyard.datasets.partitions.seeded_order import derive_seed
from hopyard.domain.study import PartitionPlan
from hopyard.errors import IntegrityError, SpecError

# the version of the index format and of the row assignment: another version gives other partitions
_LAYOUT = 1
_WINDOW_BYTES = 64 * 1024 * 1024  # the rows that are shuffled together, if they are read a block at a time
_KEY = re.compile(r"partitions(\.\w+)?")  # a message starts with the key of the plan that it concerns
_MAX_CLASSES_NAMED = 10  # up to this number of classes, the number of rows is not checked
_FORMATS: dict[str, DataFormat] = {
    "parquet": parquet,
    "npy": numpy_files,
    "npz": numpy_files,
    "images": images,
    "tar": tar,
    "text": text,
}


@dataclass(frozen=True, slots=True)
class PartitionedDataInfo:
    """The result of `check_partitions`. rows: for training and validation; None if only a split can count
    them (tar, text)."""

    format: str
    columns: tuple[str, ...]
    rows: int | None
    classes: tuple[str, ...]


class PartitionSet:
    """All partitions of one dataset version under one plan. key: identifies them in every study; equal data
    and plans give equal keys."""

    def __init__(self, folder: Path, index: Path, key: str) -> None:
        self.folder, self.key, self._index = folder, key, index
        self._info: dict[str, Any] = json.loads(bytes(self._read("about")[""]))

    @property
    def parts(self) -> int:
        return len(self._info["rows"]["train"])

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._info["train"]["columns"])

    def rows(self, kind: Kind = "train") -> tuple[int, ...]:
        """Returns the number of rows of each partition; () for a kind that the plan does not use."""
        return tuple(self._info["rows"].get(kind, ()))

    def open(self, index: int, kind: Kind = "train", *, memory_bytes: int = DEFAULT_BUDGET) -> Partition:
        """Opens one partition.

        memory_bytes: the memory limit of its columns; the default is half of the free memory, shared with the
        workers of the machine. Raises SpecError for an unknown partition, and IntegrityError if the index is
        damaged.
        """
        peers = self.rows(kind)
        if kind == "validation" and not peers:
            hints = (
                "set a share of the rows for validation: `validation: 0.2`",
                "or set the folder of the validation files: `validation_from: test`",
            )
            raise SpecError("partitions.validation: the plan uses no rows for validation", hints=hints)
        if not 0 <= index < len(peers):
            raise SpecError(f"there is no {kind} partition {index}: they are 0 to {len(peers) - 1}")
        info = _format_info(self._info[kind])
        return Partition(
            _FORMATS[self._info["format"]].reader(self.folder, info, self._read(f"{kind}.{index}.")),
            index=index,
            peers=peers,
            kind=kind,
            key=f"{self.key}.{kind}.{index}",
            classes=info.classes,
            folder=self._index.parent,
            window_rows=self._info["window_rows"],
            memory_bytes=memory_bytes,
        )

    def _read(self, prefix: str) -> dict[str, Array]:
        """Returns the arrays of the index whose names start with `prefix`, by the rest of their names."""
        try:
            with np.load(self._index) as index_file:
                return {
                    name.removeprefix(prefix): index_file[name]
                    for name in index_file.files
                    if name.startswith(prefix)
                }
        except (zipfile.BadZipFile, ValueError, OSError, EOFError) as error:
            self._index.unlink(missing_ok=True)
            raise IntegrityError(
                f"the index of the partitions, {self._index}, is damaged: {error}",
                hints=("it was removed; start again",),
            ) from error


def check_partitions(folder: Path, plan: PartitionPlan, *, dataset: str = "") -> PartitionedDataInfo:
    """Checks everything about the data that needs no full read: formats, headers, columns, numbers of rows.

    Fast. Raises SpecError with the name of the dataset, and the file or the key of the plan.
    """
    with _with_dataset_name(dataset):
        return _inspect_and_check(folder, plan)


def _inspect_and_check(folder: Path, plan: PartitionPlan) -> PartitionedDataInfo:
    _check_plan(plan)
    files = find_files(folder, plan)
    train, validation = _inspect_files(files, plan)
    _check_stratify(files, train, plan.stratify)
    if train.rows is not None:
        validation_rows = 0 if plan.validation_from else int(train.rows * plan.validation + 0.5)
        _check_row_count(train.rows - validation_rows, plan, "train")
        if validation_rows or plan.validation:
            _check_row_count(validation_rows, plan, "validation")
    if validation is not None and validation.rows is not None:
        _check_row_count(validation.rows, plan, "validation")
    rows = None if train.rows is None else train.rows + ((validation.rows or 0) if validation else 0)
    return PartitionedDataInfo(files.format, train.columns, rows, train.classes)


def split_dataset(
    folder: Path, plan: PartitionPlan, manifest: str, cache: Path, *, dataset: str = ""
) -> PartitionSet:
    """Splits the dataset in `folder`, whose content `manifest` names, unless `cache` holds the index already.

    Safe to call from any number of processes. Raises SpecError as `check_partitions`, and for errors that
    only a full read detects.
    """
    with _with_dataset_name(dataset):
        _check_plan(plan)
        inputs = json.dumps([_LAYOUT, manifest, asdict(plan)], sort_keys=True)
        key = blake2b(inputs.encode(), digest_size=32).hexdigest()
        path = build_once(
            cache / f"{key}.npz", lambda file: _write_index(file, folder, plan), is_valid=_is_valid_index
        )
        return PartitionSet(folder, path, key)


@contextmanager
def _with_dataset_name(dataset: str) -> Iterator[None]:
    """Adds the name of the dataset to errors, because users do not know the name of its folder."""
    try:
        yield
    except SpecError as error:
        if not dataset:
            raise
        key, colon, problem = error.message.partition(": ")
        location, text = (f"{key}: ", problem) if colon and _KEY.fullmatch(key) else ("", error.message)
        raise SpecError(f"{location}dataset `{dataset}`: {text}", hints=error.hints) from error


def _is_valid_index(path: Path) -> bool:
    """Returns whether the file is complete: after a power loss, an empty file may remain. Reads are checked
    by CRC."""
    return zipfile.is_zipfile(path)


def _write_index(file: IO[bytes], folder: Path, plan: PartitionPlan) -> None:
    _inspect_and_check(folder, plan)
    files = find_files(folder, plan)
    source = _FORMATS[files.format]
    infos = dict(zip(("train", "validation"), _inspect_files(files, plan), strict=True))
    train, validation = infos["train"], infos["validation"]
    assert train is not None
    window = max(1, int(_WINDOW_BYTES / max(1.0, sum(train.row_bytes.values()))))
    scan = source.scan(folder, train, plan.stratify)
    _check_classes(scan, plan.stratify)
    train_order, validation_order = split_validation(
        stratified_order(scan.rows, scan.strata, plan.seed), plan.validation
    )
    sources: dict[str, tuple[FormatInfo, FormatScan, Array]] = {"train": (train, scan, train_order)}
    if validation is not None:
        validation_scan = source.scan(folder, validation, plan.stratify)
        sources["validation"] = (
            validation,
            validation_scan,
            stratified_order(validation_scan.rows, validation_scan.strata, plan.seed),
        )
    elif plan.validation:
        sources["validation"] = (train, scan, validation_order)
    arrays: dict[str, Any] = {}
    index: dict[str, Any] = {"format": files.format, "window_rows": window, "rows": {}}
    for kind, (info, kind_scan, ordered_rows) in sources.items():
        _check_row_count(len(ordered_rows), plan, kind)
        parts = assign_rows(ordered_rows, plan.parts, kind_scan.blocks, window, derive_seed(plan.seed, kind))
        index["rows"][kind] = [len(rows) for rows in parts]
        index[kind] = asdict(info)
        for number, rows in enumerate(parts):
            arrays.update(
                {f"{kind}.{number}.{name}": values[rows] for name, values in kind_scan.locators.items()}
            )
    arrays["about"] = np.frombuffer(json.dumps(index).encode(), dtype=np.uint8)
    np.savez(file, **arrays)


def _inspect_files(files: FormatFiles, plan: PartitionPlan) -> tuple[FormatInfo, FormatInfo | None]:
    """Returns the metadata of the training files and of the validation files. Both have the same columns and
    classes."""
    source = _FORMATS[files.format]
    if files.format == "images" and files.empty_folders:
        raise SpecError(
            f"the class `{files.empty_folders[0]}` is empty: its folder holds no image",
            hints=("remove the folder, or select files with `files`",),
        )
    train = source.inspect_files(files.folder, files.train, plan.columns, "")
    if not files.validation:
        return train, None
    validation = source.inspect_files(files.folder, files.validation, plan.columns, plan.validation_from)
    if set(validation.columns) != set(train.columns):
        problem = (
            f"validation has columns {shortened_list(validation.columns)}; training has "
            f"{shortened_list(train.columns)}"
        )
        raise SpecError(
            f"partitions.validation_from: {problem}", hints=("select common columns with `columns`",)
        )
    if unknown := set(validation.classes) - set(train.classes):
        raise SpecError(f"partitions.validation_from: no training file is of class `{min(unknown)}`")
    return train, replace(validation, columns=train.columns, classes=train.classes)


def _format_info(fields: Mapping[str, Any]) -> FormatInfo:
    return FormatInfo(**{**fields, "columns": tuple(fields["columns"]), "classes": tuple(fields["classes"])})


def _check_plan(plan: PartitionPlan) -> None:
    if plan.parts < 1:
        raise SpecError(
            f"partitions.parts: must be at least 1 (got {plan.parts})",
            hints=("use one partition per worker, or more",),
        )
    if not 0 <= plan.validation < 1:
        raise SpecError(
            f"partitions.validation: {plan.validation} is not a share of the rows",
            hints=("use a number of at least 0 and below 1, such as 0.2",),
        )
    if plan.validation and plan.validation_from:
        raise SpecError(
            "partitions: `validation` and `validation_from` exclude each other",
            hints=("set a share of the rows, or the files that hold them",),
        )


def _check_classes(scan: FormatScan, column: str) -> None:
    """Raises SpecError if the column has too many different values to be a class."""
    count = 0 if scan.strata is None else int(scan.strata.max(initial=-1)) + 1
    if count > max(scan.rows // 2, _MAX_CLASSES_NAMED):
        hint = "stratify by the column of classes; rows are shuffled anyway"
        raise SpecError(
            f"partitions.stratify: column `{column}` has {count:,} different values in {scan.rows:,} "
            "rows: too many for classes",
            hints=(hint,),
        )


def _check_row_count(rows: int, plan: PartitionPlan, kind: str) -> None:
    """Raises SpecError if a partition would have no row."""
    if rows >= plan.parts:
        return
    if kind == "train":
        problem = (
            f"partitions.parts: {count_text(rows)} for training cannot be split into {plan.parts} partitions"
        )
        hint = (
            f"use at most {count_text(rows, 'worker')} and partitions"
            if rows
            else "`validation` uses all of them"
        )
    else:
        problem = (
            f"partitions.validation: {count_text(rows)} for validation cannot be split into {plan.parts} "
            "partitions"
        )
        hint = (
            "use a larger `validation`, or fewer workers and partitions: each partition is evaluated on its "
            "own validation part"
        )
    raise SpecError(problem, hints=(hint,))


def _check_stratify(files: FormatFiles, train: FormatInfo, column: str) -> None:
    """Raises SpecError if the column is unknown or, as far as the first row shows, has several values per
    row."""
    if not column or (files.format == "images" and column == "folder"):
        return
    if column not in train.columns:
        raise SpecError(
            f"partitions.stratify: there is no column `{column}`",
            hints=unknown_name_hints(column, train.columns),
        )
    if train.rows and files.format in ("parquet", "npy", "npz"):
        first = np.zeros(1, dtype=np.int64)
        shape = (
            _FORMATS[files.format]
            .reader(files.folder, train, {"row": first})
            .take(first, (column,))[column]
            .shape[1:]
        )
        if shape:
            problem = f"column `{column}` has {' x '.join(map(str, shape))} values per row instead of one"
            raise SpecError(
                f"partitions.stratify: {problem}",
                hints=("stratify by the column of classes, or remove it: rows are shuffled anyway",),
            )
