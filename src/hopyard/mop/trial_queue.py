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

_MAX_BUCKET_ENTRIES = 24  # entries at most


@dataclass(slots=True, eq=False)
class MopTrial:
    """remaining_mask: partitions (bits) that it lacks in this epoch. visit_order: bits of those that it is to
    visit next, one after another. eligible_mask: those that it may go to now, while it waits. weight: what a
    hop of it counts in a worker's load. number: in the order of admission. first_partition: the partition
    that it begins with where all else is equal. seconds: what its todo takes per cost, of the roster's
    `generation`. queue_entry: its place in the queue."""

    id: TrialId
    epochs: int
    checkpoint: str
    remaining_mask: int
    weight: float
    number: int
    first_partition: int
    epoch: int
    visit_order: deque[int]
    eligible_mask: int = 0
    hop: TrainHop | None = None
    seconds: float = 0.0
    generation: int = -1
    queue_entry: QueueEntry | None = None


QueueEntry = tuple[float, int, MopTrial]  # minus the seconds that it has left, its number, the trial


class TrialQueue:
    """Longest remaining first. Entries are kept in buckets, each with all that its trials want (or wanted: it
    is put right when a look into it was in vain), so that the first one that wants a certain partition is
    found without looking at all before it."""

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
        roster = self._workers
        if self._generation != roster.generation:
            self.refresh()
        if trial.generation != self._generation:
            trial.generation = self._generation
            trial.seconds = sum([roster.seconds_per_cost[at] for at in bit_positions(trial.remaining_mask)])
        trial.eligible_mask = trial.visit_order[0] if trial.visit_order else trial.remaining_mask
        seconds = trial.seconds + (trial.epochs - trial.epoch - 1) * self._epoch_s
        cost = self._estimates.cost(trial.id)
        if self.biases:
            cost *= self.biases.get(trial.id, 1.0)
        trial.queue_entry = entry = (-cost * seconds, trial.number, trial)
        self._size += 1
        self.added.append(trial)
        if not self._buckets:
            self._insert_bucket(0, [entry])
            return
        at = bisect_left(self._bucket_ends, entry)
        if at == len(self._bucket_ends):
            at -= 1
            self._bucket_ends[at] = entry
        bucket = self._buckets[at]
        insort(bucket, entry)
        self._bucket_masks[at] |= trial.eligible_mask
        if len(bucket) > _MAX_BUCKET_ENTRIES:
            self._insert_bucket(at + 1, bucket[_MAX_BUCKET_ENTRIES // 2 :])
            del bucket[_MAX_BUCKET_ENTRIES // 2 :]
            self._bucket_ends[at], self._bucket_masks[at] = bucket[-1], _eligible_mask(bucket)

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
        at = bisect_left(self._bucket_ends, entry)
        bucket = self._buckets[at]
        place = bisect_left(bucket, entry)
        del bucket[place]
        if not bucket:
            del self._buckets[at], self._bucket_ends[at], self._bucket_masks[at]
        elif place == len(bucket):
            self._bucket_ends[at] = bucket[-1]

    def find_first(self, held_mask: int) -> MopTrial | None:
        """Returns the first trial that needs one of these partitions."""
        for at, wanted in enumerate(self._bucket_masks):
            if wanted & held_mask:
                bucket = self._buckets[at]
                for entry in bucket:
                    if entry[2].eligible_mask & held_mask:
                        return entry[2]
                self._bucket_masks[at] = _eligible_mask(bucket)
        return None

    def refresh(self) -> None:
        """Sorts the queue again after workers joined, left, or changed their speed."""
        if self._generation != self._workers.generation:
            self._generation = self._workers.generation
            self._epoch_s = sum(self._workers.seconds_per_cost)
            self.reorder()

    def reorder(self) -> None:
        before = list(self)
        self._buckets, self._bucket_ends, self._bucket_masks, self._size = [], [], [], 0
        for trial in before:
            self.add(trial)


def _eligible_mask(bucket: list[QueueEntry]) -> int:
    wanted = 0
    for entry in bucket:
        wanted |= entry[2].eligible_mask
    return wanted
