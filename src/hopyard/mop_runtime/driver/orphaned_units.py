"""Units that an earlier driver asked for and that workers still do, or did, when this one began: nothing of
that is repeated."""

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
        """Whether it still has to do with one."""
        return any(worker in orphan.workers for orphan in self._orphans.values())

    def is_training(self, trial: TrialId) -> bool:
        return any(
            orphan.in_progress.trial == trial and orphan.in_progress.is_training
            for orphan in self._orphans.values()
        )

    def partitions_under_evaluation(self, state: str) -> set[PartitionId]:
        """On which partitions this state is being evaluated."""
        doing = [
            orphan.in_progress for orphan in self._orphans.values() if not orphan.in_progress.is_training
        ]
        return {partition for one in doing if one.state == state for partition in one.partitions}

    def is_next_hop(self, index: JournalIndex, finished: HopResult) -> bool:
        """Whether the hop goes on from where its trial is, so that its state is the trial's now."""
        if finished.state in index.states or self._unit_names.parse_number(finished.unit) is not None:
            return False
        begun = index.trial_starts.get(finished.trial)
        if begun is None or index.latest_states.get(finished.trial) != finished.start_from:
            return False
        before = index.states.get(finished.start_from)
        if before is None or before.trial != finished.trial or finished.start_from == begun.state:
            return finished.epoch == (
                before.position.epoch
                if before is not None and before.trial == finished.trial
                else begun.epoch
            )
        return finished.epoch == before.position.epoch and not before.position.visited & set(
            finished.partitions
        )

    def discard_worker(self, unit: UnitId, worker: WorkerId) -> OrphanedUnit | None:
        """It said that it is over."""
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
        """Those that no trial waits for: of trials that are not trained any more, or that go on from another
        state."""
        out = []
        for orphan in self._orphans.values():
            training = trials.get(orphan.in_progress.trial)
            wanted = training is not None and (
                orphan.in_progress.state == training.state
                if orphan.in_progress.is_training
                else orphan.in_progress.state in training.epoch_end_states.values()
            )
            if not wanted:
                out.append(orphan)
        return self._remove(out)

    def _remove(self, orphans: list[OrphanedUnit]) -> list[tuple[WorkerId, UnitId]]:
        out = []
        for orphan in orphans:
            del self._orphans[orphan.in_progress.unit]
            out += [(worker, orphan.in_progress.unit) for worker in sorted(orphan.workers)]
        return out

    def remove_worker(self, worker: WorkerId) -> list[OrphanedUnit]:
        """Those that are lost with this worker."""
        lost = [orphan for orphan in self._orphans.values() if worker in orphan.workers]
        self._remove(lost)
        return lost
