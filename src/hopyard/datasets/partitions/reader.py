"""Readers of a partition's rows: one per format, one for arrays in memory, and one that renames columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from hopyard.datasets.partitions.arrays import Array, array_bytes, np
from hopyard.errors import SpecError


class PartitionReader(Protocol):
    """Reads the rows of one partition, by position 0 … rows - 1. All returned arrays have rows along the
    first axis."""

    @property
    def columns(self) -> tuple[str, ...]: ...

    @property
    def rows(self) -> int: ...

    @property
    def blocks(self) -> Array | None:
        """(rows,) the storage block of each row if a row can only be read with its block; else None."""
        ...

    def row_bytes(self, columns: Sequence[str]) -> float:
        """Returns the approximate size of a row in memory, in bytes."""
        ...

    def take(self, positions: Array, columns: Sequence[str]) -> dict[str, Array]:
        """Returns these rows, in this order."""
        ...

    def chunks(
        self, columns: Sequence[str], blocks: Sequence[int] | None = None
    ) -> Iterator[tuple[Array, dict[str, Array]]]:
        """Yields every row (of these blocks) once, in storage order, as (positions, arrays) of bounded
        size."""
        ...


class ArrayReader:
    """Reads arrays in memory, or memory-mapped arrays, in the partition's own order."""

    blocks = None

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise SpecError(f"columns have different lengths: {lengths}")
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
        del blocks  # arrays have no blocks
        size = max(1, int(_CHUNK_BYTES / max(1.0, self.row_bytes(columns))))
        for start in range(0, self.rows, size):
            end = min(start + size, self.rows)
            yield np.arange(start, end), {name: np.asarray(self.arrays[name][start:end]) for name in columns}


class ViewReader:
    """Renames the columns of another reader; several columns with one number per row become one matrix of
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
            self._base.row_bytes([source])
            if isinstance(source := self._sources[name], str)
            else 4.0 * len(source)
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
        sources = (self._sources[name] for name in columns)
        return list(
            dict.fromkeys(
                name for source in sources for name in ((source,) if isinstance(source, str) else source)
            )
        )

    def _rename_columns(self, arrays: Mapping[str, Array], columns: Sequence[str]) -> dict[str, Array]:
        renamed: dict[str, Array] = {}
        for name in columns:
            source = self._sources[name]
            renamed[name] = arrays[source] if isinstance(source, str) else _stack_columns(arrays, source)
        return renamed


def _stack_columns(arrays: Mapping[str, Array], names: Sequence[str]) -> Array:
    matrix = np.empty((len(arrays[names[0]]), len(names)), dtype=np.float32)
    for index, name in enumerate(names):
        if arrays[name].ndim != 1 or arrays[name].dtype.kind not in "biuf":
            hint = "use columns of numbers, or one column of arrays"
            raise SpecError(
                f"column `{name}` is not one number per row, so it cannot be part of a matrix", hints=(hint,)
            )
        matrix[:, index] = arrays[name]
    return matrix


_CHUNK_BYTES = 8 * 1024 * 1024
