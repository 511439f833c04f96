"""The common base of all built-in searchers: tracks the budget and the phase of each trial.

It keeps the rules of `domain.trial`. A searcher only decides which trial is next, and the verdict for a trial
at its budget.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from hopyard.domain.ids import TrialId
from hopyard.domain.run import ParamValue
from hopyard.domain.space import Space
from hopyard.domain.study import Goal
from hopyard.domain.trial import Proposal, Report, SearchState, TrialOutcome, Verdict
from hopyard.errors import Conflict
from hopyard.searchers.sampling import sample, sample_parameter


@dataclass(slots=True)
class TrackedTrial:
    """A proposed trial. step: the last reported step. loss: its newest value, smaller is better. verdict:
    None while it trains, otherwise the answer at the end of its training."""

    number: int
    params: Mapping[str, ParamValue]
    budget: int
    step: int = 0
    loss: float | None = None
    verdict: Verdict | None = None

    @property
    def id(self) -> TrialId:
        return TrialId(str(self.number))

    @property
    def is_paused(self) -> bool:
        return self.verdict is Verdict.PAUSE


class TrackingSearcher(ABC):
    """The base class, with the constructor of all built-in searchers; subclasses add their options.

    trials: the largest number of trials; None if the searcher decides. max_epochs: the largest budget. A
    smaller loss is better for either goal.
    """

    def __init__(self, *, space: Space, goal: Goal, trials: int | None, max_epochs: int, seed: int) -> None:
        self._space, self._goal, self._max_trials, self._max_epochs, self._seed = (
            space,
            goal,
            trials,
            max_epochs,
            seed,
        )
        self._trials: list[TrackedTrial] = []
        # params of the first trials, which the user knows; absent parameters are drawn
        self.points: Sequence[Mapping[str, ParamValue]] = ()

    # -- what a searcher decides -----------------------------------------------------------------------------

    @abstractmethod
    def _next(self) -> Proposal | SearchState:
        """Returns the next proposal, made by `_new_trial` or `_resume_trial`. A call that returns WAIT or
        DONE must change nothing."""

    def _params(self, number: int) -> Mapping[str, ParamValue]:
        """Returns the params of the new trial of that number."""
        return sample(self._space, self._seed, number)

    @abstractmethod
    def _on_budget_reached(self, trial: TrackedTrial) -> Verdict:
        """Returns the verdict for a trial that reached its budget with `trial.loss`."""

    # optional: most searchers need no action
    def _on_trial_ended(self, trial: TrackedTrial, outcome: TrialOutcome) -> None:  # noqa: B027
        """Called when a trial ended without a verdict: while training, or paused (`trial.is_paused`).
        `trial.loss` is its newest."""

    # -- the rules -------------------------------------------------------------------------------------------

    def ask(self) -> Proposal | SearchState:
        return self._next()

    def tell(self, report: Report, /) -> Verdict:
        trial = self._get(report.trial)
        has_ended = report.outcome is not TrialOutcome.RUNNING
        if trial.verdict is not None and not (trial.is_paused and has_ended):
            return trial.verdict
        loss = self._loss(report.value)
        if has_ended:
            trial.loss = loss if report.outcome is TrialOutcome.COMPLETED and loss is not None else trial.loss
            self._on_trial_ended(trial, report.outcome)
            trial.verdict = Verdict.STOP
            return Verdict.STOP
        if report.step <= trial.step:
            return Verdict.CONTINUE
        trial.step = min(report.step, trial.budget)
        if trial.step < trial.budget:
            trial.loss = trial.loss if loss is None else loss
            return Verdict.CONTINUE
        trial.loss = loss
        if loss is None:
            self._on_trial_ended(trial, TrialOutcome.FAILED)
            trial.verdict = Verdict.STOP
        else:
            trial.verdict = self._on_budget_reached(trial)
        return trial.verdict

    def _new_trial(self, budget: int) -> Proposal:
        number = len(self._trials)
        params = self._point(number)
        trial = TrackedTrial(number, self._params(number) if params is None else params, budget)
        self._trials.append(trial)
        return Proposal(trial.id, trial.params, budget)

    def _point(self, number: int) -> Mapping[str, ParamValue] | None:
        """Returns the params of the known point of this number, or None."""
        if number >= len(self.points):
            return None
        point, params = self.points[number], dict[str, ParamValue]()
        for parameter in self._space.parameters:
            if self._space.is_active(parameter, params):
                name = parameter.name
                params[name] = (
                    point[name] if name in point else sample_parameter(parameter, self._seed, number)
                )
        return params

    def _resume_trial(
        self, trial: TrackedTrial, budget: int, *, start_from: TrackedTrial | None = None
    ) -> Proposal:
        """Resumes a paused trial from its own state, or from a copy of another trial's state."""
        trial.budget, trial.verdict = budget, None
        return Proposal(trial.id, trial.params, budget, (start_from or trial).id)

    def _get(self, trial: TrialId) -> TrackedTrial:
        if not (
            trial.isascii()
            and trial.isdecimal()
            and int(trial) < len(self._trials)
            and str(int(trial)) == trial
        ):
            raise Conflict(
                f"trial `{trial}` was never proposed",
                hints=(
                    (
                        "check that the report belongs to this study, and that the searcher has not "
                        "changed since its start"
                    ),
                ),
            )
        return self._trials[int(trial)]

    def _loss(self, value: float | None) -> float | None:
        if value is None or not isfinite(value):
            return None
        return -value if self._goal is Goal.MAX else value
