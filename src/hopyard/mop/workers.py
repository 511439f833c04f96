"""The workers, the partitions that each holds, and the remaining work of each.

Partitions are bits: bit i is the i-th partition of an epoch. So "does the trial lack a partition of this
worker?" is one operation on two integers, for any number of partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from hopyard.domain.ids import PartitionId, WorkerId
from hopyard.mop.hop_time_estimates import HopTimeEstimates

STRAGGLER_RATIO = (
    2.0  # times: a worker so much slower than another holder of a partition may leave it to that one
)


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
        self._indices = {partition: at for at, partition in enumerate(self.partitions)}

    def mask(self, partitions: Collection[PartitionId]) -> int:
        """Of those that are known; others are left out."""
        return sum(
            1 << self._indices[partition] for partition in set(partitions) if partition in self._indices
        )

    def index_of(self, partition: PartitionId) -> int:
        return self._indices[partition]


@dataclass(slots=True, eq=False)
class MopWorker:
    """train_mask, validation_mask: what it holds of the training and of the validation partitions.
    unit: what it does now."""

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
        self.has_shared_partitions = False  # whether some partition is held by more than one
        self.generation = 0  # counts changes of slowness

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
        for at in bit_positions(worker.train_mask):
            self._holders[at].append(worker)
        self.update_speeds()

    def remove(self, worker: MopWorker) -> None:
        del self._by_id[worker.id]
        self.idle.pop(worker.id, None)
        for at in bit_positions(worker.train_mask):
            self._holders[at].remove(worker)
        self.update_speeds()

    def mark_busy(self, worker: MopWorker) -> None:
        """It idles no more."""
        del self.idle[worker.id]
        if worker in self.newly_idle:
            self.newly_idle.remove(worker)

    def update_speeds(self) -> None:
        """Take the workers' speeds as they are known now.
        What an idle one left to another it may want now."""
        speed = self._estimates.speed
        self.seconds_per_cost = [
            1.0 / max(speed(one.id) for one in holders) if holders else 1.0 for holders in self._holders
        ]
        self.has_shared_partitions = any(len(holders) > 1 for holders in self._holders)
        self.generation += 1
        self.newly_idle = list(self.idle.values())

    def load(self, worker: MopWorker) -> float:
        """Seconds of work that wait for it: of a partition that several hold, its part by speed."""
        speed = self._estimates.speed
        if not self.has_shared_partitions and worker.train_mask & (worker.train_mask - 1) == 0:
            return (
                self.remaining_cost[worker.train_mask.bit_length() - 1] / speed(worker.id)
                if worker.train_mask
                else 0.0
            )
        return sum(
            self.remaining_cost[at] / sum(speed(one.id) for one in self._holders[at])
            for at in bit_positions(worker.train_mask)
        )

    def is_one_to_one(self) -> bool:
        """Whether each partition is held by one worker, which holds no other."""
        return len(self) == len(self._holders) and all(len(holders) == 1 for holders in self._holders)

    def holder(self, index: int) -> MopWorker:
        """The only one, where nothing is shared."""
        return self._holders[index][0]

    def holder_count(self, index: int) -> int:
        return len(self._holders[index])

    def should_yield(self, worker: MopWorker, index: int, cost: float) -> bool:
        """Whether a slow worker had better not begin a hop of this cost on this partition: another holder,
        much faster, would have done all that waits for it, after what it does now, before this one had done
        the hop."""
        speed = self._estimates.speed
        own = speed(worker.id)
        for other in self._holders[index]:
            faster = speed(other.id)
            if other is not worker and faster >= STRAGGLER_RATIO * own:
                waits = sum(self.remaining_cost[place] for place in bit_positions(other.train_mask)) + (
                    cost if other.unit is not None else 0.0
                )
                if waits / faster <= cost / own:
                    return True
        return False
