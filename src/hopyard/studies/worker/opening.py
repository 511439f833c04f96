"""Opening the partitions of a dataset: found by their plan, each kept open as long as the driver wants it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from hopyard.datasets.partitions.partition import Kind, Partition
from hopyard.datasets.partitions.split import split
from hopyard.domain.ids import PartitionId, is_digest
from hopyard.domain.study import PartitionPlan


class OpensPartitions(Protocol):
    """As `datasets.partitions.split.PartitionSet`."""

    def open(self, index: int, kind: Kind = "train", /) -> Partition: ...


Data = Callable[[PartitionPlan], OpensPartitions]


def data_of_folder(folder: Path, cache: Path, *, dataset: str = "") -> Data:
    """A dataset that lies in a folder; indexes are kept in `cache`, which all workers of the node share.
    dataset: what people call it."""
    return lambda plan: split(folder, plan, _manifest_of(folder), cache, dataset=dataset)


def _manifest_of(folder: Path) -> str:
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


class Opened:
    """Those of one worker."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._sets: dict[PartitionPlan, OpensPartitions] = {}
        self._plan: PartitionPlan | None = None
        self._there: dict[tuple[Kind, PartitionId], Partition] = {}

    def change(
        self, plan: PartitionPlan, train: tuple[PartitionId, ...], validation: tuple[PartitionId, ...]
    ) -> None:
        """Have these open and no others. Raises SpecError, OSError; then those that were open before stay
        so."""
        if plan not in self._sets:
            self._sets[plan] = self._data(plan)
        wanted: list[tuple[Kind, PartitionId]] = [
            *(("train", one) for one in train),
            *(("validation", one) for one in validation),
        ]
        known = self._there if plan == self._plan else {}
        there = {key: known[key] if key in known else self._sets[plan].open(key[1], key[0]) for key in wanted}
        self._there, self._plan = there, plan

    def get(self, kind: Kind, partition: PartitionId) -> Partition:
        """Raises KeyError for one that is not open."""
        return self._there[kind, partition]

    def rows(self, kind: Kind, partitions: tuple[PartitionId, ...]) -> tuple[int, ...]:
        return tuple(len(self._there[kind, one]) for one in partitions)

    def of(self, kind: Kind) -> tuple[PartitionId, ...]:
        return tuple(partition for one, partition in list(self._there) if one == kind)
