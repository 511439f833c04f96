"""One partition of a dataset: its rows, in memory if they fit, else read on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from hopyard.datasets.partitions.arrays import Array, array_bytes, concatenate, np, scatter
from hopyard.datasets.partitions.memory_budget import DEFAULT_BUDGET, budget_bytes
from hopyard.datasets.partitions.name_errors import shortened_list, unknown_name_hints
from hopyard.datasets.partitions.reader import ArrayReader, PartitionReader, ViewReader
from hopyard.datasets.partitions.seeded_order import batch_bounds, epoch_order, shuffle_windows
from hopyard.errors import SpecError

Kind = Literal["train", "validation"]
ColumnSource = str | tuple[str, ...]
_MAX_CACHED_ORDERS = 2  # some trials are an epoch behind others


class Partition:
    """Rows in the partition's own order, which the plan's seed shuffled.

    Equal data and plans give equal partitions, and equal seeds give equal batches, on every machine and with
    any amount of memory.

    index, of: the number of the partition, and the number of partitions. peers: the number of rows of each
    partition. kind: train or validation. key: identifies the content across studies. classes: of image
    folders, the name of each label. folder: stores results computed from the partition on this node; None
    stores none.
    """

    def __init__(
        self,
        reader: PartitionReader,
        *,
        index: int = 0,
        peers: Sequence[int] = (),
        kind: Kind = "train",
        key: str = "",
        classes: Sequence[str] = (),
        folder: Path | None = None,
        window_rows: int = 0,
        memory_bytes: int = DEFAULT_BUDGET,
    ) -> None:
        self.index, self.peers, self.kind, self.key = index, tuple(peers) or (reader.rows,), kind, key
        self.classes, self.folder = tuple(classes), folder
        self._reader, self._window = reader, window_rows
        self._memory = memory_bytes
        self._loaded: dict[str, Array] = dict(reader.arrays) if isinstance(reader, ArrayReader) else {}
        # columns that did not fit once: a retry costs time, and answers must not change
        self._does_not_fit: set[str] = set()
        self._root = self  # of a view, the partition that it shows: they share the memory limit
        self._views: dict[tuple[tuple[str, ColumnSource], ...], Partition] = {}
        self._orders: dict[int, Array] = {}  # the last few, by seed

    @property
    def of(self) -> int:
        return len(self.peers)

    @property
    def columns(self) -> tuple[str, ...]:
        return self._reader.columns

    def __len__(self) -> int:
        return self._reader.rows

    def __contains__(self, column: object) -> bool:
        return column in self.columns

    def __repr__(self) -> str:
        return (
            f"<{self.kind} partition {self.index} of {self.of}: {len(self):,} rows of "
            f"{shortened_list(self.columns)}>"
        )

    # -- columns in memory -----------------------------------------------------------------------------------

    def __getitem__(self, column: str) -> Array:
        """Returns a whole column and keeps it in memory. Raises SpecError if the column is unknown or too
        large."""
        self._check_columns((column,))
        if not self.load((column,)):
            problem = (
                f"column `{column}` of {self!r} takes about "
                f"{self._reader.row_bytes((column,)) * len(self) / 1e6:,.0f} MB"
            )
            hints = (
                "iterate over it with batches() or items()",
                "set HOPYARD_PARTITION_MEMORY=8G to change the memory limit of a partition",
            )
            raise SpecError(
                f"{problem}, more than the limit of {budget_bytes(self._memory, self.of) / 1e6:,.0f} MB",
                hints=hints,
            )
        return self._loaded[column]

    def load(self, columns: Sequence[str] | None = None) -> bool:
        """Loads these columns (default: all) into memory if they fit; returns whether they are loaded."""
        unloaded = [name for name in self._check_columns(columns) if name not in self._loaded]
        if not unloaded:
            return True
        if self._does_not_fit.intersection(unloaded):
            return False
        needed_bytes = self._reader.row_bytes(unloaded) * len(self)
        if needed_bytes + self._root.bytes_loaded > budget_bytes(self._memory, self.of):
            self._does_not_fit.update(unloaded)
            return False
        self._loaded.update(self._read(unloaded))
        return True

    @property
    def bytes_loaded(self) -> int:
        """The memory in bytes that the columns of the partition and of its views take."""
        return sum(array_bytes(array) for array in self._loaded.values()) + sum(
            view.bytes_loaded for view in self._views.values()
        )

    def _read(self, columns: Sequence[str]) -> dict[str, Array]:
        columns_read: dict[str, Array] = {}
        for positions, chunk in self._reader.chunks(columns):
            scatter(columns_read, len(self), positions, chunk)
        return columns_read

    # -- iteration -------------------------------------------------------------------------------------------

    def rows(self, positions: Any, columns: Sequence[str] | None = None) -> dict[str, Array]:
        """Returns the rows at these positions, in this order. Raises SpecError for a position out of
        range."""
        selected, indices = self._check_columns(columns), np.atleast_1d(np.asarray(positions, dtype=np.int64))
        if len(indices) and not (-len(self) <= indices.min() and indices.max() < len(self)):
            raise SpecError(
                f"{self!r} has no row {indices.max() if indices.max() >= len(self) else indices.min()}"
            )
        indices = np.where(indices < 0, indices + len(self), indices)
        if self.load(selected):
            return {name: _select_rows(self._loaded[name], indices) for name in selected}
        return self._reader.take(indices, selected)

    def batches(
        self,
        size: int,
        seed: int | None = None,
        drop_last: bool = False,
        *,
        columns: Sequence[str] | None = None,
        steps: int | None = None,
    ) -> Iterator[dict[str, Array]]:
        """Yields every row once, `size` at a time; the last batch holds the rest.

        seed: shuffles the rows; None keeps the partition's own order. steps: yields exactly this number of
        batches, with sizes that differ by at most one. Raises SpecError for a size below 1.
        """
        selected = self._check_columns(columns)
        if size < 1 or (steps is not None and not 1 <= steps <= max(1, len(self))):
            raise SpecError(
                f"{len(self)} rows cannot be split into batches of {size} rows (steps: {steps})",
                hints=("use a size of at least 1",),
            )
        if len(self) == 0:
            return
        bounds = batch_bounds(len(self), size, drop_last=drop_last, steps=steps)
        in_memory = self.load(selected)
        if self._reader.blocks is not None and not in_memory:
            yield from self._stream_batches(bounds, seed, selected)
            return
        order = self.order(seed)
        loaded = {name: self._loaded[name] for name in selected} if in_memory else {}
        for begin, end in bounds:
            if in_memory and order is None:
                yield {name: array[begin:end].copy() for name, array in loaded.items()}
                continue
            indices = order[begin:end] if order is not None else np.arange(begin, end)
            yield (
                {name: _select_rows(array, indices) for name, array in loaded.items()}
                if in_memory
                else self._reader.take(indices, selected)
            )

    def order(self, seed: int | None) -> Array | None:
        """Returns the positions in the order of `batches(size, seed)`, read-only; None means 0, 1, 2, …"""
        if seed is None:
            return None
        if seed not in self._orders:  # several trials iterate in the same order
            order = epoch_order(len(self), seed, self._reader.blocks, self._window)
            order.flags.writeable = False
            self._orders = dict([*self._orders.items(), (seed, order)][-_MAX_CACHED_ORDERS:])
        return self._orders[seed]

    def items(self) -> Iterator[dict[str, Any]]:
        """Yields single rows in the partition's own order, with at most one window of rows in memory."""
        for batch in self.batches(min(256, max(1, len(self)))):
            for index in range(len(next(iter(batch.values())))):
                yield {name: array[index] for name, array in batch.items()}

    def _stream_batches(
        self, bounds: list[tuple[int, int]], seed: int | None, columns: Sequence[str]
    ) -> Iterator[dict[str, Array]]:
        """Yields the same batches, read window by window; the rest of a window is carried into the next."""
        blocks = self._reader.blocks
        assert blocks is not None
        rest: dict[str, Array] = {}
        sizes = iter([end - begin for begin, end in bounds])
        size = next(sizes, None)
        for numbers, positions in (
            storage_windows(blocks) if seed is None else shuffle_windows(seed, blocks, self._window)
        ):
            window = _read_window(self._reader, columns, numbers, positions)
            pending = {
                name: concatenate([rest[name], window[name]]) if rest else window[name] for name in columns
            }
            start, available = 0, len(next(iter(pending.values())))
            while size is not None and start + size <= available:
                yield {name: array[start : start + size] for name, array in pending.items()}
                start += size
                size = next(sizes, None)
            rest = {name: array[start:] for name, array in pending.items()}

    # -- derived partitions ----------------------------------------------------------------------------------

    def view(self, **sources: ColumnSource) -> Partition:
        """Returns the same rows with renamed columns.

        `view(x=("age", "height"), y="label")` makes one matrix (rows, 2) of float32 and one column. Repeated
        calls return the same object. Raises SpecError for an unknown column.
        """
        for source in sources.values():
            self._check_columns((source,) if isinstance(source, str) else source)
        key = tuple(sorted(sources.items()))
        if key not in self._views:
            self._views[key] = self.like(ViewReader(self._reader, sources), what=repr(key))
            self._views[key]._root = self._root
        return self._views[key]

    def like(self, reader: PartitionReader, *, what: str) -> Partition:
        """Returns a partition with other columns of the same rows. what: identifies the columns in the
        key."""
        return Partition(
            reader,
            index=self.index,
            peers=self.peers,
            kind=self.kind,
            key=f"{self.key}:{what}" if self.key else "",
            classes=self.classes,
            folder=self.folder,
            window_rows=self._window,
            memory_bytes=self._memory,
        )

    def torch_dataset(self) -> Any:
        """Returns a `torch.utils.data.Dataset` of dictionaries for a `DataLoader`; an iterable one if single
        rows cannot be read."""
        from hopyard.datasets.partitions.torch_dataset import iterable_dataset, map_dataset

        return map_dataset(self) if self._reader.blocks is None or self.load() else iterable_dataset(self)

    def _check_columns(self, columns: Sequence[str] | None) -> tuple[str, ...]:
        if columns is None:
            return self.columns
        for name in columns:
            if name not in self.columns:
                raise SpecError(
                    f"{self.kind} partition {self.index} of {self.of} has no column `{name}`",
                    hints=unknown_name_hints(name, self.columns),
                )
        return tuple(columns)


def _select_rows(array: Array, positions: Array) -> Array:
    """Returns `array[positions]` for positions that are in range.

    A quarter faster than NumPy's indexing, which checks each position first. `take` would copy an array whose
    rows are not contiguous each time, so such arrays are indexed.
    """
    return (
        array.take(positions, axis=0, mode="clip")
        if array.flags.c_contiguous and array.flags.aligned
        else array[positions]
    )


def partition_of_arrays(
    arrays: Mapping[str, Any],
    *,
    index: int = 0,
    peers: Sequence[int] = (),
    kind: Kind = "train",
    key: str = "",
) -> Partition:
    """Returns a partition of existing arrays. Raises SpecError if their lengths differ."""
    return Partition(
        ArrayReader({name: np.asarray(array) for name, array in arrays.items()}),
        index=index,
        peers=peers,
        kind=kind,
        key=key,
    )


def storage_windows(blocks: Array) -> list[tuple[list[int], Array]]:
    """Returns the windows of the partition's own order, which `split` made: each is as long as it needs its
    blocks complete."""
    windows: list[tuple[list[int], Array]] = []
    begin, last = 0, {int(block): index for index, block in enumerate(blocks)}
    end = -1
    for index, block in enumerate(blocks):
        end = max(end, last[int(block)])
        if index == end:
            windows.append(
                (
                    list(dict.fromkeys(int(number) for number in blocks[begin : index + 1])),
                    np.arange(begin, index + 1),
                )
            )
            begin = index + 1
    return windows


def _read_window(
    reader: PartitionReader, columns: Sequence[str], blocks: Sequence[int], positions: Array
) -> dict[str, Array]:
    """Returns these positions, which are all rows of these blocks, in this order."""
    parts = list(reader.chunks(columns, blocks))
    stored = np.concatenate([chunk_positions for chunk_positions, _ in parts])
    order = np.argsort(stored, kind="stable")[np.searchsorted(np.sort(stored), positions)]
    return {name: concatenate([arrays[name] for _, arrays in parts])[order] for name in columns}
