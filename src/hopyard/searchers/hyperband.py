"""Hyperband (Li et al., JMLR 2018, Algorithm 1): successive halving at several compromises between many
trials and long ones."""

from __future__ import annotations

from hopyard.searchers.bracket import Bracket, rung_sizes
from hopyard.searchers.halving import BracketSearcher


class Hyperband(BracketSearcher):
    """Brackets s_max, …, 1, 0: bracket s begins with n = ceil((s_max + 1) eta^s / (s + 1)) trials at
    max_epochs / eta^s epochs.

    trials: brackets in turn, again and again, until so many trials were begun (the last one is cut); None:
    each bracket once. A paused trial goes on from its state, so that bracket s costs less than the paper's
    (s_max + 1) max_epochs, where each rung begins anew.
    """

    def _new_bracket(self) -> Bracket | None:
        plan = bracket_sizes(self._budgets, self._eta)
        turn, begun = len(self._brackets), len(self._trials)
        if turn >= len(plan) if self._max_trials is None else begun >= self._max_trials:
            return None
        trials, budgets = plan[turn % len(plan)]
        if self._max_trials is not None:
            trials = min(trials, self._max_trials - begun)
        return Bracket(rung_sizes(trials, len(budgets), self._eta), budgets)


def bracket_sizes(budgets: tuple[int, ...], eta: int) -> list[tuple[int, tuple[int, ...]]]:
    """For each bracket, the one with most trials first: how many trials it begins with, and its rungs."""
    count = len(budgets)
    return [(-(-count * eta**s // (s + 1)), budgets[count - 1 - s :]) for s in range(count - 1, -1, -1)]
