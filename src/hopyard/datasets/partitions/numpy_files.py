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
from hopyard.datasets.partitions.names import instead_of
from hopyard.datasets.partitions.numpy_header import Stored, of_npy, of_npz
from hopyard.datasets.partitions.source import About, Scan, strata_of
from hopyard.errors import SpecError

_CHUNK_BYTES = 8 * 1024 * 1024
_OPEN_FILES = 64  # a memory map holds a file open
Shard = dict[str, Stored]


def look(folder: Path, files: tuple[str, ...], columns: tuple[str, ...], prefix: str) -> About:
    shards: dict[str, Shard] = {}
    for path in files:
        if path.lower().endswith(".npz"):
            shards[path] = of_npz(folder, path)
        else:
            parent, _, name = path.rpartition("/")
            own = path.removeprefix(prefix).rpartition("/")[2] or name  # `test_x.npy` below `test_` is x
            shards.setdefault(parent, {})[own.rpartition(".")[0]] = of_npy(folder, path)
    first = next(iter(shards.values()))
    wanted = columns or tuple(sorted(first))
    for where, shard in shards.items():
        _check(where, shard, first, wanted)
    kept = [{name: shard[name] for name in wanted} for shard in shards.values()]
    rows = sum(next(iter(shard.values())).shape[0] for shard in kept)
    inner = {"shards": [{name: asdict(stored) for name, stored in shard.items()} for shard in kept]}
    return About(wanted, {name: float(first[name].row_bytes) for name in wanted}, rows, (), inner)


def _check(where: str, shard: Shard, first: Shard, columns: Sequence[str]) -> None:
    for name in columns:
        if name not in shard:
            told = f"`{where}` has no column `{name}`" if where else f"there is no column `{name}`"
            raise SpecError(f"partitions.columns: {told}", hints=instead_of(name, sorted(shard)))
    lengths = {shard[name].shape[0] for name in columns}
    if len(lengths) > 1:
        told = ", ".join(f"`{_named(shard[name])}` has {shard[name].shape[0]:,} rows" for name in columns)
        hint = "rows of all columns belong together; name those that do: `columns: [x, y]`"
        raise SpecError(f"arrays that are not aligned: {told}", hints=(hint,))
    for name in columns:
        one, other = shard[name], first[name]
        if (one.dtype, one.shape[1:]) != (other.dtype, other.shape[1:]):
            told = (
                f"`{_named(one)}` has rows of {one.shape[1:]} {one.dtype}, `{_named(other)}` of "
                f"{other.shape[1:]} {other.dtype}"
            )
            raise SpecError(f"column `{name}` changes: {told}")


def _named(stored: Stored) -> str:
    return f"{stored.path}: {stored.member}" if stored.member else stored.path


def scan(folder: Path, about: About, stratify: str) -> Scan:
    shards = _shards(about)
    sizes = [next(iter(shard.values())).shape[0] for shard in shards]
    rows = sum(sizes)
    strata = None
    if stratify:
        strata = strata_of(np.concatenate([_whole(folder, shard[stratify]) for shard in shards]))
    blocks = np.repeat(np.arange(len(sizes)), sizes) if _compressed(shards) else None
    return Scan(rows, {"row": np.arange(rows)}, strata, blocks)


class NumpyReader:
    """Any row at once, through a memory map; of compressed .npz files, a file at a time."""

    def __init__(self, folder: Path, about: About, locators: Mapping[str, Array]) -> None:
        self._folder, self._shards = folder, _shards(about)
        self._about, self._row = about, locators["row"]
        self.columns, self.rows = about.columns, len(self._row)
        self._ends = np.cumsum([next(iter(shard.values())).shape[0] for shard in self._shards])
        self._maps: dict[tuple[str, str], Array] = {}
        self.blocks = self._shard_of(self._row) if _compressed(self._shards) else None

    def row_bytes(self, columns: Sequence[str]) -> float:
        return sum(self._about.row_bytes[name] for name in columns)

    def take(self, positions: Array, columns: Sequence[str]) -> dict[str, Array]:
        rows = self._row[positions]
        which = self._shard_of(rows)
        made = {
            name: np.empty((len(rows), *s.shape[1:]), s.dtype)
            for name in columns
            for s in (self._shards[0][name],)
        }
        for number in np.unique(which):
            own = np.flatnonzero(which == number)
            for name in columns:
                stored = self._shards[number][name]
                array = _whole(self._folder, stored) if stored.offset is None else self._mapped(stored)
                made[name][own] = array[rows[own] - self._begin(number)]
        return made

    def chunks(
        self, columns: Sequence[str], blocks: Sequence[int] | None = None
    ) -> Iterator[tuple[Array, dict[str, Array]]]:
        order = np.argsort(self._row, kind="stable")
        rows = self._row[order]
        for number in range(len(self._shards)) if blocks is None else sorted(blocks):
            begin, end = np.searchsorted(rows, (self._begin(number), self._ends[number]))
            if begin < end:
                yield from self._of_shard(
                    number, columns, rows[begin:end] - self._begin(number), order[begin:end]
                )

    def _of_shard(
        self, number: int, columns: Sequence[str], rows: Array, positions: Array
    ) -> Iterator[tuple[Array, dict[str, Array]]]:
        """The shard read from front to back, a piece of all columns at a time; only the partition's own rows
        are kept."""
        shard = self._shards[number]
        size = max(1, int(_CHUNK_BYTES / max(1.0, self.row_bytes(columns))))
        with _Pieces(self._folder, [shard[name] for name in columns]) as pieces:
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

    def _shard_of(self, rows: Array) -> Array:
        return np.searchsorted(self._ends, rows, side="right")

    def _begin(self, number: int) -> int:
        return int(self._ends[number - 1]) if number else 0

    def _mapped(self, stored: Stored) -> Array:
        key = (stored.path, stored.member)
        if key not in self._maps:
            if len(self._maps) >= _OPEN_FILES:
                self._maps.clear()
            array: Any = stored.mapped(self._folder)
            array._mmap.madvise(MADV_RANDOM)  # the kernel reads no neighbours of rows that lie far apart
            self._maps[key] = np.asarray(array)
        return self._maps[key]


reader = NumpyReader


class _Pieces:
    """The arrays of a shard, so many rows of each at a time."""

    def __init__(self, folder: Path, arrays: Sequence[Stored]) -> None:
        self._arrays, self._files = arrays, [_open(folder, stored) for stored in arrays]
        self._left = [stored.shape[0] for stored in arrays]

    def __enter__(self) -> _Pieces:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    def next(self, rows: int) -> list[Array]:
        read = []
        for nth, (stored, file) in enumerate(zip(self._arrays, self._files, strict=True)):
            count = min(rows, self._left[nth])
            self._left[nth] -= count
            read.append(_rows(stored, file, count))
        return read


def _open(folder: Path, stored: Stored) -> IO[bytes]:
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


def _rows(stored: Stored, file: IO[bytes], count: int) -> Array:
    try:
        data = file.read(count * stored.row_bytes)
    except (zipfile.BadZipFile, OSError, EOFError) as bad:
        raise SpecError(
            f"`{_named(stored)}` cannot be read: {bad}", hints=("write it anew with numpy.savez",)
        ) from bad
    return np.frombuffer(data, dtype=np.dtype(stored.dtype)).reshape(count, *stored.shape[1:])


def _whole(folder: Path, stored: Stored) -> Array:
    with _open(folder, stored) as file:
        return _rows(stored, file, stored.shape[0])


def _shards(about: About) -> list[Shard]:
    return [
        {name: Stored(**{**stored, "shape": tuple(stored["shape"])}) for name, stored in shard.items()}
        for shard in about.inner["shards"]
    ]


def _compressed(shards: Sequence[Shard]) -> bool:
    return any(stored.offset is None for shard in shards for stored in shard.values())
