"""The state of a study: the progress of each trial and the best result. Updated by the events of its journal,
live and replayed alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hopyard.domain.ids import TrialId
from hopyard.domain.run import ParamValue
from hopyard.domain.study import Goal
from hopyard.domain.trial import AskEvent, Proposal, Report, StudyEvent, TellEvent, TrialOutcome, Verdict


class TrialPhase(StrEnum):
    TRAINING = "training"
    PAUSED = "paused"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(slots=True)
class TrialState:
    """step: the last reported one; value: the metric at that step."""

    proposal: Proposal
    phase: TrialPhase = TrialPhase.TRAINING
    step: int = 0
    value: float | None = None


@dataclass(frozen=True, slots=True)
class BestResult:
    trial: TrialId
    step: int
    value: float
    params: Mapping[str, ParamValue]


@dataclass(slots=True)
class StudyState:
    goal: Goal
    trials: dict[TrialId, TrialState] = field(default_factory=dict)
    best: BestResult | None = None

    def apply(self, event: StudyEvent) -> None:
        if isinstance(event, AskEvent):
            if isinstance(event.answer, Proposal):
                self._apply_asked(event.answer)
        else:
            self._apply_told(event)

    def training_trials(self) -> list[TrialId]:
        return [name for name, trial in self.trials.items() if trial.phase is TrialPhase.TRAINING]

    def has_usable_value(self) -> bool:
        """Returns whether a trial that has not failed has reported a value."""
        return any(
            trial.value is not None and trial.phase is not TrialPhase.FAILED for trial in self.trials.values()
        )

    def count(self, phase: TrialPhase) -> int:
        return sum(trial.phase is phase for trial in self.trials.values())

    def _apply_asked(self, proposal: Proposal) -> None:
        trial = self.trials.setdefault(proposal.trial, TrialState(proposal))
        trial.proposal, trial.phase = proposal, TrialPhase.TRAINING

    def _apply_told(self, event: TellEvent) -> None:
        report = event.report
        trial = self.trials[report.trial]
        counts = report.outcome in (TrialOutcome.RUNNING, TrialOutcome.STOPPED)
        if counts and report.value is not None and report.step > trial.step:
            trial.step, trial.value = report.step, report.value
            self._update_best(report, trial)
        trial.phase = phase_after(trial.proposal.budget, event) or trial.phase

    def _update_best(self, report: Report, trial: TrialState) -> None:
        assert report.value is not None
        best = self.best
        if best is None or (
            report.value > best.value if self.goal is Goal.MAX else report.value < best.value
        ):
            self.best = BestResult(report.trial, report.step, report.value, dict(trial.proposal.params))


def phase_after(budget: int, event: TellEvent) -> TrialPhase | None:
    """Returns the phase of a trial after an event; None if it continues."""
    match event.report.outcome, event.verdict:
        case TrialOutcome.FAILED, _:
            return TrialPhase.FAILED
        case TrialOutcome.COMPLETED, _:
            return TrialPhase.COMPLETED
        case TrialOutcome.STOPPED, _:
            return TrialPhase.STOPPED
        case _, Verdict.STOP:
            return TrialPhase.STOPPED
        case _, Verdict.PAUSE:
            return TrialPhase.PAUSED
        case _:
            return TrialPhase.COMPLETED if event.report.step >= budget else None
