"""The workers, the partitions that each holds, and the remaining work of each.

Partitions are bits: bit i is the i-th partition of an epoch. So "does the trial lack a partition of this
worker?" is one operation on two integers, for any number of partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from hopyard.domain.ids import PartitionId, WorkerId
from hopyard.mop.hop_time_estimates import HopTimeEstimates

# a worker that is slower by this factor than another holder of a partition may leave the partition to it
STRAGGLER_RATIO = 2.0


def bit_positions(mask: int) -> Iterator[int]:
    """Yields the positions of the set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class PartitionIndex:
    """Maps partitions to bits."""

    def __init__(self, partitions: Iterable[PartitionId]) -> None:
        self.partitions = sorted(set(partitions))
        self.full_mask = (1 << len(self.partitions)) - 1
        self._indices = {partition: index for index, partition in enumerate(self.partitions)}

    def mask(self, partitions: Collection[PartitionId]) -> int:
        """Returns the mask of the known partitions; unknown partitions are left out."""
        return sum(
            1 << self._indices[partition] for partition in set(partitions) if partition in self._indices
        )

    def index_of(self, partition: PartitionId) -> int:
        return self._indices[partition]


@dataclass(slots=True, eq=False)
class MopWorker:
    """train_mask, validation_mask: the training and validation partitions that it holds. unit: its active
    unit."""

    id: WorkerId
    train_mask: int
    validation_mask: int
    unit: int | None = None


class Workers:
    def __init__(self, size: int, estimates: HopTimeEstimates) -> None:
        self._estimates = estimates
        self._by_id: dict[WorkerId, MopWorker] = {}
        self._holders: list[list[MopWorker]] = [[] for _ in range(size)]
        self.idle: dict[WorkerId, MopWorker] = {}
        self.newly_idle: list[MopWorker] = []  # workers that became idle since the last clear
        self.remaining_cost = [0.0] * size  # by partition, the cost of the hops not yet begun
        self.seconds_per_cost = [1.0] * size  # by partition, seconds per cost of its fastest holder
        self.has_shared_partitions = False  # whether some partition has several holders
        self.generation = 0  # counts changes of speed

    def find(self, worker: WorkerId) -> MopWorker | None:
        return self._by_id.get(worker)

    def get(self, worker: WorkerId) -> MopWorker:
        return self._by_id[worker]

    def __iter__(self) -> Iterator[MopWorker]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def add(self, worker: MopWorker) -> None:
        self._by_id[worker.id] = worker
        if worker.unit is None:
            self.idle[worker.id] = worker
        for index in bit_positions(worker.train_mask):
            self._holders[index].append(worker)
        self.update_speeds()

    def remove(self, worker: MopWorker) -> None:
        del self._by_id[worker.id]
        self.idle.pop(worker.id, None)
        for index in bit_positions(worker.train_mask):
            self._holders[index].remove(worker)
        self.update_speeds()

    def mark_busy(self, worker: MopWorker) -> None:
        """Removes the worker from the idle workers."""
        del self.idle[worker.id]
        if worker in self.newly_idle:
            self.newly_idle.remove(worker)

    def update_speeds(self) -> None:
        """Reads the present speeds of the workers. An idle worker may now take work that it left to another
        before."""
        speed = self._estimates.speed
        self.seconds_per_cost = [
            1.0 / max(speed(worker.id) for worker in holders) if holders else 1.0 for holders in self._holders
        ]
        self.has_shared_partitions = any(len(holders) > 1 for holders in self._holders)
        self.generation += 1
        self.newly_idle = list(self.idle.values())

    def load(self, worker: MopWorker) -> float:
        """Returns the seconds of remaining work of the worker. Of a partition with several holders, its part
        by speed counts."""
        speed = self._estimates.speed
        if not self.has_shared_partitions and worker.train_mask & (worker.train_mask - 1) == 0:
            return (
                self.remaining_cost[worker.train_mask.bit_length() - 1] / speed(worker.id)
                if worker.train_mask
                else 0.0
            )
        return sum(
            self.remaining_cost[index] / sum(speed(holder.id) for holder in self._holders[index])
            for index in bit_positions(worker.train_mask)
        )

    def is_one_to_one(self) -> bool:
        """Returns whether each partition is held by one worker, which holds no other."""
        return len(self) == len(self._holders) and all(len(holders) == 1 for holders in self._holders)

    def holder(self, index: int) -> MopWorker:
        """Returns the only holder, if no partition is shared."""
        return self._holders[index][0]

    def holder_count(self, index: int) -> int:
        return len(self._holders[index])

    def should_yield(self, worker: MopWorker, index: int, cost: float) -> bool:
        """Returns whether a slow worker should not begin a hop of this cost on this partition. That holds if
        another, much faster holder would finish its present unit and all its remaining work before this
        worker finished the hop."""
        speed = self._estimates.speed
        own_speed = speed(worker.id)
        for other in self._holders[index]:
            other_speed = speed(other.id)
            if other is not worker and other_speed >= STRAGGLER_RATIO * own_speed:
                other_cost = sum(
                    self.remaining_cost[position] for position in bit_positions(other.train_mask)
                ) + (cost if other.unit is not None else 0.0)
                if other_cost / other_speed <= cost / own_speed:
                    return True
        return False
