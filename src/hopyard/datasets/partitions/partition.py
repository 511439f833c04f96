"""One partition of a dataset: its rows, in memory where they fit, else read as they are asked for."""

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
_MAX_CACHED_ORDERS = 2  # that are kept: some trials are an epoch behind others


class Partition:
    """Rows in the partition's own order, which the plan's seed shuffled. Equal data and plans give equal
    partitions, and equal seeds equal batches, on every machine and however much memory it has.

    index, of: it is the index-th of so many. peers: how many rows each of them has. kind: train or
    validation. key: names what it holds, in every study. classes: of image folders, the name of each label.
    folder: where what is computed from it may be kept on this node; None nowhere.
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
        # columns that once did not fit: asking again costs time, and answers must not change
        self._does_not_fit: set[str] = set()
        self._root = self  # of a view, whose it is: they share what memory there may be
        self._views: dict[tuple[tuple[str, ColumnSource], ...], Partition] = {}
        self._orders: dict[int, Array] = {}  # by seed, the last few

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

    # -- what is in memory -----------------------------------------------------------------------------------

    def __getitem__(self, column: str) -> Array:
        """A whole column, kept in memory from now on. Raises SpecError for a column that there is not, or one
        too large."""
        self._check_columns((column,))
        if not self.load((column,)):
            about = (
                f"column `{column}` of {self!r} takes about "
                f"{self._reader.row_bytes((column,)) * len(self) / 1e6:,.0f} MB"
            )
            hints = (
                "go through it with batches() or items()",
                "HOPYARD_PARTITION_MEMORY=8G says how much a partition may take",
            )
            raise SpecError(
                f"{about}, more than the {budget_bytes(self._memory, self.of) / 1e6:,.0f} MB it may",
                hints=hints,
            )
        return self._loaded[column]

    def load(self, columns: Sequence[str] | None = None) -> bool:
        """Bring these columns (all) into memory, if they fit; whether they are there."""
        wanted = [name for name in self._check_columns(columns) if name not in self._loaded]
        if not wanted:
            return True
        if self._does_not_fit.intersection(wanted):
            return False
        need = self._reader.row_bytes(wanted) * len(self)
        if need + self._root.bytes_loaded > budget_bytes(self._memory, self.of):
            self._does_not_fit.update(wanted)
            return False
        self._loaded.update(self._read(wanted))
        return True

    @property
    def bytes_loaded(self) -> int:
        """What its columns and those of its views take in memory now."""
        return sum(array_bytes(array) for array in self._loaded.values()) + sum(
            view.bytes_loaded for view in self._views.values()
        )

    def _read(self, columns: Sequence[str]) -> dict[str, Array]:
        whole: dict[str, Array] = {}
        for positions, arrays in self._reader.chunks(columns):
            scatter(whole, len(self), positions, arrays)
        return whole

    # -- going through it ------------------------------------------------------------------------------------

    def rows(self, positions: Any, columns: Sequence[str] | None = None) -> dict[str, Array]:
        """The rows at these positions, in this order. Raises SpecError for positions that there are not."""
        wanted, at = self._check_columns(columns), np.atleast_1d(np.asarray(positions, dtype=np.int64))
        if len(at) and not (-len(self) <= at.min() and at.max() < len(self)):
            raise SpecError(f"{self!r} has no row {at.max() if at.max() >= len(self) else at.min()}")
        at = np.where(at < 0, at + len(self), at)
        if self.load(wanted):
            return {name: _take_rows(self._loaded[name], at) for name in wanted}
        return self._reader.take(at, wanted)

    def batches(
        self,
        size: int,
        seed: int | None = None,
        drop_last: bool = False,
        *,
        columns: Sequence[str] | None = None,
        steps: int | None = None,
    ) -> Iterator[dict[str, Array]]:
        """Every row once, `size` at a time, the last batch with what is left. seed: shuffled by it; None in
        the partition's own order. steps: exactly so many batches, of sizes that differ by one at most. Raises
        SpecError for a size below 1."""
        wanted = self._check_columns(columns)
        if size < 1 or (steps is not None and not 1 <= steps <= max(1, len(self))):
            raise SpecError(
                f"batches of {size} rows (steps: {steps}) cannot be made of {len(self)}",
                hints=("the size is at least 1",),
            )
        if len(self) == 0:
            return
        bounds = batch_bounds(len(self), size, drop_last=drop_last, steps=steps)
        there = self.load(wanted)
        if self._reader.blocks is not None and not there:
            yield from self._stream_batches(bounds, seed, wanted)
            return
        order = self.order(seed)
        whole = {name: self._loaded[name] for name in wanted} if there else {}
        for begin, end in bounds:
            if there and order is None:
                yield {name: array[begin:end].copy() for name, array in whole.items()}
                continue
            at = order[begin:end] if order is not None else np.arange(begin, end)
            yield (
                {name: _take_rows(array, at) for name, array in whole.items()}
                if there
                else self._reader.take(at, wanted)
            )

    def order(self, seed: int | None) -> Array | None:
        """The positions in the order in which `batches(size, seed)` goes through them, not to be written to;
        None: 0, 1, 2, …"""
        if seed is None:
            return None
        if seed not in self._orders:  # many trials in turn go through it in the same order
            made = epoch_order(len(self), seed, self._reader.blocks, self._window)
            made.flags.writeable = False
            self._orders = dict([*self._orders.items(), (seed, made)][-_MAX_CACHED_ORDERS:])
        return self._orders[seed]

    def items(self) -> Iterator[dict[str, Any]]:
        """Row by row in the partition's own order, with no more in memory than a window of them."""
        for batch in self.batches(min(256, max(1, len(self)))):
            for at in range(len(next(iter(batch.values())))):
                yield {name: array[at] for name, array in batch.items()}

    def _stream_batches(
        self, bounds: list[tuple[int, int]], seed: int | None, columns: Sequence[str]
    ) -> Iterator[dict[str, Array]]:
        """The same batches, read window by window: what a window leaves over is carried into the next."""
        blocks = self._reader.blocks
        assert blocks is not None
        left: dict[str, Array] = {}
        sizes = iter([end - begin for begin, end in bounds])
        size = next(sizes, None)
        for numbers, positions in (
            storage_windows(blocks) if seed is None else shuffle_windows(seed, blocks, self._window)
        ):
            read = _read_window(self._reader, columns, numbers, positions)
            held = {name: concatenate([left[name], read[name]]) if left else read[name] for name in columns}
            at, there = 0, len(next(iter(held.values())))
            while size is not None and at + size <= there:
                yield {name: array[at : at + size] for name, array in held.items()}
                at += size
                size = next(sizes, None)
            left = {name: array[at:] for name, array in held.items()}

    # -- other shapes of it ----------------------------------------------------------------------------------

    def view(self, **sources: ColumnSource) -> Partition:
        """The same rows with columns of these names: `view(x=("age", "height"), y="label")` makes one matrix
        (rows, 2) of float32 and one column. Asked for again, it is the same object. Raises SpecError for a
        column that there is not."""
        for source in sources.values():
            self._check_columns((source,) if isinstance(source, str) else source)
        key = tuple(sorted(sources.items()))
        if key not in self._views:
            self._views[key] = self.like(ViewReader(self._reader, sources), what=repr(key))
            self._views[key]._root = self._root
        return self._views[key]

    def like(self, reader: PartitionReader, *, what: str) -> Partition:
        """Other columns of the same rows. what: tells them from others, in the key."""
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
        """A `torch.utils.data.Dataset` of dictionaries, for a `DataLoader`; an iterable one where rows cannot
        be had singly."""
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


def _take_rows(array: Array, positions: Array) -> Array:
    """`array[at]`, of positions that are known to be there: a quarter faster than NumPy's indexing, which
    looks at each first. Of rows that do not lie one after the other, `take` would copy the whole array each
    time."""
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
    """A partition of arrays that are there already. Raises SpecError where they differ in length."""
    return Partition(
        ArrayReader({name: np.asarray(array) for name, array in arrays.items()}),
        index=index,
        peers=peers,
        kind=kind,
        key=key,
    )


def storage_windows(blocks: Array) -> list[tuple[list[int], Array]]:
    """The windows of the partition's own order, which `split` made: as long as each needs its blocks
    whole."""
    found: list[tuple[list[int], Array]] = []
    begin, last = 0, {int(block): at for at, block in enumerate(blocks)}
    end = -1
    for at, block in enumerate(blocks):
        end = max(end, last[int(block)])
        if at == end:
            found.append(
                (list(dict.fromkeys(int(b) for b in blocks[begin : at + 1])), np.arange(begin, at + 1))
            )
            begin = at + 1
    return found


def _read_window(
    reader: PartitionReader, columns: Sequence[str], blocks: Sequence[int], positions: Array
) -> dict[str, Array]:
    """These positions, which are all rows of these blocks, in this order."""
    parts = list(reader.chunks(columns, blocks))
    stored = np.concatenate([at for at, _ in parts])
    order = np.argsort(stored, kind="stable")[np.searchsorted(np.sort(stored), positions)]
    return {name: concatenate([arrays[name] for _, arrays in parts])[order] for name in columns}
