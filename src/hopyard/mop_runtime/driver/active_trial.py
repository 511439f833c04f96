"""A trial in training: its progress, its evaluations, and its unreported states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hopyard.domain.ids import PartitionId, TrialId
from hopyard.domain.run import ParamValue
from hopyard.mop.report_schedule import ReportSchedule
from hopyard.mop_runtime.driver.journal_index import JournalIndex, TrainingPosition
from hopyard.studies.trainer import BudgetReached, EpochReported, TrainerEvent


@dataclass(slots=True, eq=False)
class ActiveTrial:
    """A trial in training.

    schedule: when it is evaluated. Steps and the budget are in its units. state: the newest state, at
    `position`. report_states: the state at each report, by step, from the last reported one on.
    reported_step: the last step that was reported. replay_order: the partitions to visit next, so that lost
    hops are repeated in their order.
    """

    schedule: ReportSchedule
    trial: TrialId
    params: Mapping[str, ParamValue]
    budget: int
    reported_step: int
    state: str
    position: TrainingPosition
    report_states: dict[int, str] = field(default_factory=dict)
    replay_order: tuple[PartitionId, ...] = ()
    has_reached_budget: bool = False

    @property
    def is_trained(self) -> bool:
        return self.schedule.units(self.position.epoch, len(self.position.visited)) >= self.budget

    @property
    def epochs(self) -> int:
        """The budget in epochs; one that is not full counts."""
        return self.schedule.epochs(self.budget)

    def record_hop(self, state: str, position: TrainingPosition) -> None:
        self.state, self.position = state, position
        epochs, visits = position.epoch, len(position.visited)
        if self.schedule.is_report(epochs, visits, self.budget):
            self.report_states[self.schedule.units(epochs, visits)] = state

    def needed_states(self, index: JournalIndex) -> set[str]:
        """Returns the states that the trial needs: the newest, those with pending evaluations with what was
        gathered for them, and that of the last report."""
        return {
            self.state,
            *(state for step, state in self.report_states.items() if step >= self.reported_step),
            *(
                name
                for _, state in self.unreported_states()
                for name in index.pending_gathered(state).values()
            ),
        }

    def unreported_states(self) -> list[tuple[int, str]]:
        """Returns the states of reports that were not delivered, by step, in order."""
        return [
            (step, state) for step, state in sorted(self.report_states.items()) if step > self.reported_step
        ]

    def drain_events(self, index: JournalIndex) -> Iterator[TrainerEvent]:
        """Returns the events that can be reported now, in the order of steps."""
        for step, state in self.unreported_states():
            metrics = index.metrics(state)
            if metrics is None or step != self.schedule.next_report(self.reported_step, self.budget):
                break
            self.reported_step = step
            yield EpochReported(self.trial, step, metrics)
        if self.reported_step >= self.budget and not self.has_reached_budget:
            self.has_reached_budget = True
            yield BudgetReached(self.trial, self.budget)
