"""NumPy files. `x.npy` and `y.npy` of one folder are columns x and y; so are the arrays of an .npz file.
Several folders, or several .npz files, follow one another."""

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
_OPEN_FILES = 64  # a memory map holds a file open
Shard = dict[str, StoredArray]


def inspect_files(folder: Path, files: tuple[str, ...], columns: tuple[str, ...], prefix: str) -> FormatInfo:
    shards: dict[str, Shard] = {}
    for path in files:
        if path.lower().endswith(".npz"):
            shards[path] = read_npz_layout(folder, path)
        else:
            parent, _, name = path.rpartition("/")
            own = path.removeprefix(prefix).rpartition("/")[2] or name  # `test_x.npy` below `test_` is x
            shards.setdefault(parent, {})[own.rpartition(".")[0]] = read_npy_layout(folder, path)
    first = next(iter(shards.values()))
    wanted = columns or tuple(sorted(first))
    for where, shard in shards.items():
        _check_shard(where, shard, first, wanted)
    kept = [{name: shard[name] for name in wanted} for shard in shards.values()]
    rows = sum(next(iter(shard.values())).shape[0] for shard in kept)
    inner = {"shards": [{name: asdict(stored) for name, stored in shard.items()} for shard in kept]}
    return FormatInfo(wanted, {name: float(first[name].row_bytes) for name in wanted}, rows, (), inner)


def _check_shard(where: str, shard: Shard, first: Shard, columns: Sequence[str]) -> None:
    for name in columns:
        if name not in shard:
            told = f"`{where}` has no column `{name}`" if where else f"there is no column `{name}`"
            raise SpecError(f"partitions.columns: {told}", hints=unknown_name_hints(name, sorted(shard)))
    lengths = {shard[name].shape[0] for name in columns}
    if len(lengths) > 1:
        told = ", ".join(
            f"`{_column_names(shard[name])}` has {shard[name].shape[0]:,} rows" for name in columns
        )
        hint = "rows of all columns belong together; name those that do: `columns: [x, y]`"
        raise SpecError(f"arrays that are not aligned: {told}", hints=(hint,))
    for name in columns:
        one, other = shard[name], first[name]
        if (one.dtype, one.shape[1:]) != (other.dtype, other.shape[1:]):
            told = (
                f"`{_column_names(one)}` has rows of {one.shape[1:]} {one.dtype}, `{_column_names(other)}` "
                f"of {other.shape[1:]} {other.dtype}"
            )
            raise SpecError(f"column `{name}` changes: {told}")


def _column_names(stored: StoredArray) -> str:
    return f"{stored.path}: {stored.member}" if stored.member else stored.path


def scan(folder: Path, info: FormatInfo, stratify: str) -> FormatScan:
    shards = _shards(info)
    sizes = [next(iter(shard.values())).shape[0] for shard in shards]
    rows = sum(sizes)
    strata = None
    if stratify:
        strata = number_strata(np.concatenate([_read_whole(folder, shard[stratify]) for shard in shards]))
    blocks = np.repeat(np.arange(len(sizes)), sizes) if _is_compressed(shards) else None
    return FormatScan(rows, {"row": np.arange(rows)}, strata, blocks)


class NumpyReader:
    """Any row at once, through a memory map; of compressed .npz files, a file at a time."""

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
        which = self._locate_rows(rows)
        made = {
            name: np.empty((len(rows), *s.shape[1:]), s.dtype)
            for name in columns
            for s in (self._shards[0][name],)
        }
        for number in np.unique(which):
            own = np.flatnonzero(which == number)
            for name in columns:
                stored = self._shards[number][name]
                array = (
                    _read_whole(self._folder, stored) if stored.offset is None else self._memory_map(stored)
                )
                made[name][own] = array[rows[own] - self._shard_start(number)]
        return made

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
        """The shard read from front to back, a piece of all columns at a time; only the partition's own rows
        are kept."""
        shard = self._shards[number]
        size = max(1, int(_CHUNK_BYTES / max(1.0, self.row_bytes(columns))))
        with _ShardPieces(self._folder, [shard[name] for name in columns]) as pieces:
            for at in range(0, next(iter(shard.values())).shape[0], size):
                begin, end = np.searchsorted(rows, (at, at + size))
                read = pieces.next(size)
                if begin < end:
                    yield (
                        positions[begin:end],
                        {
                            name: piece[rows[begin:end] - at]
                            for name, piece in zip(columns, read, strict=True)
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
            array._mmap.madvise(MADV_RANDOM)  # the kernel reads no neighbours of rows that lie far apart
            self._memory_maps[key] = np.asarray(array)
        return self._memory_maps[key]


reader = NumpyReader


class _ShardPieces:
    """The arrays of a shard, so many rows of each at a time."""

    def __init__(self, folder: Path, arrays: Sequence[StoredArray]) -> None:
        self._arrays, self._files = arrays, [_open(folder, stored) for stored in arrays]
        self._remaining_rows = [stored.shape[0] for stored in arrays]

    def __enter__(self) -> _ShardPieces:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    def next(self, rows: int) -> list[Array]:
        read = []
        for nth, (stored, file) in enumerate(zip(self._arrays, self._files, strict=True)):
            count = min(rows, self._remaining_rows[nth])
            self._remaining_rows[nth] -= count
            read.append(_rows(stored, file, count))
        return read


def _open(folder: Path, stored: StoredArray) -> IO[bytes]:
    if stored.offset is None:
        with zipfile.ZipFile(folder / stored.path) as archive:
            # which keeps the archive's file open until it is closed itself
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
    except (zipfile.BadZipFile, OSError, EOFError) as bad:
        raise SpecError(
            f"`{_column_names(stored)}` cannot be read: {bad}", hints=("write it anew with numpy.savez",)
        ) from bad
    return np.frombuffer(data, dtype=np.dtype(stored.dtype)).reshape(count, *stored.shape[1:])


def _read_whole(folder: Path, stored: StoredArray) -> Array:
    with _open(folder, stored) as file:
        return _rows(stored, file, stored.shape[0])


def _shards(info: FormatInfo) -> list[Shard]:
    return [
        {name: StoredArray(**{**stored, "shape": tuple(stored["shape"])}) for name, stored in shard.items()}
        for shard in info.inner["shards"]
    ]


def _is_compressed(shards: Sequence[Shard]) -> bool:
    return any(stored.offset is None for shard in shards for stored in shard.values())
