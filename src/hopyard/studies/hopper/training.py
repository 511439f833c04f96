"""A trial that is being trained: how far it is, what of it is measured, what there is to report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hopyard.domain.ids import PartitionId, TrialId
from hopyard.domain.run import ParamValue
from hopyard.studies.hopper.book import Position, Result
from hopyard.studies.hopper.means import weighted
from hopyard.studies.trainer import News, Reached, Reported


@dataclass(slots=True, eq=False)
class Training:
    """state: the newest, which stands `at`. ends: epochs done -> the state then, from the last one that was
    reported on. told: the last epoch that was reported. order: partitions
    that it visits next, to do again what was lost as it was. losses: how often the worker of a unit was lost,
    by epoch and partitions. lacks: how often nobody had the state that a unit was to begin with, likewise."""

    trial: TrialId
    params: Mapping[str, ParamValue]
    budget: int
    told: int
    state: str
    at: Position
    ends: dict[int, str] = field(default_factory=dict)
    order: tuple[PartitionId, ...] = ()
    losses: Counter[tuple[int, tuple[PartitionId, ...]]] = field(default_factory=Counter)
    lacks: Counter[tuple[int, tuple[PartitionId, ...]]] = field(default_factory=Counter)
    reached: bool = False

    @property
    def is_trained(self) -> bool:
        return self.at.epoch >= self.budget

    def hopped(self, state: str, at: Position) -> None:
        self.state, self.at = state, at
        if not at.visited:
            self.ends[at.epoch] = state

    def kept(self) -> set[str]:
        """States that it needs: the newest, those that are still to be evaluated, and that of the last
        reported epoch."""
        return {self.state, *(state for step, state in self.ends.items() if step >= self.told)}

    def unmeasured(
        self, results: Mapping[str, Mapping[PartitionId, Result]], partitions: int
    ) -> Iterator[tuple[int, str, frozenset[PartitionId]]]:
        """Epochs done that are not reported, their states, and the partitions on which those are still to be
        evaluated."""
        for step, state in sorted(self.ends.items()):
            if step > self.told:
                lacks = frozenset(map(PartitionId, range(partitions))) - results.get(state, {}).keys()
                if lacks:
                    yield step, state, lacks

    def news(self, results: Mapping[str, Mapping[PartitionId, Result]], partitions: int) -> Iterator[News]:
        """What can be reported now, in the order of epochs."""
        while (state := self.ends.get(self.told + 1)) is not None and len(
            results.get(state, {})
        ) == partitions:
            self.told += 1
            yield Reported(self.trial, self.told, weighted(results[state]))
        if self.told >= self.budget and not self.reached:
            self.reached = True
            yield Reached(self.trial, self.budget)
