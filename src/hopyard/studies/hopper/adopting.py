"""Units that an earlier driver asked for and that workers still do, or did, when this one began: nothing of
that is repeated."""

from __future__ import annotations

from collections.abc import Mapping

from hopyard.domain.ids import PartitionId, TrialId, WorkerId
from hopyard.studies.hopper.book import Book
from hopyard.studies.hopper.training import Training
from hopyard.studies.hopper.units import Names, Orphan
from hopyard.studies.messages import Doing, Finished, UnitId


class Adopting:
    def __init__(self, names: Names) -> None:
        self._names = names
        self._orphans: dict[UnitId, Orphan] = {}

    @property
    def units(self) -> set[UnitId]:
        return set(self._orphans)

    @property
    def orphans(self) -> list[Orphan]:
        return list(self._orphans.values())

    def add(self, doing: Doing, worker: WorkerId) -> None:
        self._orphans.setdefault(doing.unit, Orphan(doing, set())).workers.add(worker)

    def find(self, unit: UnitId) -> Orphan | None:
        return self._orphans.get(unit)

    def keeps(self, worker: WorkerId) -> bool:
        """Whether it still has to do with one."""
        return any(worker in orphan.workers for orphan in self._orphans.values())

    def trains(self, trial: TrialId) -> bool:
        return any(orphan.doing.trial == trial and orphan.doing.training for orphan in self._orphans.values())

    def evaluates(self, state: str) -> set[PartitionId]:
        """On which partitions this state is being evaluated."""
        doing = [orphan.doing for orphan in self._orphans.values() if not orphan.doing.training]
        return {partition for one in doing if one.state == state for partition in one.partitions}

    def fits(self, book: Book, said: Finished) -> bool:
        """Whether the hop goes on from where its trial is, so that its state is the trial's now."""
        if said.state in book.made or self._names.number(said.unit) is not None:
            return False
        begun = book.begun.get(said.trial)
        if begun is None or book.heads.get(said.trial) != said.start_from:
            return False
        before = book.made.get(said.start_from)
        if before is None or before.trial != said.trial or said.start_from == begun.state:
            return said.epoch == (
                before.at.epoch if before is not None and before.trial == said.trial else begun.epoch
            )
        return said.epoch == before.at.epoch and not before.at.visited & set(said.partitions)

    def end(self, unit: UnitId, worker: WorkerId) -> Orphan | None:
        """It said that it is over."""
        orphan = self._orphans.get(unit)
        if orphan is None:
            return None
        orphan.workers.discard(worker)
        if not orphan.workers:
            del self._orphans[unit]
        return orphan

    def cancel(self, trial: TrialId) -> list[tuple[WorkerId, UnitId]]:
        return self._drop([orphan for orphan in self._orphans.values() if orphan.doing.trial == trial])

    def unclaimed(self, trials: Mapping[TrialId, Training]) -> list[tuple[WorkerId, UnitId]]:
        """Those that no trial waits for: of trials that are not trained any more, or that go on from another
        state."""
        out = []
        for orphan in self._orphans.values():
            training = trials.get(orphan.doing.trial)
            wanted = training is not None and (
                orphan.doing.state == training.state
                if orphan.doing.training
                else orphan.doing.state in training.ends.values()
            )
            if not wanted:
                out.append(orphan)
        return self._drop(out)

    def _drop(self, orphans: list[Orphan]) -> list[tuple[WorkerId, UnitId]]:
        out = []
        for orphan in orphans:
            del self._orphans[orphan.doing.unit]
            out += [(worker, orphan.doing.unit) for worker in sorted(orphan.workers)]
        return out

    def lose(self, worker: WorkerId) -> list[Orphan]:
        """Those that are lost with this worker."""
        lost = [orphan for orphan in self._orphans.values() if worker in orphan.workers]
        self._drop(lost)
        return lost
