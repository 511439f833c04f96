"""Parquet files that follow one another. Lists of equal length become arrays; what is neither number nor list
stays an object."""

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
_BUFFER_BYTES = 64 * 1024  # of each column of the row group that is read


def inspect_files(folder: Path, files: tuple[str, ...], columns: tuple[str, ...], prefix: str) -> FormatInfo:
    del prefix  # columns are named within
    first: dict[str, str] = {}
    groups: list[list[int]] = []  # of each file, the rows of each of its row groups
    for path in files:
        with _open(folder, path) as file:
            schema = {field.name: str(field.type) for field in file.schema_arrow}
            first = first or schema
            for name in columns or tuple(first):
                if schema.get(name) != first.get(name) or name not in schema:
                    told = (
                        f"has no column `{name}`"
                        if name not in schema
                        else f"has column `{name}` of type {schema[name]}, `{files[0]}` of {first.get(name)}"
                    )
                    raise SpecError(f"`{path}` {told}", hints=unknown_name_hints(name, schema))
            groups.append(
                [file.metadata.row_group(at).num_rows for at in range(file.metadata.num_row_groups)]
            )
    wanted = columns or tuple(first)
    inner = {"files": list(files), "groups": groups}
    return FormatInfo(wanted, _row_bytes(folder, files, groups, wanted), sum(map(sum, groups)), (), inner)


def _row_bytes(
    folder: Path, files: Sequence[str], groups: Sequence[Sequence[int]], columns: Sequence[str]
) -> dict[str, float]:
    """Measured on the first rows there are."""
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
        every = ParquetReader(folder, info, {"row": np.arange(rows)})
        values = [arrays[stratify] for _, arrays in every.chunks((stratify,))]
        strata = number_strata(np.concatenate(values)) if values else None
    sizes = [size for of_file in info.inner["groups"] for size in of_file]
    return FormatScan(rows, {"row": np.arange(rows)}, strata, np.repeat(np.arange(len(sizes)), sizes))


class ParquetReader:
    """A row group at a time, of which only the partition's own rows are kept."""

    def __init__(self, folder: Path, info: FormatInfo, locators: Mapping[str, Array]) -> None:
        self._folder, self._info, self._row = folder, info, locators["row"]
        self.columns, self.rows = info.columns, len(self._row)
        groups = info.inner["groups"]
        self._group_rows = [
            (path, at)
            for path, of_file in zip(info.inner["files"], groups, strict=True)
            for at in range(len(of_file))
        ]
        self._group_ends = np.cumsum([size for of_file in groups for size in of_file])
        self.blocks: Array | None = np.searchsorted(self._group_ends, self._row, side="right")

    def row_bytes(self, columns: Sequence[str]) -> float:
        return sum(self._info.row_bytes[name] for name in columns)

    def take(self, positions: Array, columns: Sequence[str]) -> dict[str, Array]:
        made: dict[str, Array] = {}
        assert self.blocks is not None
        some = ParquetReader(self._folder, self._info, {"row": self._row[positions]})
        for at, arrays in some.chunks(columns):
            scatter(made, len(positions), at, arrays)
        return made

    def chunks(
        self, columns: Sequence[str], blocks: Sequence[int] | None = None
    ) -> Iterator[tuple[Array, dict[str, Array]]]:
        order = np.argsort(self._row, kind="stable")
        rows = self._row[order]
        wanted = range(len(self._group_rows)) if blocks is None else sorted(blocks)
        opened: tuple[str, Any] = ("", None)
        try:
            for number in wanted:
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
        at = 0
        for batch in _batches(file, path, group, columns):
            begin, end = np.searchsorted(rows, (at, at + batch.num_rows))
            if begin < end:
                own = np.ascontiguousarray(rows[begin:end] - at)
                yield (
                    positions[begin:end],
                    {name: rows_to_array(batch.column(name), own, path, name) for name in columns},
                )
            at += batch.num_rows


reader = ParquetReader


def _batches(file: Any, path: str, group: int, columns: Sequence[str]) -> Iterator[Any]:
    try:
        yield from file.iter_batches(
            _BATCH_ROWS, row_groups=[group], columns=list(columns), use_threads=False
        )
    except (OSError, ValueError) as bad:
        raise SpecError(
            f"`{path}` cannot be read: {bad}", hints=("write it anew, and push the dataset again",)
        ) from bad


def _release_arrow_memory() -> None:
    """What Arrow keeps for the next time is memory that models could use."""
    import pyarrow

    pyarrow.default_memory_pool().release_unused()


def _open(folder: Path, path: str) -> Any:
    try:
        from pyarrow import parquet
    except ImportError as lacking:
        raise SpecError(
            "pyarrow is not installed in this interpreter; Parquet is read with it",
            hints=("pip install pyarrow",),
        ) from lacking
    try:
        return parquet.ParquetFile(folder / path, pre_buffer=False, buffer_size=_BUFFER_BYTES)
    except (OSError, ValueError) as bad:  # pyarrow's own errors are these
        raise SpecError(
            f"`{path}` is no Parquet file: {bad}", hints=("write it anew, or leave it out with `files`",)
        ) from bad
