"""Successive halving, synchronous: everybody reaches a rung before the best of it go on."""

from __future__ import annotations

from abc import abstractmethod

from hopyard.domain.ids import TrialId
from hopyard.domain.rungs import rung_budgets
from hopyard.domain.space import Space
from hopyard.domain.study import Goal
from hopyard.domain.trial import Proposal, SearchState, TrialOutcome, Verdict
from hopyard.searchers.rungs import Bracket, rung_sizes
from hopyard.searchers.tracked import Tracked, TrackingSearcher


class BracketSearcher(TrackingSearcher):
    """Opens brackets one after the other. A bracket whose trials all wait for each other leaves room to the
    next one, so that workers are idle only when the last bracket waits."""

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
    def _open(self) -> Bracket | None:
        """The next bracket, None after the last. Changes nothing."""

    def _next(self) -> Proposal | SearchState:
        for bracket in self._brackets:
            number = bracket.begin_ready()
            if number is not None:
                return self._again(self._trials[number], bracket.budget)
            if bracket.wants_fresh:
                return self._begin(bracket)
        opened = self._open()
        if opened is not None:
            self._brackets.append(opened)
            return self._begin(opened)
        return SearchState.DONE if all(bracket.settled for bracket in self._brackets) else SearchState.WAIT

    def _begin(self, bracket: Bracket) -> Proposal:
        bracket.begin_fresh(len(self._trials))
        self._bracket_of.append(bracket)
        return self._fresh(bracket.budget)

    def _reached(self, trial: Tracked) -> Verdict:
        assert trial.loss is not None
        return self._bracket_of[trial.number].reached(trial.number, trial.loss)

    def _ended(self, trial: Tracked, outcome: TrialOutcome) -> None:
        loss = trial.loss if outcome is TrialOutcome.COMPLETED else None
        self._bracket_of[trial.number].ended(trial.number, loss)

    def released(self) -> frozenset[TrialId]:
        numbers = {number for bracket in self._brackets for number in bracket.released}
        return frozenset(self._trials[number].id for number in numbers if self._trials[number].paused)


class Halving(BracketSearcher):
    """One bracket. trials: at the lowest rung; None: so many that one of them reaches the last."""

    def _open(self) -> Bracket | None:
        if self._brackets:
            return None
        rungs = len(self._budgets)
        trials = self._limit or self._eta ** (rungs - 1)
        return Bracket(rung_sizes(trials, rungs, self._eta), self._budgets)
