"""What a partition reads its rows with: one for each format, one for what is in memory, one that gives
columns other names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from hopyard.datasets.partitions.arrays import Array, array_bytes, np
from hopyard.errors import SpecError


class PartitionReader(Protocol):
    """The rows of one partition, by position 0 … rows - 1.
    Everything it returns has rows along the first axis."""

    @property
    def columns(self) -> tuple[str, ...]: ...

    @property
    def rows(self) -> int: ...

    @property
    def blocks(self) -> Array | None:
        """(rows,) the block of storage that holds each row, where a row cannot be had without its block; else
        None."""
        ...

    def row_bytes(self, columns: Sequence[str]) -> float:
        """About what a row takes in memory."""
        ...

    def take(self, positions: Array, columns: Sequence[str]) -> dict[str, Array]:
        """These rows, in this order."""
        ...

    def chunks(
        self, columns: Sequence[str], blocks: Sequence[int] | None = None
    ) -> Iterator[tuple[Array, dict[str, Array]]]:
        """Every row once (of these blocks), in order of storage, as (positions, arrays) of bounded size."""
        ...


class ArrayReader:
    """Rows that are in memory, or memory-mapped, as arrays in the partition's own order."""

    blocks = None

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise SpecError(f"columns of different length: {lengths}")
        self.arrays = dict(arrays)
        self.columns = tuple(arrays)
        self.rows = next(iter(lengths.values()), 0)

    def row_bytes(self, columns: Sequence[str]) -> float:
        return sum(array_bytes(self.arrays[name]) for name in columns) / max(1, self.rows)

    def take(self, positions: Array, columns: Sequence[str]) -> dict[str, Array]:
        return {name: self.arrays[name][positions] for name in columns}

    def chunks(
        self, columns: Sequence[str], blocks: Sequence[int] | None = None
    ) -> Iterator[tuple[Array, dict[str, Array]]]:
        del blocks  # it has none
        size = max(1, int(_CHUNK_BYTES / max(1.0, self.row_bytes(columns))))
        for at in range(0, self.rows, size):
            end = min(at + size, self.rows)
            yield np.arange(at, end), {name: np.asarray(self.arrays[name][at:end]) for name in columns}


class ViewReader:
    """Another reader's columns under other names; several of one number a row each become one matrix of
    float32."""

    def __init__(self, base: PartitionReader, sources: Mapping[str, str | tuple[str, ...]]) -> None:
        self._base, self._sources = base, dict(sources)
        self.columns = tuple(sources)

    @property
    def rows(self) -> int:
        return self._base.rows

    @property
    def blocks(self) -> Array | None:
        return self._base.blocks

    def row_bytes(self, columns: Sequence[str]) -> float:
        return sum(
            self._base.row_bytes([s]) if isinstance(s := self._sources[name], str) else 4.0 * len(s)
            for name in columns
        )

    def take(self, positions: Array, columns: Sequence[str]) -> dict[str, Array]:
        return self._rename_columns(self._base.take(positions, self._source_columns(columns)), columns)

    def chunks(
        self, columns: Sequence[str], blocks: Sequence[int] | None = None
    ) -> Iterator[tuple[Array, dict[str, Array]]]:
        for positions, arrays in self._base.chunks(self._source_columns(columns), blocks):
            yield positions, self._rename_columns(arrays, columns)

    def _source_columns(self, columns: Sequence[str]) -> list[str]:
        named = (self._sources[name] for name in columns)
        return list(
            dict.fromkeys(source for one in named for source in ((one,) if isinstance(one, str) else one))
        )

    def _rename_columns(self, arrays: Mapping[str, Array], columns: Sequence[str]) -> dict[str, Array]:
        made: dict[str, Array] = {}
        for name in columns:
            source = self._sources[name]
            made[name] = arrays[source] if isinstance(source, str) else _stack_columns(arrays, source)
        return made


def _stack_columns(arrays: Mapping[str, Array], names: Sequence[str]) -> Array:
    made = np.empty((len(arrays[names[0]]), len(names)), dtype=np.float32)
    for at, name in enumerate(names):
        if arrays[name].ndim != 1 or arrays[name].dtype.kind not in "biuf":
            hint = "name columns of numbers, or one column of arrays"
            raise SpecError(
                f"column `{name}` is not one number per row, so it cannot be part of a matrix", hints=(hint,)
            )
        made[:, at] = arrays[name]
    return made


_CHUNK_BYTES = 8 * 1024 * 1024
