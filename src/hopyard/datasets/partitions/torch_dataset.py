"""Wraps a partition as a PyTorch dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from hopyard.datasets.partitions.arrays import Array, np


class RowSource(Protocol):
    """The part of a partition's interface that a dataset needs."""

    def __len__(self) -> int: ...

    def rows(self, positions: Any) -> dict[str, Array]: ...

    def items(self) -> Iterator[dict[str, Any]]: ...


def map_dataset(partition: RowSource) -> Any:
    """Returns a dataset that reads any row independently."""
    from torch.utils.data import Dataset

    class Mapped(Dataset[dict[str, Any]]):  # type: ignore[misc]  # PyTorch may be missing, without types
        def __len__(self) -> int:
            return len(partition)

        def __getitem__(self, position: int) -> dict[str, Any]:
            return self.__getitems__([position])[0]

        def __getitems__(self, positions: Sequence[int]) -> list[dict[str, Any]]:
            rows = partition.rows(positions)
            return [
                {name: _to_tensor(array[index]) for name, array in rows.items()}
                for index in range(len(positions))
            ]

    return Mapped()


def iterable_dataset(partition: RowSource) -> Any:
    """Returns a dataset that reads row by row; each worker of a loader yields every n-th row."""
    from torch.utils.data import IterableDataset, get_worker_info

    class Iterated(IterableDataset[dict[str, Any]]):  # type: ignore[misc]
        def __iter__(self) -> Iterator[dict[str, Any]]:
            worker = get_worker_info()
            for index, item in enumerate(partition.items()):
                if worker is None or index % worker.num_workers == worker.id:
                    yield {name: _to_tensor(value) for name, value in item.items()}

    return Iterated()


def _to_tensor(value: Array | Any) -> Any:
    import torch

    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "biuf":
        return torch.from_numpy(np.array(value))
    return value
