"""Parquet files; their rows are concatenated. Lists of equal length become arrays; values that are neither
numbers nor lists stay objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hopyard.datasets.partitions.arrays import Array, array_bytes, np, scatter
from hopyard.datasets.partitions.arrow import rows_to_array, to_array
from hopyard.datasets.partitions.data_format import FormatInfo, FormatScan, number_strata
from hopyard.datasets.partitions.name_errors import unknown_name_hints
from hopyard.errors import SpecError

_BATCH_ROWS = 16 * 1024
_SAMPLE_ROWS = 256
_BUFFER_BYTES = 64 * 1024  # per column of the row group that is read


def inspect_files(folder: Path, files: tuple[str, ...], columns: tuple[str, ...], prefix: str) -> FormatInfo:
    del prefix  # paths are not part of column names
    first: dict[str, str] = {}
    groups: list[list[int]] = []  # per file, the number of rows of each row group
    for path in files:
        with _open(folder, path) as file:
            schema = {field.name: str(field.type) for field in file.schema_arrow}
            first = first or schema
            for name in columns or tuple(first):
                if schema.get(name) != first.get(name) or name not in schema:
                    problem = (
                        f"has no column `{name}`"
                        if name not in schema
                        else f"has column `{name}` of type {schema[name]}, `{files[0]}` of {first.get(name)}"
                    )
                    raise SpecError(f"`{path}` {problem}", hints=unknown_name_hints(name, schema))
            groups.append(
                [file.metadata.row_group(index).num_rows for index in range(file.metadata.num_row_groups)]
            )
    selected = columns or tuple(first)
    inner = {"files": list(files), "groups": groups}
    return FormatInfo(selected, _row_bytes(folder, files, groups, selected), sum(map(sum, groups)), (), inner)


def _row_bytes(
    folder: Path, files: Sequence[str], groups: Sequence[Sequence[int]], columns: Sequence[str]
) -> dict[str, float]:
    """Returns the size in memory of each column of a row in bytes, measured on the first rows."""
    for path, sizes in zip(files, groups, strict=True):
        if sum(sizes):
            with _open(folder, path) as file:
                for batch in file.iter_batches(_SAMPLE_ROWS, columns=list(columns), use_threads=False):
                    return {
                        name: array_bytes(to_array(batch.column(name), path, name)) / max(1, batch.num_rows)
                        for name in columns
                    }
    return dict.fromkeys(columns, 0.0)


def scan(folder: Path, info: FormatInfo, stratify: str) -> FormatScan:
    rows = info.rows or 0
    strata = None
    if stratify:
        all_rows = ParquetReader(folder, info, {"row": np.arange(rows)})
        values = [arrays[stratify] for _, arrays in all_rows.chunks((stratify,))]
        strata = number_strata(np.concatenate(values)) if values else None
    sizes = [size for group_sizes in info.inner["groups"] for size in group_sizes]
    return FormatScan(rows, {"row": np.arange(rows)}, strata, np.repeat(np.arange(len(sizes)), sizes))


class ParquetReader:
    """Reads one row group at a time; keeps only the rows of the partition."""

    def __init__(self, folder: Path, info: FormatInfo, locators: Mapping[str, Array]) -> None:
        self._folder, self._info, self._row = folder, info, locators["row"]
        self.columns, self.rows = info.columns, len(self._row)
        groups = info.inner["groups"]
        self._group_rows = [
            (path, index)
            for path, group_sizes in zip(info.inner["files"], groups, strict=True)
            for index in range(len(group_sizes))
        ]
        self._group_ends = np.cumsum([size for group_sizes in groups for size in group_sizes])
        self.blocks: Array | None = np.searchsorted(self._group_ends, self._row, side="right")

    def row_bytes(self, columns: Sequence[str]) -> float:
        return sum(self._info.row_bytes[name] for name in columns)

    def take(self, positions: Array, columns: Sequence[str]) -> dict[str, Array]:
        arrays: dict[str, Array] = {}
        assert self.blocks is not None
        reader = ParquetReader(self._folder, self._info, {"row": self._row[positions]})
        for chunk_positions, chunk in reader.chunks(columns):
            scatter(arrays, len(positions), chunk_positions, chunk)
        return arrays

    def chunks(
        self, columns: Sequence[str], blocks: Sequence[int] | None = None
    ) -> Iterator[tuple[Array, dict[str, Array]]]:
        order = np.argsort(self._row, kind="stable")
        rows = self._row[order]
        group_numbers = range(len(self._group_rows)) if blocks is None else sorted(blocks)
        opened: tuple[str, Any] = ("", None)
        try:
            for number in group_numbers:
                first = int(self._group_ends[number - 1]) if number else 0
                begin, end = np.searchsorted(rows, (first, self._group_ends[number]))
                if begin == end:
                    continue
                path, group = self._group_rows[number]
                if opened[0] != path:
                    if opened[1] is not None:
                        opened[1].close()
                    opened = (path, _open(self._folder, path))
                yield from self._read_group(opened, group, columns, rows[begin:end] - first, order[begin:end])
        finally:
            if opened[1] is not None:
                opened[1].close()
                _release_arrow_memory()

    def _read_group(
        self, opened: tuple[str, Any], group: int, columns: Sequence[str], rows: Array, positions: Array
    ) -> Iterator[tuple[Array, dict[str, Array]]]:
        path, file = opened
        start = 0
        for batch in _batches(file, path, group, columns):
            begin, end = np.searchsorted(rows, (start, start + batch.num_rows))
            if begin < end:
                group_rows = np.ascontiguousarray(rows[begin:end] - start)
                yield (
                    positions[begin:end],
                    {name: rows_to_array(batch.column(name), group_rows, path, name) for name in columns},
                )
            start += batch.num_rows


reader = ParquetReader


def _batches(file: Any, path: str, group: int, columns: Sequence[str]) -> Iterator[Any]:
    try:
        yield from file.iter_batches(
            _BATCH_ROWS, row_groups=[group], columns=list(columns), use_threads=False
        )
    except (OSError, ValueError) as error:
        raise SpecError(
            f"`{path}` cannot be read: {error}", hints=("write it again, and push the dataset again",)
        ) from error


def _release_arrow_memory() -> None:
    """Releases memory that Arrow would retain for later reads, so that models can use it."""
    import pyarrow

    pyarrow.default_memory_pool().release_unused()


def _open(folder: Path, path: str) -> Any:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise SpecError(
            "pyarrow is not installed in this interpreter; it is needed to read Parquet",
            hints=("pip install pyarrow",),
        ) from error
    try:
        return parquet.ParquetFile(folder / path, pre_buffer=False, buffer_size=_BUFFER_BYTES)
    except (OSError, ValueError) as error:  # the base classes of pyarrow's own errors
        raise SpecError(
            f"`{path}` is not a Parquet file: {error}", hints=("write it again, or exclude it with `files`",)
        ) from error
