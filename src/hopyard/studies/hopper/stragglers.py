"""Workers much slower than the others: told of once, and helped by the fastest, which opens their part too."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from statistics import median

from hopyard.domain.ids import WorkerId
from hopyard.mop.coordinator import MopCoordinator
from hopyard.mop.roster import SLOWER
from hopyard.studies.hopper.crew import Crew, Worker
from hopyard.studies.hopper.units import Unit

_HOPS = 6  # of each, before one is judged
_LATE = 5.0  # times as long as expected: what is under way is late
_LATE_S = 5.0  # and at least so long
_EVERY_S = 1.0


class Stragglers:
    def __init__(self, coordinator: MopCoordinator, crew: Crew, note: Callable[[WorkerId, str, str], None]) -> None:
        self._coordinator, self._crew, self._note = coordinator, crew, note
        self._hops: Counter[WorkerId] = Counter()
        self._told: dict[WorkerId, int] = {}  # the process
        self._checked_at = 0.0

    def count(self, workers: Iterable[WorkerId]) -> None:
        self._hops.update(workers)

    def check(self, units: Iterable[Unit]) -> None:
        now = time.monotonic()
        if now - self._checked_at < _EVERY_S:
            return
        self._checked_at = now
        judged = [worker for worker in self._crew if self._hops[worker.id] >= _HOPS]
        if len(judged) < 2:
            return
        speeds = {worker.id: self._coordinator.speed(worker.id) for worker in judged}
        usual = median(speeds.values())
        for worker in judged:
            if speeds[worker.id] * SLOWER < usual:
                self._tell(worker, judged, f"{usual / speeds[worker.id]:.1f} times slower than the others")
        for unit in units:
            expected = max((self._coordinator.expected_s(unit.trial, one) for one in unit.workers), default=0.0)
            late = now - unit.begun_at
            if unit.training and late > max(_LATE_S, _LATE * expected):
                for one in unit.workers:
                    worker_of = self._crew.find(one)
                    if worker_of is not None:
                        self._tell(worker_of, judged, f"{late:.0f} s on a hop that should take {expected:.1f} s")

    def _tell(self, slow: Worker, judged: Iterable[Worker], how: str) -> None:
        if self._told.get(slow.id) == slow.hello.pid:
            return
        self._told[slow.id] = slow.hello.pid
        self._note(slow.id, "straggler", how)
        others = [worker for worker in judged if worker is not slow and worker.id not in self._told]
        if others:
            self._crew.second(slow, max(others, key=lambda one: (-len(one.seats), self._coordinator.speed(one.id), one.id)))
