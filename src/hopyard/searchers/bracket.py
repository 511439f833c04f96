"""One bracket of successive halving: trials are compared at each rung, and the best are promoted.

Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization" (AISTATS
2016), and Li et al., "Hyperband" (JMLR 2018).
"""

from __future__ import annotations

from bisect import bisect
from math import inf

from hopyard.domain.trial import Verdict


def rung_sizes(trials: int, rungs: int, eta: int) -> tuple[int, ...]:
    """Returns the number of trials at each rung: one in eta is promoted, and at least one."""
    return tuple(max(1, trials // eta**rung) for rung in range(rungs))


class Bracket:
    """Trials (by number) that climb the rungs together: when no trial trains at a rung any more, the best are
    promoted to the next.

    A failed trial counts as the worst of its rung, so that no other trial waits for it. Ties end on the
    number.
    """

    def __init__(self, sizes: tuple[int, ...], budgets: tuple[int, ...]) -> None:
        self._sizes, self.budgets = sizes, budgets
        self._rung = 0
        self._new_trials = sizes[0]  # not yet begun
        self._training: set[int] = set()
        self._promotable: list[int] = []  # promoted to `_rung`, best first
        self._ranking: list[tuple[float, int]] = []  # of `_rung`
        self._ended_trials: set[int] = set()  # cannot be promoted, though they have a rank
        self.released: set[int] = set()  # trials that are not promoted

    @property
    def budget(self) -> int:
        return self.budgets[self._rung]

    @property
    def wants_new_trial(self) -> bool:
        return self._new_trials > 0

    @property
    def is_finished(self) -> bool:
        """Returns whether the bracket proposes no further trial."""
        return not self._new_trials and not self._promotable and (not self._training or self._last)

    @property
    def _last(self) -> bool:
        return self._rung == len(self.budgets) - 1

    def start_new(self, number: int) -> None:
        self._new_trials -= 1
        self._training.add(number)

    def promote_next(self) -> int | None:
        """Returns the next promoted trial; None if all trials wait for others."""
        if not self._promotable:
            return None
        number = self._promotable.pop(0)
        self._training.add(number)
        return number

    def record_result(self, number: int, loss: float) -> Verdict:
        """Records the loss of a trial at the budget of its rung."""
        is_promotable = self._rank(number, loss)
        verdict = Verdict.CONTINUE if self._last else Verdict.PAUSE if is_promotable else Verdict.STOP
        self._advance_rung()
        return verdict

    def _rank(self, number: int, loss: float) -> bool:
        """Records the loss, and returns whether the trial can still be promoted. Releases the trial that it
        pushed out of the best."""
        self._training.discard(number)
        entry = loss, number
        rank = bisect(self._ranking, entry)
        self._ranking.insert(rank, entry)
        if self._last:
            return False
        promoted_count = self._sizes[self._rung + 1]
        if rank < promoted_count < len(self._ranking):
            self.released.add(self._ranking[promoted_count][1])
        return rank < promoted_count

    def record_end(self, number: int, loss: float | None) -> None:
        """Records that a trial ended by itself, with this loss or without one, or that a paused trial is
        lost."""
        if number in self._training:
            self._rank(number, inf if loss is None else loss)
        elif number in self._promotable:
            self._promotable.remove(number)
        self._ended_trials.add(number)
        self._advance_rung()

    def _advance_rung(self) -> None:
        """Moves to the next rung once no trial is active at this one."""
        while not (self._new_trials or self._training or self._promotable or self._last):
            promoted = self._ranking[: self._sizes[self._rung + 1]]
            self._promotable = [
                number for loss, number in promoted if loss < inf and number not in self._ended_trials
            ]
            self._ranking = []
            self._rung += 1
