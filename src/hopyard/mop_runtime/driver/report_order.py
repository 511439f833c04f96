"""The order of reports with `order: fixed`: independent of which trial is faster.

The trials report in turn: always the one with the fewest reported epochs, of equal ones that with the lowest
number. A faster trial trains on meanwhile, but its report waits. So the searcher sees the same calls in every
run with the same seed.
"""

from __future__ import annotations

from hopyard.domain.ids import TrialId
from hopyard.studies.trainer import BudgetReached, EpochReported, TrainerEvent


class ReportOrder:
    def __init__(self) -> None:
        self._reported_epochs: dict[TrialId, int] = {}  # of the active trials

    def __len__(self) -> int:
        return len(self._reported_epochs)

    def start(self, trial: TrialId, reported_step: int) -> None:
        self._reported_epochs[trial] = reported_step

    def end(self, trial: TrialId) -> None:
        self._reported_epochs.pop(trial, None)

    def take(self, events: list[TrainerEvent]) -> list[TrainerEvent]:
        """Removes the events of the next report from `events` and returns them: none if it is not there yet.
        The driver must see them before the next ones, because it may start a trial in between."""
        if not self._reported_epochs:
            return []
        turn = min(self._reported_epochs, key=lambda trial: (self._reported_epochs[trial], int(trial)))
        own = [event for event in events if event.trial == turn]
        taken = own[:1]
        if own and isinstance(own[0], EpochReported):
            self._reported_epochs[turn] = own[0].step
            taken += [event for event in own[1:2] if isinstance(event, BudgetReached)]
        events[:] = [event for event in events if event not in taken]
        return taken
