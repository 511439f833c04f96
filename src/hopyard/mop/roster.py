"""The workers, what each holds, and how much work is left for each.

Partitions are kept as bits: the i-th of those that an epoch visits is bit i, so that "does it lack what this
one holds?" is one operation on two integers, whatever the number of partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from hopyard.domain.ids import PartitionId, WorkerId
from hopyard.mop.estimate import Estimates

SLOWER = 2.0  # times: a worker so much slower than another holder of a partition may leave it to that one


def positions(mask: int) -> Iterator[int]:
    """The places of the bits that are set, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Numbering:
    """Which partition is which bit."""

    def __init__(self, partitions: Iterable[PartitionId]) -> None:
        self.partitions = sorted(set(partitions))
        self.all = (1 << len(self.partitions)) - 1
        self._places = {partition: at for at, partition in enumerate(self.partitions)}

    def mask(self, partitions: Collection[PartitionId]) -> int:
        """Of those that are known; others are left out."""
        return sum(1 << self._places[partition] for partition in set(partitions) if partition in self._places)

    def place(self, partition: PartitionId) -> int:
        return self._places[partition]


@dataclass(slots=True, eq=False)
class Worker:
    """mask, validation: what it holds of the training and of the validation partitions.
    unit: what it does now."""

    id: WorkerId
    mask: int
    validation: int
    unit: int | None = None


class Roster:
    def __init__(self, size: int, estimates: Estimates) -> None:
        self._estimates = estimates
        self._all: dict[WorkerId, Worker] = {}
        self._holders: list[list[Worker]] = [[] for _ in range(size)]
        self.idle: dict[WorkerId, Worker] = {}
        self.fresh: list[Worker] = []  # those that became idle since somebody cleared this
        self.left = [0.0] * size  # by partition, the cost of the hops not yet begun
        self.slowness = [1.0] * size  # by partition, seconds per cost of its fastest holder
        self.shared = False  # whether some partition is held by more than one
        self.generation = 0  # counts changes of slowness

    def find(self, worker: WorkerId) -> Worker | None:
        return self._all.get(worker)

    def get(self, worker: WorkerId) -> Worker:
        return self._all[worker]

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def add(self, worker: Worker) -> None:
        self._all[worker.id] = worker
        if worker.unit is None:
            self.idle[worker.id] = worker
        for at in positions(worker.mask):
            self._holders[at].append(worker)
        self.measure()

    def remove(self, worker: Worker) -> None:
        del self._all[worker.id]
        self.idle.pop(worker.id, None)
        for at in positions(worker.mask):
            self._holders[at].remove(worker)
        self.measure()

    def occupy(self, worker: Worker) -> None:
        """It idles no more."""
        del self.idle[worker.id]
        if worker in self.fresh:
            self.fresh.remove(worker)

    def measure(self) -> None:
        """Take the workers' speeds as they are known now.
        What an idle one left to another it may want now."""
        speed = self._estimates.speed
        self.slowness = [
            1.0 / max(speed(one.id) for one in holders) if holders else 1.0 for holders in self._holders
        ]
        self.shared = any(len(holders) > 1 for holders in self._holders)
        self.generation += 1
        self.fresh = list(self.idle.values())

    def load(self, worker: Worker) -> float:
        """Seconds of work that wait for it: of a partition that several hold, its part by speed."""
        speed = self._estimates.speed
        if not self.shared and worker.mask & (worker.mask - 1) == 0:
            return self.left[worker.mask.bit_length() - 1] / speed(worker.id) if worker.mask else 0.0
        return sum(
            self.left[at] / sum(speed(one.id) for one in self._holders[at]) for at in positions(worker.mask)
        )

    def covers_singly(self) -> bool:
        """Whether each partition is held by one worker, which holds no other."""
        return len(self) == len(self._holders) and all(len(holders) == 1 for holders in self._holders)

    def holder(self, at: int) -> Worker:
        """The only one, where nothing is shared."""
        return self._holders[at][0]

    def holders(self, at: int) -> int:
        return len(self._holders[at])

    def leaves(self, worker: Worker, at: int, cost: float) -> bool:
        """Whether a slow worker had better not begin a hop of this cost on this partition: another holder,
        much faster, would have done all that waits for it, after what it does now, before this one had done
        the hop."""
        speed = self._estimates.speed
        own = speed(worker.id)
        for other in self._holders[at]:
            faster = speed(other.id)
            if other is not worker and faster >= SLOWER * own:
                waits = sum(self.left[place] for place in positions(other.mask)) + (
                    cost if other.unit is not None else 0.0
                )
                if waits / faster <= cost / own:
                    return True
        return False
