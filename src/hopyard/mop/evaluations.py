"""Pending evaluations: each state is evaluated on every validation partition, by any worker that holds it, in
parallel."""

from __future__ import annotations

from dataclasses import dataclass

from hopyard.domain.ids import TrialId
from hopyard.mop.workers import MopWorker


@dataclass(slots=True, eq=False)
class Evaluation:
    """epoch: that of the last visit before the state. remaining_mask: validation partitions (bits) on which
    the evaluation has not started. assigned_mask: partitions (bits) on which it is active."""

    trial: TrialId
    epoch: int
    checkpoint: str
    remaining_mask: int
    assigned_mask: int = 0

    @property
    def key(self) -> tuple[TrialId, int, str]:
        return self.trial, self.epoch, self.checkpoint


@dataclass(slots=True, eq=False)
class EvaluationUnit:
    """One unit: evaluates the state on one partition on one worker."""

    evaluation: Evaluation
    partition_index: int
    worker: MopWorker


class EvaluationQueue:
    """Ordered by request: the evaluation that was requested first is served first, because it decides about
    its trial."""

    def __init__(self) -> None:
        self._all: dict[tuple[TrialId, int, str], Evaluation] = {}
        self.units: dict[int, EvaluationUnit] = {}  # active units
        # bits of the partitions that some evaluation needs; may hold too many until the next lookup
        self.pending_mask = 0

    def add(self, evaluation: Evaluation) -> None:
        """Adds an evaluation. One that is present is not changed."""
        key = evaluation.key
        if key not in self._all and evaluation.remaining_mask:
            self._all[key] = evaluation
            self.pending_mask |= evaluation.remaining_mask

    def find_first(self, held_mask: int) -> Evaluation | None:
        """Returns the first evaluation that lacks one of these partitions."""
        if not held_mask & self.pending_mask:
            return None
        pending_mask = 0
        for evaluation in self._all.values():
            if evaluation.remaining_mask & held_mask:
                return evaluation
            pending_mask |= evaluation.remaining_mask
        self.pending_mask = pending_mask
        return None

    def start(self, unit: int, worker: MopWorker) -> EvaluationUnit | None:
        """Starts the first evaluation that needs a partition of the worker. Returns None if there is none."""
        first = self.find_first(worker.validation_mask)
        if first is None:
            return None
        candidates = first.remaining_mask & worker.validation_mask
        bit = candidates & -candidates
        first.remaining_mask ^= bit
        first.assigned_mask |= bit
        self.units[unit] = started = EvaluationUnit(first, bit.bit_length() - 1, worker)
        return started

    def finish(self, unit: int) -> EvaluationUnit | None:
        """Returns None if the unit is not active any more."""
        finished = self.units.pop(unit, None)
        if finished is not None:
            finished.evaluation.assigned_mask &= ~(1 << finished.partition_index)
            if not finished.evaluation.remaining_mask and not finished.evaluation.assigned_mask:
                self._all.pop(finished.evaluation.key, None)
        return finished

    def is_done(self, evaluation: Evaluation) -> bool:
        """Returns whether the state was evaluated on all partitions."""
        return not evaluation.remaining_mask and not evaluation.assigned_mask

    def release(self, unit: int) -> EvaluationUnit | None:
        """Releases a unit that was not done, so that another worker can take it. Returns None if the unit is
        not active any more."""
        released = self.units.pop(unit, None)
        if released is not None:
            released.evaluation.assigned_mask &= ~(1 << released.partition_index)
            released.evaluation.remaining_mask |= 1 << released.partition_index
            self.pending_mask |= 1 << released.partition_index
        return released

    def withdraw(self, trial: TrialId) -> dict[int, MopWorker]:
        """Withdraws the evaluation. Returns its active units and their workers."""
        for key in [key for key in self._all if key[0] == trial]:
            del self._all[key]
        workers = {
            unit: active.worker for unit, active in self.units.items() if active.evaluation.trial == trial
        }
        for unit in workers:
            del self.units[unit]
        return workers
