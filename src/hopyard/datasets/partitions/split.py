"""Splitting a dataset version into partitions: once for each plan, whoever asks.

The index says of each partition where its rows lie; the rows themselves stay where they are. It is an .npz
file, of which a worker reads its own partition's part only.
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

_LAYOUT = 1  # of indexes, and of how rows are dealt: another number, other partitions
_WINDOW_BYTES = 64 * 1024 * 1024  # of rows that are shuffled together, where they come a block at a time
_KEY = re.compile(r"partitions(\.\w+)?")  # a message begins with the entry of the plan that it is about
_MAX_CLASSES_NAMED = 10  # are not asked how many rows they have
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
    """What `check` saw. rows: to train on and validate with; None where only splitting tells (tar, text)."""

    format: str
    columns: tuple[str, ...]
    rows: int | None
    classes: tuple[str, ...]


class PartitionSet:
    """All partitions of one dataset version under one plan.
    key: names them in every study; equal data and plans give equal keys."""

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
        """How many each partition has; none of a kind that the plan does not set apart."""
        return tuple(self._info["rows"].get(kind, ()))

    def open(self, index: int, kind: Kind = "train", *, memory_bytes: int = DEFAULT_BUDGET) -> Partition:
        """One of them. memory_bytes: what its columns may take; the default is half of what is free, shared
        with the workers of the machine. Raises SpecError for one that there is not, IntegrityError where the
        index is damaged."""
        peers = self.rows(kind)
        if kind == "validation" and not peers:
            hints = (
                "`validation: 0.2` sets a share of the rows apart",
                "`validation_from: test` names the folder that holds them",
            )
            raise SpecError("partitions.validation: the plan sets no rows apart for validation", hints=hints)
        if not 0 <= index < len(peers):
            raise SpecError(f"there is no {kind} partition {index}: they are 0 to {len(peers) - 1}")
        about = _format_info(self._info[kind])
        return Partition(
            _FORMATS[self._info["format"]].reader(self.folder, about, self._read(f"{kind}.{index}.")),
            index=index,
            peers=peers,
            kind=kind,
            key=f"{self.key}.{kind}.{index}",
            classes=about.classes,
            folder=self._index.parent,
            window_rows=self._info["window_rows"],
            memory_bytes=memory_bytes,
        )

    def _read(self, prefix: str) -> dict[str, Array]:
        """The arrays of the index whose names begin so, by the rest of their names."""
        try:
            with np.load(self._index) as held:
                return {
                    name.removeprefix(prefix): held[name] for name in held.files if name.startswith(prefix)
                }
        except (zipfile.BadZipFile, ValueError, OSError, EOFError) as bad:
            self._index.unlink(missing_ok=True)
            raise IntegrityError(
                f"the index of the partitions, {self._index}, is damaged: {bad}",
                hints=("it is removed; start again",),
            ) from bad


def check_partitions(folder: Path, plan: PartitionPlan, *, dataset: str = "") -> PartitionedDataInfo:
    """Everything that can be known of the data without reading it all: formats, headers, columns, numbers of
    rows. Takes a moment. Raises SpecError that names the dataset as people do, and the file or the entry of
    the plan."""
    with _with_dataset_name(dataset):
        return _inspect_and_check(folder, plan)


def _inspect_and_check(folder: Path, plan: PartitionPlan) -> PartitionedDataInfo:
    _check_plan(plan)
    files = find_files(folder, plan)
    train, validation = _inspect_files(files, plan)
    _check_stratify(files, train, plan.stratify)
    if train.rows is not None:
        apart = 0 if plan.validation_from else int(train.rows * plan.validation + 0.5)
        _check_row_count(train.rows - apart, plan, "train")
        if apart or plan.validation:
            _check_row_count(apart, plan, "validation")
    if validation is not None and validation.rows is not None:
        _check_row_count(validation.rows, plan, "validation")
    rows = None if train.rows is None else train.rows + ((validation.rows or 0) if validation else 0)
    return PartitionedDataInfo(files.format, train.columns, rows, train.classes)


def split_dataset(
    folder: Path, plan: PartitionPlan, manifest: str, cache: Path, *, dataset: str = ""
) -> PartitionSet:
    """Split the dataset in `folder`, whose content `manifest` names, unless `cache` holds the index already.
    Any number of processes may ask at once. Raises SpecError as `check`, and for what only reading shows."""
    with _with_dataset_name(dataset):
        _check_plan(plan)
        named = json.dumps([_LAYOUT, manifest, asdict(plan)], sort_keys=True)
        key = blake2b(named.encode(), digest_size=32).hexdigest()
        path = build_once(
            cache / f"{key}.npz", lambda file: _write_index(file, folder, plan), is_valid=_is_valid_index
        )
        return PartitionSet(folder, path, key)


@contextmanager
def _with_dataset_name(dataset: str) -> Iterator[None]:
    """What is wrong is told of the dataset as people call it; the folder's name says nothing to them."""
    try:
        yield
    except SpecError as wrong:
        if not dataset:
            raise
        key, colon, problem = wrong.message.partition(": ")
        at, told = (f"{key}: ", problem) if colon and _KEY.fullmatch(key) else ("", wrong.message)
        raise SpecError(f"{at}dataset `{dataset}`: {told}", hints=wrong.hints) from wrong


def _is_valid_index(path: Path) -> bool:
    """Whether it was written whole: a machine that lost power may have kept its name only.
    What is read is checked by its CRC."""
    return zipfile.is_zipfile(path)


def _write_index(file: IO[bytes], folder: Path, plan: PartitionPlan) -> None:
    _inspect_and_check(folder, plan)
    files = find_files(folder, plan)
    source = _FORMATS[files.format]
    abouts = dict(zip(("train", "validation"), _inspect_files(files, plan), strict=True))
    train, apart = abouts["train"], abouts["validation"]
    assert train is not None
    window = max(1, int(_WINDOW_BYTES / max(1.0, sum(train.row_bytes.values()))))
    scan = source.scan(folder, train, plan.stratify)
    _check_classes(scan, plan.stratify)
    turn, share = split_validation(stratified_order(scan.rows, scan.strata, plan.seed), plan.validation)
    turns: dict[str, tuple[FormatInfo, FormatScan, Array]] = {"train": (train, scan, turn)}
    if apart is not None:
        own = source.scan(folder, apart, plan.stratify)
        turns["validation"] = (apart, own, stratified_order(own.rows, own.strata, plan.seed))
    elif plan.validation:
        turns["validation"] = (train, scan, share)
    arrays: dict[str, Any] = {}
    told: dict[str, Any] = {"format": files.format, "window_rows": window, "rows": {}}
    for kind, (about, scanned, rows_in_turn) in turns.items():
        _check_row_count(len(rows_in_turn), plan, kind)
        parts = assign_rows(rows_in_turn, plan.parts, scanned.blocks, window, derive_seed(plan.seed, kind))
        told["rows"][kind] = [len(rows) for rows in parts]
        told[kind] = asdict(about)
        for number, rows in enumerate(parts):
            arrays.update(
                {f"{kind}.{number}.{name}": values[rows] for name, values in scanned.locators.items()}
            )
    arrays["about"] = np.frombuffer(json.dumps(told).encode(), dtype=np.uint8)
    np.savez(file, **arrays)


def _inspect_files(files: FormatFiles, plan: PartitionPlan) -> tuple[FormatInfo, FormatInfo | None]:
    """What the files to train on and those for validation say of themselves; both have the same columns and
    classes."""
    source = _FORMATS[files.format]
    if files.format == "images" and files.empty_folders:
        raise SpecError(
            f"the class `{files.empty_folders[0]}` is empty: the folder holds no image",
            hints=("remove the folder, or say which `files` to take",),
        )
    train = source.inspect_files(files.folder, files.train, plan.columns, "")
    if not files.validation:
        return train, None
    apart = source.inspect_files(files.folder, files.validation, plan.columns, plan.validation_from)
    if set(apart.columns) != set(train.columns):
        told = (
            f"validation has columns {shortened_list(apart.columns)}; training has "
            f"{shortened_list(train.columns)}"
        )
        raise SpecError(
            f"partitions.validation_from: {told}", hints=("`columns` names those that both have",)
        )
    if unknown := set(apart.classes) - set(train.classes):
        raise SpecError(f"partitions.validation_from: no file to train on is of class `{min(unknown)}`")
    return train, replace(apart, columns=train.columns, classes=train.classes)


def _format_info(fields: Mapping[str, Any]) -> FormatInfo:
    return FormatInfo(**{**fields, "columns": tuple(fields["columns"]), "classes": tuple(fields["classes"])})


def _check_plan(plan: PartitionPlan) -> None:
    if plan.parts < 1:
        raise SpecError(
            f"partitions.parts: {plan.parts} partitions cannot be", hints=("one for each worker, or more",)
        )
    if not 0 <= plan.validation < 1:
        raise SpecError(
            f"partitions.validation: {plan.validation} is not a share of the rows",
            hints=("a number from 0 to below 1, such as 0.2",),
        )
    if plan.validation and plan.validation_from:
        raise SpecError(
            "partitions: both `validation` and `validation_from` are given",
            hints=("a share of the rows, or the files that hold them",),
        )


def _check_classes(scan: FormatScan, column: str) -> None:
    """A class is something that several rows are of."""
    count = 0 if scan.strata is None else int(scan.strata.max(initial=-1)) + 1
    if count > max(scan.rows // 2, _MAX_CLASSES_NAMED):
        hint = "stratify by the column of classes; rows are shuffled anyway"
        raise SpecError(
            f"partitions.stratify: column `{column}` has {count:,} different values in {scan.rows:,} "
            "rows, no classes",
            hints=(hint,),
        )


def _check_row_count(rows: int, plan: PartitionPlan, kind: str) -> None:
    """Every partition has a row."""
    if rows >= plan.parts:
        return
    if kind == "train":
        told = (
            f"partitions.parts: {count_text(rows)} to train on cannot be split into {plan.parts} partitions"
        )
        hint = (
            f"take at most {count_text(rows, 'worker')} and partitions"
            if rows
            else "`validation` sets all of them apart"
        )
    else:
        told = (
            f"partitions.validation: {count_text(rows)} for validation cannot be split into {plan.parts} "
            "partitions"
        )
        hint = (
            "take a larger `validation`, or fewer workers and partitions: each of these is evaluated "
            "on a part of its own"
        )
    raise SpecError(told, hints=(hint,))


def _check_stratify(files: FormatFiles, train: FormatInfo, column: str) -> None:
    """Whether there is such a column, and, where a row shows it, that it holds one value a row."""
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
            told = f"column `{column}` has {' x '.join(map(str, shape))} values a row, not one"
            raise SpecError(
                f"partitions.stratify: {told}",
                hints=("stratify by the column of classes, or leave it out: rows are shuffled anyway",),
            )
