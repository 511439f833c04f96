"""NumPy files. `x.npy` and `y.npy` of one folder are the columns x and y, as are the arrays of an .npz file.
The rows of several folders, or of several .npz files, are concatenated."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from mmap import MADV_RANDOM
from pathlib import Path
from typing import IO, Any

from hopyard.datasets.partitions.arrays import Array, np
from hopyard.datasets.partitions.data_format import FormatInfo, FormatScan, number_strata
from hopyard.datasets.partitions.name_errors import unknown_name_hints
from hopyard.datasets.partitions.npy_layout import StoredArray, read_npy_layout, read_npz_layout
from hopyard.errors import SpecError

_CHUNK_BYTES = 8 * 1024 * 1024
_OPEN_FILES = 64  # each memory map keeps a file open
Shard = dict[str, StoredArray]


def inspect_files(folder: Path, files: tuple[str, ...], columns: tuple[str, ...], prefix: str) -> FormatInfo:
    shards: dict[str, Shard] = {}
    for path in files:
        if path.lower().endswith(".npz"):
            shards[path] = read_npz_layout(folder, path)
        else:
            parent, _, name = path.rpartition("/")
            # `test_x.npy` below `test_` is column x
            base_name = path.removeprefix(prefix).rpartition("/")[2] or name
            shards.setdefault(parent, {})[base_name.rpartition(".")[0]] = read_npy_layout(folder, path)
    first = next(iter(shards.values()))
    selected = columns or tuple(sorted(first))
    for source, shard in shards.items():
        _check_shard(source, shard, first, selected)
    selected_shards = [{name: shard[name] for name in selected} for shard in shards.values()]
    rows = sum(next(iter(shard.values())).shape[0] for shard in selected_shards)
    inner = {
        "shards": [{name: asdict(stored) for name, stored in shard.items()} for shard in selected_shards]
    }
    return FormatInfo(selected, {name: float(first[name].row_bytes) for name in selected}, rows, (), inner)


def _check_shard(source: str, shard: Shard, first: Shard, columns: Sequence[str]) -> None:
    for name in columns:
        if name not in shard:
            problem = f"`{source}` has no column `{name}`" if source else f"there is no column `{name}`"
            raise SpecError(f"partitions.columns: {problem}", hints=unknown_name_hints(name, sorted(shard)))
    lengths = {shard[name].shape[0] for name in columns}
    if len(lengths) > 1:
        row_counts = ", ".join(
            f"`{_column_names(shard[name])}` has {shard[name].shape[0]:,} rows" for name in columns
        )
        hint = "all columns need the same number of rows; select columns that match: `columns: [x, y]`"
        raise SpecError(f"columns have different numbers of rows: {row_counts}", hints=(hint,))
    for name in columns:
        array, expected = shard[name], first[name]
        if (array.dtype, array.shape[1:]) != (expected.dtype, expected.shape[1:]):
            problem = (
                f"`{_column_names(array)}` has rows of {array.shape[1:]} {array.dtype}, "
                f"`{_column_names(expected)}` of {expected.shape[1:]} {expected.dtype}"
            )
            raise SpecError(f"column `{name}` changes between files: {problem}")


def _column_names(stored: StoredArray) -> str:
    return f"{stored.path}: {stored.member}" if stored.member else stored.path


def scan(folder: Path, info: FormatInfo, stratify: str) -> FormatScan:
    shards = _shards(info)
    sizes = [next(iter(shard.values())).shape[0] for shard in shards]
    rows = sum(sizes)
    strata = None
    if stratify:
        strata = number_strata(np.concatenate([_read_array(folder, shard[stratify]) for shard in shards]))
    blocks = np.repeat(np.arange(len(sizes)), sizes) if _is_compressed(shards) else None
    return FormatScan(rows, {"row": np.arange(rows)}, strata, blocks)


class NumpyReader:
    """Reads any row independently through a memory map; of compressed .npz files, reads one file at a
    time."""

    def __init__(self, folder: Path, info: FormatInfo, locators: Mapping[str, Array]) -> None:
        self._folder, self._shards = folder, _shards(info)
        self._info, self._row = info, locators["row"]
        self.columns, self.rows = info.columns, len(self._row)
        self._shard_ends = np.cumsum([next(iter(shard.values())).shape[0] for shard in self._shards])
        self._memory_maps: dict[tuple[str, str], Array] = {}
        self.blocks = self._locate_rows(self._row) if _is_compressed(self._shards) else None

    def row_bytes(self, columns: Sequence[str]) -> float:
        return sum(self._info.row_bytes[name] for name in columns)

    def take(self, positions: Array, columns: Sequence[str]) -> dict[str, Array]:
        rows = self._row[positions]
        shard_numbers = self._locate_rows(rows)
        arrays = {
            name: np.empty((len(rows), *sample.shape[1:]), sample.dtype)
            for name in columns
            for sample in (self._shards[0][name],)
        }
        for number in np.unique(shard_numbers):
            indices = np.flatnonzero(shard_numbers == number)
            for name in columns:
                stored = self._shards[number][name]
                array = (
                    _read_array(self._folder, stored) if stored.offset is None else self._memory_map(stored)
                )
                arrays[name][indices] = array[rows[indices] - self._shard_start(number)]
        return arrays

    def chunks(
        self, columns: Sequence[str], blocks: Sequence[int] | None = None
    ) -> Iterator[tuple[Array, dict[str, Array]]]:
        order = np.argsort(self._row, kind="stable")
        rows = self._row[order]
        for number in range(len(self._shards)) if blocks is None else sorted(blocks):
            begin, end = np.searchsorted(rows, (self._shard_start(number), self._shard_ends[number]))
            if begin < end:
                yield from self._read_shard(
                    number, columns, rows[begin:end] - self._shard_start(number), order[begin:end]
                )

    def _read_shard(
        self, number: int, columns: Sequence[str], rows: Array, positions: Array
    ) -> Iterator[tuple[Array, dict[str, Array]]]:
        """Reads the shard sequentially, a chunk of all columns at a time; keeps only the rows of the
        partition."""
        shard = self._shards[number]
        size = max(1, int(_CHUNK_BYTES / max(1.0, self.row_bytes(columns))))
        with _ShardPieces(self._folder, [shard[name] for name in columns]) as pieces:
            for start in range(0, next(iter(shard.values())).shape[0], size):
                begin, end = np.searchsorted(rows, (start, start + size))
                arrays = pieces.next(size)
                if begin < end:
                    yield (
                        positions[begin:end],
                        {
                            name: array[rows[begin:end] - start]
                            for name, array in zip(columns, arrays, strict=True)
                        },
                    )

    def _locate_rows(self, rows: Array) -> Array:
        return np.searchsorted(self._shard_ends, rows, side="right")

    def _shard_start(self, number: int) -> int:
        return int(self._shard_ends[number - 1]) if number else 0

    def _memory_map(self, stored: StoredArray) -> Array:
        key = (stored.path, stored.member)
        if key not in self._memory_maps:
            if len(self._memory_maps) >= _OPEN_FILES:
                self._memory_maps.clear()
            array: Any = stored.memory_map(self._folder)
            array._mmap.madvise(MADV_RANDOM)  # the kernel must not read ahead: the rows are far apart
            self._memory_maps[key] = np.asarray(array)
        return self._memory_maps[key]


reader = NumpyReader


class _ShardPieces:
    """Reads the arrays of a shard in step, a number of rows at a time."""

    def __init__(self, folder: Path, arrays: Sequence[StoredArray]) -> None:
        self._arrays, self._files = arrays, [_open(folder, stored) for stored in arrays]
        self._remaining_rows = [stored.shape[0] for stored in arrays]

    def __enter__(self) -> _ShardPieces:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    def next(self, rows: int) -> list[Array]:
        arrays = []
        for index, (stored, file) in enumerate(zip(self._arrays, self._files, strict=True)):
            count = min(rows, self._remaining_rows[index])
            self._remaining_rows[index] -= count
            arrays.append(_rows(stored, file, count))
        return arrays


def _open(folder: Path, stored: StoredArray) -> IO[bytes]:
    if stored.offset is None:
        with zipfile.ZipFile(folder / stored.path) as archive:
            # the member keeps the archive's file open until it is closed itself
            file = archive.open(stored.member)
        version = np.lib.format.read_magic(file)
        (np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0)(
            file
        )
        return file
    raw = (folder / stored.path).open("rb")
    raw.seek(stored.offset)
    return raw


def _rows(stored: StoredArray, file: IO[bytes], count: int) -> Array:
    try:
        data = file.read(count * stored.row_bytes)
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise SpecError(
            f"`{_column_names(stored)}` cannot be read: {error}", hints=("write it again with numpy.savez",)
        ) from error
    return np.frombuffer(data, dtype=np.dtype(stored.dtype)).reshape(count, *stored.shape[1:])


def _read_array(folder: Path, stored: StoredArray) -> Array:
    with _open(folder, stored) as file:
        return _rows(stored, file, stored.shape[0])


def _shards(info: FormatInfo) -> list[Shard]:
    return [
        {name: StoredArray(**{**stored, "shape": tuple(stored["shape"])}) for name, stored in shard.items()}
        for shard in info.inner["shards"]
    ]


def _is_compressed(shards: Sequence[Shard]) -> bool:
    return any(stored.offset is None for shard in shards for stored in shard.values())
