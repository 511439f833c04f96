"""A partition as PyTorch's loaders want it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hopyard.datasets.partitions.arrays import Array, np

if TYPE_CHECKING:
    from hopyard.datasets.partitions.partition import Partition


def mapped(partition: Partition) -> Any:
    """Any row at once."""
    from torch.utils.data import Dataset

    class Rows(Dataset[dict[str, Any]]):
        def __len__(self) -> int:
            return len(partition)

        def __getitem__(self, position: int) -> dict[str, Any]:
            return self.__getitems__([position])[0]

        def __getitems__(self, positions: Sequence[int]) -> list[dict[str, Any]]:
            taken = partition.rows(positions)
            return [{name: _tensor(array[at]) for name, array in taken.items()} for at in range(len(positions))]

    return Rows()


def iterated(partition: Partition) -> Any:
    """Row by row; of several workers of a loader, each gives every so-many-th."""
    from torch.utils.data import IterableDataset, get_worker_info

    class Stream(IterableDataset[dict[str, Any]]):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            worker = get_worker_info()
            for at, item in enumerate(partition.items()):
                if worker is None or at % worker.num_workers == worker.id:
                    yield {name: _tensor(value) for name, value in item.items()}

    return Stream()


def _tensor(value: Array | Any) -> Any:
    import torch

    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "biuf":
        return torch.from_numpy(np.array(value))
    return value
