"""Opens the partitions of a dataset by their plan, and keeps them open as long as the driver needs them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from hopyard.datasets.partitions.partition import Kind, Partition
from hopyard.datasets.partitions.split import split_dataset
from hopyard.domain.ids import PartitionId, is_digest
from hopyard.domain.study import PartitionPlan


class PartitionOpener(Protocol):
    """See `datasets.partitions.split.PartitionSet`."""

    def open(self, index: int, kind: Kind = "train", /) -> Partition: ...


OpenDataset = Callable[[PartitionPlan], PartitionOpener]


def open_dataset_folder(dataset_dir: Path, cache_dir: Path, *, dataset: str = "") -> OpenDataset:
    """Returns an opener for a dataset in a folder. Indexes are stored in `cache_dir`, which all workers of
    the node share. dataset: its name in messages."""
    return lambda plan: split_dataset(
        dataset_dir, plan, _manifest_key(dataset_dir), cache_dir, dataset=dataset
    )


def _manifest_key(folder: Path) -> str:
    """Returns the digest that names a version's folder in the node's cache. For any other folder, returns a
    digest of the names, sizes and times of its files."""
    if is_digest(folder.name):
        return folder.name
    hasher = hashlib.blake2b(str(folder.resolve()).encode(), digest_size=32)
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = Path(parent, name)
            stat_result = path.stat()
            hasher.update(
                f"{path.relative_to(folder)}\0{stat_result.st_size}\0{stat_result.st_mtime_ns}\0".encode()
            )
    return hasher.hexdigest()


class OpenPartitionSet:
    """The open partitions of one worker."""

    def __init__(self, open_dataset: OpenDataset) -> None:
        self._open_dataset = open_dataset
        self._sets: dict[PartitionPlan, PartitionOpener] = {}
        self._plan: PartitionPlan | None = None
        self._partitions: dict[tuple[Kind, PartitionId], Partition] = {}

    def set_partitions(
        self, plan: PartitionPlan, train: tuple[PartitionId, ...], validation: tuple[PartitionId, ...]
    ) -> None:
        """Opens these partitions and closes all others. Raises SpecError, OSError; then the previous ones
        stay open."""
        if plan not in self._sets:
            self._sets[plan] = self._open_dataset(plan)
        requested: list[tuple[Kind, PartitionId]] = [
            *(("train", index) for index in train),
            *(("validation", index) for index in validation),
        ]
        current = self._partitions if plan == self._plan else {}
        opened = {
            key: current[key] if key in current else self._sets[plan].open(key[1], key[0])
            for key in requested
        }
        self._partitions, self._plan = opened, plan

    def get(self, kind: Kind, partition: PartitionId) -> Partition:
        """Raises KeyError for one that is not open."""
        return self._partitions[kind, partition]

    def row_counts(self, kind: Kind, partitions: tuple[PartitionId, ...]) -> tuple[int, ...]:
        return tuple(len(self._partitions[kind, index]) for index in partitions)

    def indices(self, kind: Kind) -> tuple[PartitionId, ...]:
        return tuple(partition for other_kind, partition in list(self._partitions) if other_kind == kind)
