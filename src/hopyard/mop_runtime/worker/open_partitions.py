"""Opening the partitions of a dataset: found by their plan, each kept open as long as the driver wants it."""

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
    """As `datasets.partitions.split.PartitionSet`."""

    def open(self, index: int, kind: Kind = "train", /) -> Partition: ...


OpenDataset = Callable[[PartitionPlan], PartitionOpener]


def open_dataset_folder(dataset_dir: Path, cache_dir: Path, *, dataset: str = "") -> OpenDataset:
    """A dataset that lies in a folder; indexes are kept in `cache_dir`, which all workers of the node share.
    dataset: what people call it."""
    return lambda plan: split_dataset(
        dataset_dir, plan, _manifest_key(dataset_dir), cache_dir, dataset=dataset
    )


def _manifest_key(folder: Path) -> str:
    """The node's cache names a version's folder by its digest.
    Of any other folder, what its files look like from outside."""
    if is_digest(folder.name):
        return folder.name
    running = hashlib.blake2b(str(folder.resolve()).encode(), digest_size=32)
    for where, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = Path(where, name)
            found = path.stat()
            running.update(f"{path.relative_to(folder)}\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
    return running.hexdigest()


class OpenPartitionSet:
    """Those of one worker."""

    def __init__(self, open_dataset: OpenDataset) -> None:
        self._open_dataset = open_dataset
        self._sets: dict[PartitionPlan, PartitionOpener] = {}
        self._plan: PartitionPlan | None = None
        self._partitions: dict[tuple[Kind, PartitionId], Partition] = {}

    def set_partitions(
        self, plan: PartitionPlan, train: tuple[PartitionId, ...], validation: tuple[PartitionId, ...]
    ) -> None:
        """Have these open and no others. Raises SpecError, OSError; then those that were open before stay
        so."""
        if plan not in self._sets:
            self._sets[plan] = self._open_dataset(plan)
        wanted: list[tuple[Kind, PartitionId]] = [
            *(("train", one) for one in train),
            *(("validation", one) for one in validation),
        ]
        known = self._partitions if plan == self._plan else {}
        there = {key: known[key] if key in known else self._sets[plan].open(key[1], key[0]) for key in wanted}
        self._partitions, self._plan = there, plan

    def get(self, kind: Kind, partition: PartitionId) -> Partition:
        """Raises KeyError for one that is not open."""
        return self._partitions[kind, partition]

    def row_counts(self, kind: Kind, partitions: tuple[PartitionId, ...]) -> tuple[int, ...]:
        return tuple(len(self._partitions[kind, one]) for one in partitions)

    def indices(self, kind: Kind) -> tuple[PartitionId, ...]:
        return tuple(partition for one, partition in list(self._partitions) if one == kind)
