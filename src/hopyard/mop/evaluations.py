"""States that are to be evaluated: each on every validation partition, by any who hold it, several at
once."""

from __future__ import annotations

from dataclasses import dataclass

from hopyard.domain.ids import TrialId
from hopyard.mop.roster import Worker


@dataclass(slots=True, eq=False)
class Evaluation:
    """todo: validation partitions (bits) on which nobody evaluates it yet; away: those on which somebody does
    now."""

    trial: TrialId
    epoch: int
    checkpoint: str
    todo: int
    away: int = 0


@dataclass(slots=True, eq=False)
class Evaluating:
    """One unit: the state on the partition of this place, by this worker."""

    of: Evaluation
    at: int
    worker: Worker


class Evaluations:
    """In the order in which they were wanted: what was wanted first decides first what becomes of its
    trial."""

    def __init__(self) -> None:
        self._all: dict[tuple[TrialId, int], Evaluation] = {}
        self.units: dict[int, Evaluating] = {}  # under way
        # bits of the partitions that some evaluation lacks; it may name too many until somebody looks
        self.open = 0

    def want(self, evaluation: Evaluation) -> None:
        """One that is there already is left as it is."""
        key = evaluation.trial, evaluation.epoch
        if key not in self._all and evaluation.todo:
            self._all[key] = evaluation
            self.open |= evaluation.todo

    def first_for(self, held: int) -> Evaluation | None:
        """The first that lacks one of these partitions."""
        if not held & self.open:
            return None
        still = 0
        for one in self._all.values():
            if one.todo & held:
                return one
            still |= one.todo
        self.open = still
        return None

    def begin(self, unit: int, worker: Worker) -> Evaluating | None:
        """The first for what the worker holds is under way now."""
        first = self.first_for(worker.validation)
        if first is None:
            return None
        wanted = first.todo & worker.validation
        bit = wanted & -wanted
        first.todo ^= bit
        first.away |= bit
        self.units[unit] = begun = Evaluating(first, bit.bit_length() - 1, worker)
        return begun

    def finish(self, unit: int) -> Evaluating | None:
        """None where it is not under way any more."""
        one = self.units.pop(unit, None)
        if one is not None:
            one.of.away &= ~(1 << one.at)
            if not one.of.todo and not one.of.away:
                self._all.pop((one.of.trial, one.of.epoch), None)
        return one

    def is_done(self, evaluation: Evaluation) -> bool:
        """Whether it was evaluated on all partitions."""
        return not evaluation.todo and not evaluation.away

    def give_back(self, unit: int) -> Evaluating | None:
        """It was not done: somebody else may. None where it is not under way any more."""
        one = self.units.pop(unit, None)
        if one is not None:
            one.of.away &= ~(1 << one.at)
            one.of.todo |= 1 << one.at
            self.open |= 1 << one.at
        return one

    def withdraw(self, trial: TrialId) -> dict[int, Worker]:
        """None of it is wanted any more. Returns the units that were under way, and who did them."""
        for key in [key for key in self._all if key[0] == trial]:
            del self._all[key]
        gone = {unit: one.worker for unit, one in self.units.items() if one.of.trial == trial}
        for unit in gone:
            del self.units[unit]
        return gone
