"""Synchronous successive halving: all trials reach a rung before the best are promoted."""

from __future__ import annotations

from abc import abstractmethod

from hopyard.domain.ids import TrialId
from hopyard.domain.rungs import rung_budgets
from hopyard.domain.space import Space
from hopyard.domain.study import Goal
from hopyard.domain.trial import Proposal, SearchState, TrialOutcome, Verdict
from hopyard.searchers.base import TrackedTrial, TrackingSearcher
from hopyard.searchers.bracket import Bracket, rung_sizes


class BracketSearcher(TrackingSearcher):
    """Opens brackets one after the other. While the trials of a bracket wait for each other, the next bracket
    proposes trials, so that workers are idle only when the last bracket waits."""

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
        self._eta, self._budgets = eta, rung_budgets(max_epochs, min_epochs, eta)
        self._brackets: list[Bracket] = []
        self._bracket_of: list[Bracket] = []  # by trial

    @abstractmethod
    def _new_bracket(self) -> Bracket | None:
        """Returns the next bracket; None after the last. Changes nothing."""

    def _next(self) -> Proposal | SearchState:
        for bracket in self._brackets:
            number = bracket.promote_next()
            if number is not None:
                return self._resume_trial(self._trials[number], bracket.budget)
            if bracket.wants_new_trial:
                return self._start_bracket(bracket)
        new_bracket = self._new_bracket()
        if new_bracket is not None:
            self._brackets.append(new_bracket)
            return self._start_bracket(new_bracket)
        return (
            SearchState.DONE if all(bracket.is_finished for bracket in self._brackets) else SearchState.WAIT
        )

    def _start_bracket(self, bracket: Bracket) -> Proposal:
        bracket.start_new(len(self._trials))
        self._bracket_of.append(bracket)
        return self._new_trial(bracket.budget)

    def _on_budget_reached(self, trial: TrackedTrial) -> Verdict:
        assert trial.loss is not None
        return self._bracket_of[trial.number].record_result(trial.number, trial.loss)

    def _on_trial_ended(self, trial: TrackedTrial, outcome: TrialOutcome) -> None:
        loss = trial.loss if outcome is TrialOutcome.COMPLETED else None
        self._bracket_of[trial.number].record_end(trial.number, loss)

    def released(self) -> frozenset[TrialId]:
        numbers = {number for bracket in self._brackets for number in bracket.released}
        return frozenset(self._trials[number].id for number in numbers if self._trials[number].is_paused)


class Halving(BracketSearcher):
    """One bracket. trials: at the lowest rung; None: the number of trials of which one reaches the last
    rung."""

    def _new_bracket(self) -> Bracket | None:
        if self._brackets:
            return None
        rungs = len(self._budgets)
        trials = self._max_trials or self._eta ** (rungs - 1)
        return Bracket(rung_sizes(trials, rungs, self._eta), self._budgets)
