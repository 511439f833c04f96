"""Trials, and the queue of trials that can hop."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hopyard.domain.ids import TrialId
from hopyard.mop.events import TrainHop
from hopyard.mop.hop_time_estimates import HopTimeEstimates
from hopyard.mop.workers import Workers, bit_positions

_MAX_BUCKET_ENTRIES = 24


@dataclass(slots=True, eq=False)
class MopTrial:
    """remaining_mask: partitions (bits) that the trial still needs in this epoch. visit_order: bits of the
    partitions that it must visit next, one after another. eligible_mask: partitions to which it may hop now,
    while it is pending. weight: the cost of one of its hops in the load of a worker. number: in the order of
    admission. epochs: the number of begun epochs at its end. last_visits: of how many partitions of the last
    epoch. partition_count: of an epoch. report_visits: from one report to the next. first_partition: the
    partition at which it begins if all else is equal. seconds: the time per cost of its remaining partitions,
    for this `generation` of the workers. queue_entry: its entry in the queue."""

    id: TrialId
    epochs: int
    checkpoint: str
    remaining_mask: int
    weight: float
    number: int
    first_partition: int
    epoch: int
    visit_order: deque[int]
    partition_count: int
    report_visits: int
    last_visits: int
    eligible_mask: int = 0
    hop: TrainHop | None = None
    seconds: float = 0.0
    generation: int = -1
    queue_entry: QueueEntry | None = None

    @property
    def visits(self) -> int:
        """Of all epochs."""
        return (self.epoch + 1) * self.partition_count - self.remaining_mask.bit_count()

    @property
    def total_visits(self) -> int:
        return (self.epochs - 1) * self.partition_count + self.last_visits

    @property
    def visits_to_report(self) -> int:
        """The visits up to the next report, or to the end."""
        visits = self.visits
        return min(self.report_visits - visits % self.report_visits, self.total_visits - visits)

    @property
    def has_partial_epoch(self) -> bool:
        """Whether it trains on some partitions of this epoch only."""
        return self.epoch + 1 == self.epochs and self.last_visits < self.partition_count

    def share(self, mask: int) -> float:
        """Returns the share of these partitions that it still visits in this epoch, if they are all that it
        has not begun."""
        if not self.has_partial_epoch:
            return 1.0
        count = mask.bit_count()
        return (self.last_visits - self.partition_count + count) / count if count else 0.0

    @property
    def later_epochs(self) -> float:
        """The number of epochs after this one."""
        if self.epoch + 1 >= self.epochs:
            return 0.0
        return self.epochs - self.epoch - 2 + self.last_visits / self.partition_count


QueueEntry = tuple[float, int, MopTrial]  # minus the remaining seconds, the number, the trial


class TrialQueue:
    """Longest remaining first. Entries are kept in buckets, each with a mask of the partitions that its
    trials need. A mask may hold too many, and is corrected after a lookup that finds no trial. So the first
    trial that needs a certain partition is found without a look at all trials before it."""

    def __init__(
        self, workers: Workers, estimates: HopTimeEstimates, biases: Mapping[TrialId, float]
    ) -> None:
        self._workers, self._estimates = workers, estimates
        self.biases = biases  # factors by which trials count as longer
        self.added: list[MopTrial] = []  # trials added since the last clear
        self._buckets: list[list[QueueEntry]] = []
        self._bucket_ends: list[QueueEntry] = []
        self._bucket_masks: list[int] = []
        self._size = 0
        self._epoch_s, self._generation = 0.0, -1

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[MopTrial]:
        return (entry[2] for bucket in self._buckets for entry in bucket)

    def add(self, trial: MopTrial) -> None:
        workers = self._workers
        if self._generation != workers.generation:
            self.refresh()
        if trial.generation != self._generation:
            trial.generation = self._generation
            trial.seconds = sum(
                [workers.seconds_per_cost[index] for index in bit_positions(trial.remaining_mask)]
            )
        trial.eligible_mask = trial.visit_order[0] if trial.visit_order else trial.remaining_mask
        seconds = trial.seconds * trial.share(trial.remaining_mask) + trial.later_epochs * self._epoch_s
        cost = self._estimates.cost(trial.id)
        if self.biases:
            cost *= self.biases.get(trial.id, 1.0)
        trial.queue_entry = entry = (-cost * seconds, trial.number, trial)
        self._size += 1
        self.added.append(trial)
        if not self._buckets:
            self._insert_bucket(0, [entry])
            return
        index = bisect_left(self._bucket_ends, entry)
        if index == len(self._bucket_ends):
            index -= 1
            self._bucket_ends[index] = entry
        bucket = self._buckets[index]
        insort(bucket, entry)
        self._bucket_masks[index] |= trial.eligible_mask
        if len(bucket) > _MAX_BUCKET_ENTRIES:
            self._insert_bucket(index + 1, bucket[_MAX_BUCKET_ENTRIES // 2 :])
            del bucket[_MAX_BUCKET_ENTRIES // 2 :]
            self._bucket_ends[index], self._bucket_masks[index] = bucket[-1], _eligible_mask(bucket)

    def _insert_bucket(self, index: int, bucket: list[QueueEntry]) -> None:
        self._buckets.insert(index, bucket)
        self._bucket_ends.insert(index, bucket[-1])
        self._bucket_masks.insert(index, _eligible_mask(bucket))

    def remove(self, trial: MopTrial) -> None:
        entry = trial.queue_entry
        if entry is None:
            return
        trial.queue_entry = None
        self._size -= 1
        index = bisect_left(self._bucket_ends, entry)
        bucket = self._buckets[index]
        position = bisect_left(bucket, entry)
        del bucket[position]
        if not bucket:
            del self._buckets[index], self._bucket_ends[index], self._bucket_masks[index]
        elif position == len(bucket):
            self._bucket_ends[index] = bucket[-1]

    def find_first(self, held_mask: int) -> MopTrial | None:
        """Returns the first trial that needs one of these partitions."""
        for index, mask in enumerate(self._bucket_masks):
            if mask & held_mask:
                bucket = self._buckets[index]
                for entry in bucket:
                    if entry[2].eligible_mask & held_mask:
                        return entry[2]
                self._bucket_masks[index] = _eligible_mask(bucket)
        return None

    def refresh(self) -> None:
        """Sorts the queue again after workers joined, left, or changed their speed."""
        if self._generation != self._workers.generation:
            self._generation = self._workers.generation
            self._epoch_s = sum(self._workers.seconds_per_cost)
            self.reorder()

    def reorder(self) -> None:
        trials = list(self)
        self._buckets, self._bucket_ends, self._bucket_masks, self._size = [], [], [], 0
        for trial in trials:
            self.add(trial)


def _eligible_mask(bucket: list[QueueEntry]) -> int:
    mask = 0
    for entry in bucket:
        mask |= entry[2].eligible_mask
    return mask
