"""Trials, and the order in which those that could hop wait to do so."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hopyard.domain.ids import TrialId
from hopyard.mop.estimate import Estimates
from hopyard.mop.events import TrainHop
from hopyard.mop.roster import Roster, positions

_BUCKET = 24  # entries at most


@dataclass(slots=True, eq=False)
class Trial:
    """todo: partitions (bits) that it lacks in this epoch. order: bits of those that it is to visit next, one
    after another. wants: those that it may go to now, while it waits. weight: what a hop of it counts in a
    worker's load. number: in the order of admission. turn: the partition that it begins with where all else
    is equal. seconds: what its todo takes per cost, of the roster's `generation`. entry: its place in the
    queue."""

    id: TrialId
    epochs: int
    checkpoint: str
    todo: int
    weight: float
    number: int
    turn: int
    epoch: int
    order: deque[int]
    wants: int = 0
    hop: TrainHop | None = None
    seconds: float = 0.0
    generation: int = -1
    entry: Entry | None = None


Entry = tuple[float, int, Trial]  # minus the seconds that it has left, its number, the trial


class Queue:
    """Longest remaining first. Entries are kept in buckets, each with all that its trials want (or wanted: it
    is put right when a look into it was in vain), so that the first one that wants a certain partition is
    found without looking at all before it."""

    def __init__(self, roster: Roster, estimates: Estimates, biases: Mapping[TrialId, float]) -> None:
        self._roster, self._estimates = roster, estimates
        self.biases = biases  # factors by which trials count as longer
        self.news: list[Trial] = []  # put since somebody cleared this
        self._buckets: list[list[Entry]] = []
        self._lasts: list[Entry] = []
        self._wanted: list[int] = []
        self._size = 0
        self._epoch_s, self._generation = 0.0, -1

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Trial]:
        return (entry[2] for bucket in self._buckets for entry in bucket)

    def put(self, trial: Trial) -> None:
        roster = self._roster
        if self._generation != roster.generation:
            self.refresh()
        if trial.generation != self._generation:
            trial.generation = self._generation
            trial.seconds = sum([roster.slowness[at] for at in positions(trial.todo)])
        trial.wants = trial.order[0] if trial.order else trial.todo
        seconds = trial.seconds + (trial.epochs - trial.epoch - 1) * self._epoch_s
        cost = self._estimates.cost(trial.id)
        if self.biases:
            cost *= self.biases.get(trial.id, 1.0)
        trial.entry = entry = (-cost * seconds, trial.number, trial)
        self._size += 1
        self.news.append(trial)
        if not self._buckets:
            self._insert(0, [entry])
            return
        at = bisect_left(self._lasts, entry)
        if at == len(self._lasts):
            at -= 1
            self._lasts[at] = entry
        bucket = self._buckets[at]
        insort(bucket, entry)
        self._wanted[at] |= trial.wants
        if len(bucket) > _BUCKET:
            self._insert(at + 1, bucket[_BUCKET // 2 :])
            del bucket[_BUCKET // 2 :]
            self._lasts[at], self._wanted[at] = bucket[-1], _wanted_by(bucket)

    def _insert(self, at: int, bucket: list[Entry]) -> None:
        self._buckets.insert(at, bucket)
        self._lasts.insert(at, bucket[-1])
        self._wanted.insert(at, _wanted_by(bucket))

    def remove(self, trial: Trial) -> None:
        entry = trial.entry
        if entry is None:
            return
        trial.entry = None
        self._size -= 1
        at = bisect_left(self._lasts, entry)
        bucket = self._buckets[at]
        place = bisect_left(bucket, entry)
        del bucket[place]
        if not bucket:
            del self._buckets[at], self._lasts[at], self._wanted[at]
        elif place == len(bucket):
            self._lasts[at] = bucket[-1]

    def first(self, held: int) -> Trial | None:
        """The first that wants one of these partitions."""
        for at, wanted in enumerate(self._wanted):
            if wanted & held:
                bucket = self._buckets[at]
                for entry in bucket:
                    if entry[2].wants & held:
                        return entry[2]
                self._wanted[at] = _wanted_by(bucket)
        return None

    def refresh(self) -> None:
        """Where workers came, went, or turned out faster or slower: put all in order anew."""
        if self._generation != self._roster.generation:
            self._generation = self._roster.generation
            self._epoch_s = sum(self._roster.slowness)
            self.reorder()

    def reorder(self) -> None:
        before = list(self)
        self._buckets, self._lasts, self._wanted, self._size = [], [], [], 0
        for trial in before:
            self.put(trial)


def _wanted_by(bucket: list[Entry]) -> int:
    wanted = 0
    for entry in bucket:
        wanted |= entry[2].wants
    return wanted
