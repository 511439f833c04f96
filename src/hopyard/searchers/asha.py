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
from hopyard.searchers.tracked import Tracked, TrackingSearcher


@dataclass(slots=True)
class _Rung:
    """Who reached its budget, best first (who failed on the way: last), and who left it: went on, or
    cannot."""

    budget: int
    ranking: list[tuple[float, int]] = field(default_factory=list)
    left: set[int] = field(default_factory=set)

    def promotable(self, among: int) -> int | None:
        """The best of the first `among` that is still there."""
        for loss, number in self.ranking[:among]:
            if loss < inf and number not in self.left:
                return number
        return None


class Asha(TrackingSearcher):
    """Whoever asks gets a trial that is among the best 1/eta of its rung, of the highest rung where there is
    one, else a fresh one.

    trials: how many fresh ones; None: for ever. One that could not be promoted even if all that may still
    come were worse is stopped at once, the others pause. When all was begun and nothing trains, and no trial
    got to the end yet (fewer trials than eta^rungs), the best of the highest rung goes on: the paper's study
    never ends, this one ends with a trained model.
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
        for at in range(len(self._rungs) - 2, -1, -1):
            rung = self._rungs[at]
            number = rung.promotable(len(rung.ranking) // self._eta)
            if number is not None:
                return self._promote(number, at)
        if self._limit is None or len(self._trials) < self._limit:
            self._rung_of.append(0)
            self._training += 1
            return self._fresh(self._rungs[0].budget)
        return SearchState.WAIT if self._training else self._finish()

    def _finish(self) -> Proposal | SearchState:
        """Bring one trial to the end."""
        if all(loss == inf for loss, _ in self._rungs[-1].ranking):
            for at in range(len(self._rungs) - 2, -1, -1):
                number = self._rungs[at].promotable(self._hopeful(len(self._trials)))
                if number is not None:
                    return self._promote(number, at)
        return SearchState.DONE

    def _promote(self, number: int, at: int) -> Proposal:
        self._rungs[at].left.add(number)
        self._rung_of[number] = at + 1
        self._training += 1
        return self._again(self._trials[number], self._rungs[at + 1].budget)

    def _reached(self, trial: Tracked) -> Verdict:
        assert trial.loss is not None
        at = self._rung_of[trial.number]
        rung, entry = self._rungs[at], (trial.loss, trial.number)
        self._training -= 1
        insort(rung.ranking, entry)
        if at == len(self._rungs) - 1:
            return Verdict.CONTINUE
        if self._limit is not None and bisect(rung.ranking, entry) > self._hopeful(self._limit):
            return Verdict.STOP
        return Verdict.PAUSE

    def _hopeful(self, limit: int) -> int:
        """So many of a rung may be promoted if all trials come to it; a rank only gets worse."""
        return max(1, limit // self._eta)

    def _ended(self, trial: Tracked, outcome: TrialOutcome) -> None:
        rung = self._rungs[self._rung_of[trial.number]]
        rung.left.add(trial.number)
        if not trial.paused:
            self._training -= 1
            counts = outcome is TrialOutcome.COMPLETED and trial.loss is not None
            insort(rung.ranking, (trial.loss if counts and trial.loss is not None else inf, trial.number))

    def released(self) -> frozenset[TrialId]:
        if self._limit is None:
            return frozenset()
        beaten = (
            self._trials[number]
            for at, rung in enumerate(self._rungs)
            for _, number in rung.ranking[self._hopeful(self._limit) :]
            if self._rung_of[number] == at
        )
        return frozenset(trial.id for trial in beaten if trial.paused)
