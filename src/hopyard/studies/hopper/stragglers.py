"""Workers much slower than the others: told of once, and helped by the fastest, which opens their part too.
Units that take far too long, though their workers beat: what does them is ended."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from hopyard.domain.ids import TrialId, WorkerId
from hopyard.mop.coordinator import MopCoordinator
from hopyard.mop.roster import SLOWER
from hopyard.studies.hopper.crew import Crew, Worker
from hopyard.studies.hopper.units import Orphan, Unit
from hopyard.studies.messages import End

_HOPS = 6  # of each, before one is judged
_LATE = 5.0  # times as long as expected: what is under way is late
_LATE_S = 5.0  # and at least so long
_EVERY_S = 1.0
_FROZEN = 20.0  # times as long as the longest hop of the trial so far: it hangs
_FROZEN_S = 600.0  # and at least so long


def allowed_s(trial: TrialId, longest: Mapping[TrialId, float]) -> float:
    """How long a unit of the trial may take. longest: what the longest hop of each trial took.
    Where nothing is known, for ever: the first may have to compile."""
    seconds = longest.get(trial) or max(longest.values(), default=0.0)
    return max(_FROZEN * seconds, _FROZEN_S) if seconds else math.inf


class Stragglers:
    """unit_timeout_s: how long a unit may take, 0: told from those before it."""

    def __init__(
        self,
        coordinator: MopCoordinator,
        crew: Crew,
        note: Callable[[WorkerId, str, str], None],
        *,
        unit_timeout_s: float = 0.0,
    ) -> None:
        self._coordinator, self._crew, self._note, self._unit_timeout_s = (
            coordinator,
            crew,
            note,
            unit_timeout_s,
        )
        self._longest: dict[TrialId, float] = {}  # hop of each trial, in seconds
        self._hops: Counter[WorkerId] = Counter()
        self._told: dict[WorkerId, int] = {}  # the process
        self._checked_at = 0.0

    def count(self, workers: Iterable[WorkerId], trial: TrialId, seconds: float) -> None:
        """They did a hop."""
        self._hops.update(workers)
        self._longest[trial] = max(seconds, self._longest.get(trial, 0.0))

    def learn_from(self, records: Iterable[Mapping[str, Any]]) -> None:
        """How long hops took before."""
        for record in records:
            if record.get("kind") == "hop":
                self.count(
                    (), TrialId(str(record["trial"])), float(record["ended_at"]) - float(record["began_at"])
                )

    def check(self, units: Sequence[Unit], orphans: Iterable[Orphan]) -> None:
        now = time.monotonic()
        if now - self._checked_at < _EVERY_S:
            return
        self._checked_at = now
        for unit in units:
            self._end_frozen(
                unit, unit.trial, unit.epoch, [one for one in unit.workers if one not in unit.finished], now
            )
        for orphan in orphans:
            self._end_frozen(orphan, orphan.doing.trial, orphan.doing.epoch, orphan.workers, now)
        self._help(units, now)

    def _end_frozen(
        self, unit: Unit | Orphan, trial: TrialId, epoch: int, workers: Iterable[WorkerId], now: float
    ) -> None:
        """What is ended is lost, as any worker is whose connection ends: so its unit is repeated.
        Who is away is not told, and who goes on all the same is told again once it took twice as long."""
        late = now - unit.begun_at
        if late <= max(self._unit_timeout_s or allowed_s(trial, self._longest), 2 * unit.frozen_s):
            return
        for one in workers:
            worker = self._crew.find(one)
            if worker is not None and worker.connection is not None:
                unit.frozen_s = late
                why = f"{late:.0f} s on one unit of trial {trial}, in epoch {epoch + 1}"
                self._note(one, "frozen", f"{why}: its process is ended")
                self._crew.send(worker, End(why, now=True))

    def _help(self, units: Iterable[Unit], now: float) -> None:
        judged = [worker for worker in self._crew if self._hops[worker.id] >= _HOPS]
        if len(judged) < 2:
            return
        speeds = {worker.id: self._coordinator.speed(worker.id) for worker in judged}
        usual = median(speeds.values())
        for worker in judged:
            if speeds[worker.id] * SLOWER < usual:
                self._tell(worker, judged, f"{usual / speeds[worker.id]:.1f} times slower than the others")
        for unit in units:
            expected = max(
                (self._coordinator.expected_s(unit.trial, one) for one in unit.workers), default=0.0
            )
            late = now - unit.begun_at
            if unit.training and late > max(_LATE_S, _LATE * expected):
                for one in unit.workers:
                    worker_of = self._crew.find(one)
                    if worker_of is not None:
                        self._tell(
                            worker_of, judged, f"{late:.0f} s on a hop that should take {expected:.1f} s"
                        )

    def _tell(self, slow: Worker, judged: Iterable[Worker], how: str) -> None:
        if self._told.get(slow.id) == slow.hello.pid:
            return
        self._told[slow.id] = slow.hello.pid
        self._note(slow.id, "straggler", how)
        others = [worker for worker in judged if worker is not slow and worker.id not in self._told]
        if others:
            self._crew.second(
                slow, max(others, key=lambda one: (-len(one.seats), self._coordinator.speed(one.id), one.id))
            )
