"""The median stopping rule (Golovin et al., "Google Vizier", KDD 2017, section 3.2.1), around any
searcher."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from statistics import median

from hopyard.domain.ids import TrialId
from hopyard.domain.run import ParamValue
from hopyard.domain.space import Space
from hopyard.domain.study import Goal
from hopyard.domain.trial import Proposal, Report, SearchState, TrialOutcome, Verdict
from hopyard.interfaces.searcher import ProposalRestore, ReleasesTrials, Searcher


@dataclass(slots=True)
class _Curve:
    """The reported losses of a trial, by ascending step. sums[i]: the sum of the losses up to the i-th.
    budget: 0 while it is not training."""

    budget: int
    steps: list[int] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)
    best: float = 0.0

    def add(self, step: int, loss: float) -> None:
        self.best = min(self.best, loss) if self.steps else loss
        self.sums.append(loss + (self.sums[-1] if self.sums else 0.0))
        self.steps.append(step)

    def mean(self, step: int) -> float | None:
        """Returns the mean of the losses up to `step`; None if the trial did not reach it."""
        if not self.steps or self.steps[-1] < step:
            return None
        count = bisect(self.steps, step)
        return self.sums[count - 1] / count if count else None


class MedianStopping:
    """Stops a trial below its budget if its best loss is worse than the median of the other trials' mean
    losses up to the same step. All trials that reached the step count (the paper counts completed trials
    only, of which a short study has none in time).

    inner: the searcher that proposes; its verdicts hold. A trial that is stopped here is reported to it as
    STOPPED. grace: steps that each trial gets. least: the smallest number of other trials for a comparison.
    """

    def __init__(
        self,
        *,
        space: Space,  # noqa: ARG002 - part of the common constructor
        goal: Goal,
        trials: int | None,  # noqa: ARG002
        max_epochs: int,  # noqa: ARG002
        seed: int,  # noqa: ARG002
        inner: Searcher,
        grace: int = 1,
        least: int = 5,
    ) -> None:
        self._goal, self._inner, self._grace_epochs, self._min_trials = goal, inner, grace, least
        self._curves: dict[TrialId, _Curve] = {}

    def recall(self, proposals: Mapping[TrialId, Mapping[str, ParamValue]]) -> None:
        if isinstance(self._inner, ProposalRestore):
            self._inner.recall(proposals)

    def ask(self) -> Proposal | SearchState:
        answer = self._inner.ask()
        if isinstance(answer, Proposal):
            self._curves.setdefault(answer.trial, _Curve(0)).budget = answer.budget
        return answer

    def tell(self, report: Report, /) -> Verdict:
        curve = self._curves.get(report.trial)
        if curve is not None and self._is_below_median(curve, report):
            curve.budget = 0
            return self._inner.tell(replace(report, outcome=TrialOutcome.STOPPED))
        verdict = self._inner.tell(report)
        if curve is not None and (verdict is not Verdict.CONTINUE or report.step >= curve.budget):
            curve.budget = 0
        return verdict

    def released(self) -> frozenset[TrialId]:
        return self._inner.released() if isinstance(self._inner, ReleasesTrials) else frozenset()

    def _is_below_median(self, curve: _Curve, report: Report) -> bool:
        """Records the report if it is new and its trial is training. Returns whether to stop the trial."""
        if (
            report.outcome is not TrialOutcome.RUNNING
            or report.value is None
            or not isfinite(report.value)
            or not curve.budget
        ):
            return False
        step = min(report.step, curve.budget)
        if curve.steps and step <= curve.steps[-1]:
            return False
        curve.add(step, -report.value if self._goal is Goal.MAX else report.value)
        if not self._grace_epochs < step < curve.budget:
            return False
        others = [
            mean
            for other in self._curves.values()
            if other is not curve and (mean := other.mean(step)) is not None
        ]
        return len(others) >= self._min_trials and curve.best > median(others)
