"""The interface of a data format: finds its rows, and reads some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hopyard.datasets.partitions.arrays import Array, np
from hopyard.datasets.partitions.reader import PartitionReader


@dataclass(frozen=True, slots=True)
class FormatScan:
    """All rows of the data in storage order.

    locators: the data by which a reader finds a row, each (rows, …). strata: (rows,) the class of each row if
    stratified. blocks: (rows,) as `PartitionReader.blocks`.
    """

    rows: int
    locators: Mapping[str, Array]
    strata: Array | None = None
    blocks: Array | None = None


@dataclass(frozen=True, slots=True)
class FormatInfo:
    """Metadata of the files, read without their rows; stored in the index as JSON.

    rows: None if only a scan can count them. row_bytes: approximate size in memory of each column of a row.
    inner: data of the format itself.
    """

    columns: tuple[str, ...]
    row_bytes: Mapping[str, float]
    rows: int | None = None
    classes: tuple[str, ...] = ()
    inner: Mapping[str, Any] = field(default_factory=dict)


class DataFormat(Protocol):
    """A module of a format with these functions. All raise SpecError with the name of the file."""

    def inspect_files(
        self, folder: Path, files: tuple[str, ...], columns: tuple[str, ...], prefix: str
    ) -> FormatInfo:
        """Reads headers only.

        columns: the requested columns, () for all. prefix: the common start of all paths, which is not part
        of column names.
        """
        ...

    def scan(self, folder: Path, info: FormatInfo, stratify: str) -> FormatScan: ...

    def reader(self, folder: Path, info: FormatInfo, locators: Mapping[str, Array]) -> PartitionReader:
        """Returns a reader of the rows with these locators, in this order."""
        ...


def number_strata(values: Array) -> Array:
    """Numbers the classes in the order of their values."""
    if values.dtype == object:
        values = np.array([repr(value) for value in values])
    return np.unique(values, return_inverse=True)[1].reshape(-1)
