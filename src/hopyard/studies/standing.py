"""Where a study stands: whose trial is how far, what is best.
Fed with the events of its journal, live and replayed alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hopyard.domain.ids import TrialId
from hopyard.domain.run import ParamValue
from hopyard.domain.study import Goal
from hopyard.domain.trial import Asked, Proposal, Report, StudyEvent, Told, TrialOutcome, Verdict


class Phase(StrEnum):
    TRAINING = "training"
    PAUSED = "paused"
    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(slots=True)
class Trial:
    """step: the last that was told; value: what the metric was then."""

    proposal: Proposal
    phase: Phase = Phase.TRAINING
    step: int = 0
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Best:
    trial: TrialId
    step: int
    value: float
    params: Mapping[str, ParamValue]


@dataclass(slots=True)
class Standing:
    goal: Goal
    trials: dict[TrialId, Trial] = field(default_factory=dict)
    best: Best | None = None

    def take(self, event: StudyEvent) -> None:
        if isinstance(event, Asked):
            if isinstance(event.answer, Proposal):
                self._asked(event.answer)
        else:
            self._told(event)

    def training(self) -> list[TrialId]:
        return [name for name, trial in self.trials.items() if trial.phase is Phase.TRAINING]

    def count(self, phase: Phase) -> int:
        return sum(trial.phase is phase for trial in self.trials.values())

    def _asked(self, proposal: Proposal) -> None:
        trial = self.trials.setdefault(proposal.trial, Trial(proposal))
        trial.proposal, trial.phase = proposal, Phase.TRAINING

    def _told(self, event: Told) -> None:
        report = event.report
        trial = self.trials[report.trial]
        if report.outcome is TrialOutcome.RUNNING and report.value is not None:
            trial.step, trial.value = report.step, report.value
            self._compare(report, trial)
        trial.phase = phase_after(trial.proposal.budget, event) or trial.phase

    def _compare(self, report: Report, trial: Trial) -> None:
        assert report.value is not None
        best = self.best
        if best is None or (
            report.value > best.value if self.goal is Goal.MAX else report.value < best.value
        ):
            self.best = Best(report.trial, report.step, report.value, dict(trial.proposal.params))


def phase_after(budget: int, event: Told) -> Phase | None:
    """What became of a trial; None where it goes on."""
    match event.report.outcome, event.verdict:
        case TrialOutcome.FAILED, _:
            return Phase.FAILED
        case TrialOutcome.COMPLETED, _:
            return Phase.COMPLETED
        case TrialOutcome.STOPPED, _:
            return Phase.STOPPED
        case _, Verdict.STOP:
            return Phase.STOPPED
        case _, Verdict.PAUSE:
            return Phase.PAUSED
        case _:
            return Phase.COMPLETED if event.report.step >= budget else None
