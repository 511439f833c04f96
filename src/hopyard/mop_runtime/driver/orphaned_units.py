"""Units of an earlier driver that workers still run, or have finished, when this driver starts. They are not
repeated."""

from __future__ import annotations

from collections.abc import Mapping

from hopyard.domain.ids import PartitionId, TrialId, WorkerId
from hopyard.mop_runtime.driver.active_trial import ActiveTrial
from hopyard.mop_runtime.driver.journal_index import JournalIndex
from hopyard.mop_runtime.driver.units import OrphanedUnit, UnitNames
from hopyard.mop_runtime.messages import HopResult, UnitId, UnitInProgress


class OrphanedUnits:
    def __init__(self, unit_names: UnitNames) -> None:
        self._unit_names = unit_names
        self._orphans: dict[UnitId, OrphanedUnit] = {}

    @property
    def unit_ids(self) -> set[UnitId]:
        return set(self._orphans)

    @property
    def orphans(self) -> list[OrphanedUnit]:
        return list(self._orphans.values())

    def add(self, in_progress: UnitInProgress, worker: WorkerId) -> None:
        self._orphans.setdefault(in_progress.unit, OrphanedUnit(in_progress, set())).workers.add(worker)

    def find(self, unit: UnitId) -> OrphanedUnit | None:
        return self._orphans.get(unit)

    def has_worker(self, worker: WorkerId) -> bool:
        """Returns whether the worker still runs one."""
        return any(worker in orphan.workers for orphan in self._orphans.values())

    def is_training(self, trial: TrialId) -> bool:
        return any(
            orphan.in_progress.trial == trial and orphan.in_progress.is_training
            for orphan in self._orphans.values()
        )

    def partitions_under_evaluation(self, state: str) -> set[PartitionId]:
        """Returns the partitions on which this state is being evaluated."""
        evaluations = [
            orphan.in_progress for orphan in self._orphans.values() if not orphan.in_progress.is_training
        ]
        return {
            partition
            for evaluation in evaluations
            if evaluation.state == state
            for partition in evaluation.partitions
        }

    def is_next_hop(self, index: JournalIndex, result: HopResult) -> bool:
        """Returns whether the hop continues from its trial's current state, so that its state becomes the
        trial's."""
        if result.state in index.states or self._unit_names.parse_number(result.unit) is not None:
            return False
        trial_start = index.trial_starts.get(result.trial)
        if trial_start is None or index.latest_states.get(result.trial) != result.start_from:
            return False
        start_record = index.states.get(result.start_from)
        is_own = start_record is not None and start_record.trial == result.trial
        position = start_record.position if start_record is not None and is_own else trial_start.position
        return result.epoch == position.epoch and not position.visited & set(result.partitions)

    def discard_worker(self, unit: UnitId, worker: WorkerId) -> OrphanedUnit | None:
        """Records that the worker has ended this unit."""
        orphan = self._orphans.get(unit)
        if orphan is None:
            return None
        orphan.workers.discard(worker)
        if not orphan.workers:
            del self._orphans[unit]
        return orphan

    def remove_trial(self, trial: TrialId) -> list[tuple[WorkerId, UnitId]]:
        return self._remove(
            [orphan for orphan in self._orphans.values() if orphan.in_progress.trial == trial]
        )

    def remove_unclaimed(self, trials: Mapping[TrialId, ActiveTrial]) -> list[tuple[WorkerId, UnitId]]:
        """Removes units that no trial needs: of trials that are not trained any more, or that continue from
        another state."""
        unclaimed = []
        for orphan in self._orphans.values():
            training = trials.get(orphan.in_progress.trial)
            is_claimed = training is not None and (
                orphan.in_progress.state == training.state
                if orphan.in_progress.is_training
                else orphan.in_progress.state in training.report_states.values()
            )
            if not is_claimed:
                unclaimed.append(orphan)
        return self._remove(unclaimed)

    def _remove(self, orphans: list[OrphanedUnit]) -> list[tuple[WorkerId, UnitId]]:
        removed = []
        for orphan in orphans:
            del self._orphans[orphan.in_progress.unit]
            removed += [(worker, orphan.in_progress.unit) for worker in sorted(orphan.workers)]
        return removed

    def remove_worker(self, worker: WorkerId) -> list[OrphanedUnit]:
        """Removes and returns the units that are lost with this worker."""
        lost_units = [orphan for orphan in self._orphans.values() if worker in orphan.workers]
        self._remove(lost_units)
        return lost_units
