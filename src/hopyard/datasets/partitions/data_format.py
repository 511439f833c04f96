"""What a format has to offer to be split: its rows, where each lies, and reading some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hopyard.datasets.partitions.arrays import Array, np
from hopyard.datasets.partitions.reader import PartitionReader


@dataclass(frozen=True, slots=True)
class FormatScan:
    """Every row of the data in order of storage. locators: what a reader must know of a row to find it, each
    (rows, …). strata: (rows,) the class of each, where one was asked for. blocks: (rows,) as
    `PartitionReader.blocks`."""

    rows: int
    locators: Mapping[str, Array]
    strata: Array | None = None
    blocks: Array | None = None


@dataclass(frozen=True, slots=True)
class FormatInfo:
    """What is known of the files before their rows are looked at; goes into the index as JSON.

    rows: None where only a scan can tell. row_bytes: about what each column of a row takes in memory. inner:
    the format's own.
    """

    columns: tuple[str, ...]
    row_bytes: Mapping[str, float]
    rows: int | None = None
    classes: tuple[str, ...] = ()
    inner: Mapping[str, Any] = field(default_factory=dict)


class DataFormat(Protocol):
    """A module of a format, with these functions. All raise SpecError that names the file."""

    def inspect_files(
        self, folder: Path, files: tuple[str, ...], columns: tuple[str, ...], prefix: str
    ) -> FormatInfo:
        """Headers only. columns: those asked for, () all.
        prefix: what all paths begin with and what is no part of their names."""
        ...

    def scan(self, folder: Path, info: FormatInfo, stratify: str) -> FormatScan: ...

    def reader(self, folder: Path, info: FormatInfo, locators: Mapping[str, Array]) -> PartitionReader:
        """A reader of the rows with these locators, in this order."""
        ...


def number_strata(values: Array) -> Array:
    """Classes numbered in the order of their values."""
    if values.dtype == object:
        values = np.array([repr(value) for value in values])
    return np.unique(values, return_inverse=True)[1].reshape(-1)
