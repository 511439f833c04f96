"""A trial in training: its progress, its evaluations, and its unreported epochs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hopyard.domain.ids import PartitionId, TrialId
from hopyard.domain.run import ParamValue
from hopyard.mop_runtime.driver.journal_index import JournalIndex, TrainingPosition
from hopyard.studies.trainer import BudgetReached, EpochReported, TrainerEvent


@dataclass(slots=True, eq=False)
class ActiveTrial:
    """A trial in training.

    state: the newest state, at `position`. epoch_end_states: the state after each epoch, from the last
    reported one on. reported_epoch: the last epoch that was reported. replay_order: the partitions to visit
    next, so that lost hops are repeated in their order. worker_losses: how often the worker of a unit was
    lost, by epoch and partitions. missing_state_counts: how often no worker had the start state of a unit,
    likewise. error_count: how often its code has failed.
    """

    trial: TrialId
    params: Mapping[str, ParamValue]
    budget: int
    reported_epoch: int
    state: str
    position: TrainingPosition
    epoch_end_states: dict[int, str] = field(default_factory=dict)
    replay_order: tuple[PartitionId, ...] = ()
    worker_losses: Counter[tuple[int, tuple[PartitionId, ...]]] = field(default_factory=Counter)
    missing_state_counts: Counter[tuple[int, tuple[PartitionId, ...]]] = field(default_factory=Counter)
    error_count: int = 0
    has_reached_budget: bool = False

    @property
    def is_trained(self) -> bool:
        return self.position.epoch >= self.budget

    def record_hop(self, state: str, position: TrainingPosition) -> None:
        self.state, self.position = state, position
        if not position.visited:
            self.epoch_end_states[position.epoch] = state

    def needed_states(self, index: JournalIndex) -> set[str]:
        """Returns the states that the trial needs: the newest, those with pending evaluations with what was
        gathered for them, and that of the last reported epoch."""
        return {
            self.state,
            *(state for step, state in self.epoch_end_states.items() if step >= self.reported_epoch),
            *(
                name
                for _, state in self.unreported_epochs()
                for name in index.pending_gathered(state).values()
            ),
        }

    def unreported_epochs(self) -> list[tuple[int, str]]:
        """Returns the finished but unreported epochs and their states, in order."""
        return [
            (step, state)
            for step, state in sorted(self.epoch_end_states.items())
            if step > self.reported_epoch
        ]

    def drain_events(self, index: JournalIndex) -> Iterator[TrainerEvent]:
        """Returns the events that can be reported now, in the order of epochs."""
        for step, state in self.unreported_epochs():
            metrics = index.metrics(state)
            if metrics is None or step != self.reported_epoch + 1:
                break
            self.reported_epoch = step
            yield EpochReported(self.trial, step, metrics)
        if self.reported_epoch >= self.budget and not self.has_reached_budget:
            self.has_reached_budget = True
            yield BudgetReached(self.trial, self.budget)
