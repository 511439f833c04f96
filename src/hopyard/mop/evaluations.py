"""States that are to be evaluated: each on every validation partition, by any who hold it, several at once."""

from __future__ import annotations

from dataclasses import dataclass

from hopyard.domain.ids import TrialId


@dataclass(slots=True, eq=False)
class Evaluation:
    """todo: validation partitions (bits) on which nobody evaluates it yet; away: units that somebody does now."""

    trial: TrialId
    epoch: int
    checkpoint: str
    todo: int
    away: int = 0


class Evaluations:
    """In the order in which they were wanted: what was wanted first decides first what becomes of its trial."""

    def __init__(self) -> None:
        self._all: dict[tuple[TrialId, int], Evaluation] = {}
        self.open = 0  # bits of the partitions that some evaluation lacks; it may name too many until somebody looks

    def want(self, evaluation: Evaluation) -> bool:
        """Whether it is new."""
        key = evaluation.trial, evaluation.epoch
        if key in self._all or not evaluation.todo:
            return False
        self._all[key] = evaluation
        self.open |= evaluation.todo
        return True

    def take(self, held: int) -> tuple[Evaluation, int] | None:
        """The first that lacks one of these partitions, and the place of that partition. It is away then."""
        if not held & self.open:
            return None
        still = 0
        for one in self._all.values():
            wanted = one.todo & held
            if wanted:
                bit = wanted & -wanted
                one.todo ^= bit
                one.away |= bit
                return one, bit.bit_length() - 1
            still |= one.todo
        self.open = still
        return None

    def give_back(self, evaluation: Evaluation, at: int) -> None:
        """It was not done: somebody else may."""
        evaluation.away &= ~(1 << at)
        evaluation.todo |= 1 << at
        self.open |= 1 << at

    def done(self, evaluation: Evaluation, at: int) -> bool:
        """Whether that was the last partition."""
        evaluation.away &= ~(1 << at)
        if evaluation.todo or evaluation.away:
            return False
        del self._all[evaluation.trial, evaluation.epoch]
        return True

    def withdraw(self, trial: TrialId) -> None:
        for key in [key for key in self._all if key[0] == trial]:
            del self._all[key]

    def first_for(self, held: int) -> Evaluation | None:
        """What `take` would give, which stays where it is."""
        return next((one for one in self._all.values() if one.todo & held), None) if held & self.open else None
