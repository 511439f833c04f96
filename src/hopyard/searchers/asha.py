"""Asynchronous successive halving (Li et al., "A system for massively parallel hyperparameter tuning", MLSys
2020, Algorithm 2)."""

from __future__ import annotations

from bisect import bisect, insort
from dataclasses import dataclass, field
from math import inf

from hopyard.domain.ids import TrialId
from hopyard.domain.rungs import rung_budgets
from hopyard.domain.space import Space
from hopyard.domain.study import Goal
from hopyard.domain.trial import Proposal, SearchState, TrialOutcome, Verdict
from hopyard.searchers.base import TrackedTrial, TrackingSearcher


@dataclass(slots=True)
class _Rung:
    """The results at one rung. ranking: best first; trials that failed on the way come last. removed: trials
    that were promoted, or cannot be."""

    budget: int
    ranking: list[tuple[float, int]] = field(default_factory=list)
    removed: set[int] = field(default_factory=set)

    def find_promotable(self, limit: int) -> int | None:
        """Returns the best of the first `limit` trials that is not removed."""
        for loss, number in self.ranking[:limit]:
            if loss < inf and number not in self.removed:
                return number
        return None


class Asha(TrackingSearcher):
    """Promotes a trial that is among the best 1/eta of its rung, at the highest rung that has one; otherwise
    proposes a new trial.

    trials: the number of new trials; None: no limit. A trial is stopped at once if it could not be promoted
    even if all later trials were worse; otherwise it is paused. The paper's study never ends; this one ends
    with a trained model. When all trials have begun, none is training and none reached the largest budget
    (fewer trials than eta^rungs), the best trial of the highest rung is promoted.
    """

    def __init__(
        self,
        *,
        space: Space,
        goal: Goal,
        trials: int | None,
        max_epochs: int,
        seed: int,
        eta: int = 3,
        min_epochs: int = 1,
    ) -> None:
        super().__init__(space=space, goal=goal, trials=trials, max_epochs=max_epochs, seed=seed)
        self._eta = eta
        self._rungs = [_Rung(budget) for budget in rung_budgets(max_epochs, min_epochs, eta)]
        self._rung_of: list[int] = []  # by trial: the rung that it trains for, or reached
        self._training = 0

    def _next(self) -> Proposal | SearchState:
        for index in range(len(self._rungs) - 2, -1, -1):
            rung = self._rungs[index]
            number = rung.find_promotable(len(rung.ranking) // self._eta)
            if number is not None:
                return self._promote(number, index)
        if self._max_trials is None or len(self._trials) < self._max_trials:
            self._rung_of.append(0)
            self._training += 1
            return self._new_trial(self._rungs[0].budget)
        return SearchState.WAIT if self._training else self._train_to_maximum()

    def _train_to_maximum(self) -> Proposal | SearchState:
        """Promotes one trial until it reaches the largest budget."""
        if all(loss == inf for loss, _ in self._rungs[-1].ranking):
            for index in range(len(self._rungs) - 2, -1, -1):
                number = self._rungs[index].find_promotable(self._promotion_limit(len(self._trials)))
                if number is not None:
                    return self._promote(number, index)
        return SearchState.DONE

    def _promote(self, number: int, rung_index: int) -> Proposal:
        self._rungs[rung_index].removed.add(number)
        self._rung_of[number] = rung_index + 1
        self._training += 1
        return self._resume_trial(self._trials[number], self._rungs[rung_index + 1].budget)

    def _on_budget_reached(self, trial: TrackedTrial) -> Verdict:
        assert trial.loss is not None
        index = self._rung_of[trial.number]
        rung, entry = self._rungs[index], (trial.loss, trial.number)
        self._training -= 1
        insort(rung.ranking, entry)
        if index == len(self._rungs) - 1:
            return Verdict.CONTINUE
        if self._max_trials is not None and bisect(rung.ranking, entry) > self._promotion_limit(
            self._max_trials
        ):
            return Verdict.STOP
        return Verdict.PAUSE

    def _promotion_limit(self, trial_limit: int) -> int:
        """Returns how many trials of a rung may be promoted if all trials reach it. The rank of a trial only
        gets worse."""
        return max(1, trial_limit // self._eta)

    def _on_trial_ended(self, trial: TrackedTrial, outcome: TrialOutcome) -> None:
        rung = self._rungs[self._rung_of[trial.number]]
        rung.removed.add(trial.number)
        if not trial.is_paused:
            self._training -= 1
            has_result = outcome is TrialOutcome.COMPLETED and trial.loss is not None
            insort(rung.ranking, (trial.loss if has_result and trial.loss is not None else inf, trial.number))

    def released(self) -> frozenset[TrialId]:
        if self._max_trials is None:
            return frozenset()
        unpromotable = (
            self._trials[number]
            for index, rung in enumerate(self._rungs)
            for _, number in rung.ranking[self._promotion_limit(self._max_trials) :]
            if self._rung_of[number] == index
        )
        return frozenset(trial.id for trial in unpromotable if trial.is_paused)
