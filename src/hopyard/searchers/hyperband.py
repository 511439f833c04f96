"""Hyperband (Li et al., JMLR 2018, Algorithm 1): successive halving at several compromises between many
trials and long ones."""

from __future__ import annotations

from hopyard.searchers.bracket import Bracket, rung_sizes
from hopyard.searchers.halving import BracketSearcher


class Hyperband(BracketSearcher):
    """Brackets s_max, …, 1, 0: bracket s begins with n = ceil((s_max + 1) eta^s / (s + 1)) trials at
    max_epochs / eta^s epochs.

    trials: the brackets repeat until this number of trials has begun (the last bracket is cut); None: each
    bracket once. A paused trial resumes from its state, so that bracket s costs less than the paper's (s_max
    + 1) max_epochs, where each rung starts from the beginning.
    """

    def _new_bracket(self) -> Bracket | None:
        plan = bracket_sizes(self._budgets, self._eta)
        bracket_count, trial_count = len(self._brackets), len(self._trials)
        if bracket_count >= len(plan) if self._max_trials is None else trial_count >= self._max_trials:
            return None
        trials, budgets = plan[bracket_count % len(plan)]
        if self._max_trials is not None:
            trials = min(trials, self._max_trials - trial_count)
        return Bracket(rung_sizes(trials, len(budgets), self._eta), budgets)


def bracket_sizes(budgets: tuple[int, ...], eta: int) -> list[tuple[int, tuple[int, ...]]]:
    """Returns, for each bracket, the number of trials with which it begins, and its rungs. The bracket with
    the most trials comes first."""
    count = len(budgets)
    return [(-(-count * eta**s // (s + 1)), budgets[count - 1 - s :]) for s in range(count - 1, -1, -1)]
