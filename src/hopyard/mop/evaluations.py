"""Pending evaluations: each state is evaluated on every validation partition, by any worker that holds it, in
parallel."""

from __future__ import annotations

from dataclasses import dataclass

from hopyard.domain.ids import TrialId
from hopyard.mop.workers import MopWorker


@dataclass(slots=True, eq=False)
class Evaluation:
    """remaining_mask: validation partitions (bits) on which nobody evaluates it yet; assigned_count: those on
    which somebody does now."""

    trial: TrialId
    epoch: int
    checkpoint: str
    remaining_mask: int
    assigned_count: int = 0


@dataclass(slots=True, eq=False)
class EvaluationUnit:
    """One unit: evaluates the state on one partition on one worker."""

    evaluation: Evaluation
    partition_index: int
    worker: MopWorker


class EvaluationQueue:
    """Ordered by request: the oldest request decides first about its trial."""

    def __init__(self) -> None:
        self._all: dict[tuple[TrialId, int], Evaluation] = {}
        self.units: dict[int, EvaluationUnit] = {}  # under way
        # bits of the partitions that some evaluation lacks; may hold too many until the next lookup
        self.pending_mask = 0

    def add(self, evaluation: Evaluation) -> None:
        """One that is there already is left as it is."""
        key = evaluation.trial, evaluation.epoch
        if key not in self._all and evaluation.remaining_mask:
            self._all[key] = evaluation
            self.pending_mask |= evaluation.remaining_mask

    def find_first(self, held_mask: int) -> Evaluation | None:
        """Returns the first evaluation that lacks one of these partitions."""
        if not held_mask & self.pending_mask:
            return None
        still = 0
        for one in self._all.values():
            if one.remaining_mask & held_mask:
                return one
            still |= one.remaining_mask
        self.pending_mask = still
        return None

    def start(self, unit: int, worker: MopWorker) -> EvaluationUnit | None:
        """The first for what the worker holds is under way now."""
        first = self.find_first(worker.validation_mask)
        if first is None:
            return None
        wanted = first.remaining_mask & worker.validation_mask
        bit = wanted & -wanted
        first.remaining_mask ^= bit
        first.assigned_count |= bit
        self.units[unit] = begun = EvaluationUnit(first, bit.bit_length() - 1, worker)
        return begun

    def finish(self, unit: int) -> EvaluationUnit | None:
        """Returns None if the unit is not active any more."""
        one = self.units.pop(unit, None)
        if one is not None:
            one.evaluation.assigned_count &= ~(1 << one.partition_index)
            if not one.evaluation.remaining_mask and not one.evaluation.assigned_count:
                self._all.pop((one.evaluation.trial, one.evaluation.epoch), None)
        return one

    def is_done(self, evaluation: Evaluation) -> bool:
        """Returns whether the state was evaluated on all partitions."""
        return not evaluation.remaining_mask and not evaluation.assigned_count

    def release(self, unit: int) -> EvaluationUnit | None:
        """It was not done: somebody else may. None where it is not under way any more."""
        one = self.units.pop(unit, None)
        if one is not None:
            one.evaluation.assigned_count &= ~(1 << one.partition_index)
            one.evaluation.remaining_mask |= 1 << one.partition_index
            self.pending_mask |= 1 << one.partition_index
        return one

    def withdraw(self, trial: TrialId) -> dict[int, MopWorker]:
        """Withdraws the evaluation. Returns its active units and their workers."""
        for key in [key for key in self._all if key[0] == trial]:
            del self._all[key]
        gone = {unit: one.worker for unit, one in self.units.items() if one.evaluation.trial == trial}
        for unit in gone:
            del self.units[unit]
        return gone
