"""Detects workers that are much slower than the others: reports each once, and lets the fastest worker open
its partitions too. Kills processes whose unit takes far too long although they send heartbeats."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from hopyard.domain.ids import TrialId, WorkerId
from hopyard.mop.coordinator import MopCoordinator
from hopyard.mop.workers import STRAGGLER_RATIO
from hopyard.mop_runtime.driver.units import DispatchedUnit, OrphanedUnit
from hopyard.mop_runtime.driver.worker_registry import RegisteredWorker, WorkerRegistry
from hopyard.mop_runtime.messages import Shutdown

_MIN_HOPS = 6  # of each worker, before its speed is compared
_LATE_FACTOR = 5.0  # times the expected duration, after which a hop is late
_MIN_LATE_S = 5.0  # and at least this long
_CHECK_INTERVAL_S = 1.0
_STUCK_FACTOR = 20.0  # times the longest hop of the trial so far, after which a unit hangs
_MIN_STUCK_S = 600.0  # and at least this long


def max_unit_s(trial: TrialId, longest_hop_s: Mapping[TrialId, float]) -> float:
    """Returns how long a unit of the trial may take. longest_hop_s: the duration of the longest hop of each
    trial. Without any data there is no limit, because the first hop may have to compile."""
    seconds = longest_hop_s.get(trial) or max(longest_hop_s.values(), default=0.0)
    return max(_STUCK_FACTOR * seconds, _MIN_STUCK_S) if seconds else math.inf


class StragglerDetector:
    """unit_timeout_s: how long a unit may take; 0: derived from earlier units."""

    def __init__(
        self,
        coordinator: MopCoordinator,
        workers: WorkerRegistry,
        record_event: Callable[[WorkerId, str, str], None],
        *,
        unit_timeout_s: float = 0.0,
    ) -> None:
        self._coordinator, self._workers, self._record_event, self._unit_timeout_s = (
            coordinator,
            workers,
            record_event,
            unit_timeout_s,
        )
        self._longest_hop_s: dict[TrialId, float] = {}  # by trial
        self._hop_counts: Counter[WorkerId] = Counter()
        self._reported_pids: dict[WorkerId, int] = {}  # the process that was reported
        self._checked_at = 0.0

    def record_hop(self, workers: Iterable[WorkerId], trial: TrialId, seconds: float) -> None:
        """Records the duration of a hop."""
        self._hop_counts.update(workers)
        self._longest_hop_s[trial] = max(seconds, self._longest_hop_s.get(trial, 0.0))

    def load_history(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Loads the durations of earlier hops."""
        for record in records:
            if record.get("kind") == "hop":
                self.record_hop(
                    (), TrialId(str(record["trial"])), float(record["ended_at"]) - float(record["began_at"])
                )

    def check(self, units: Sequence[DispatchedUnit], orphans: Iterable[OrphanedUnit]) -> None:
        now = time.monotonic()
        if now - self._checked_at < _CHECK_INTERVAL_S:
            return
        self._checked_at = now
        for unit in units:
            self._end_stuck(
                unit,
                unit.trial,
                unit.epoch,
                [member for member in unit.workers if member not in unit.results],
                now,
            )
        for orphan in orphans:
            self._end_stuck(orphan, orphan.in_progress.trial, orphan.in_progress.epoch, orphan.workers, now)
        self._detect_slow(units, now)

    def _end_stuck(
        self,
        unit: DispatchedUnit | OrphanedUnit,
        trial: TrialId,
        epoch: int,
        workers: Iterable[WorkerId],
        now: float,
    ) -> None:
        """Ends the workers of a stuck unit. They count as lost, like any worker whose connection ends, so the
        unit is repeated.

        A disconnected worker gets no message. A worker that continues anyway gets another one after twice the
        time.
        """
        elapsed_s = now - unit.started_at
        if elapsed_s <= max(self._unit_timeout_s or max_unit_s(trial, self._longest_hop_s), 2 * unit.stuck_s):
            return
        for worker_id in workers:
            worker = self._workers.find(worker_id)
            if worker is not None and worker.connection is not None:
                unit.stuck_s = elapsed_s
                detail = f"{elapsed_s:.0f} s on one unit of trial {trial}, in epoch {epoch + 1}"
                self._record_event(worker_id, "frozen", f"{detail}: its process is killed")
                self._workers.send(worker, Shutdown(detail, immediate=True))

    def _detect_slow(self, units: Iterable[DispatchedUnit], now: float) -> None:
        measured = [worker for worker in self._workers if self._hop_counts[worker.id] >= _MIN_HOPS]
        if len(measured) < 2:
            return
        speeds = {worker.id: self._coordinator.speed(worker.id) for worker in measured}
        median_speed = median(speeds.values())
        for worker in measured:
            if speeds[worker.id] * STRAGGLER_RATIO < median_speed:
                self._report_straggler(
                    worker, measured, f"{median_speed / speeds[worker.id]:.1f} times slower than the others"
                )
        for unit in units:
            expected = max(
                (self._coordinator.expected_s(unit.trial, member) for member in unit.workers), default=0.0
            )
            elapsed_s = now - unit.started_at
            if unit.is_training and elapsed_s > max(_MIN_LATE_S, _LATE_FACTOR * expected):
                for member in unit.workers:
                    late_worker = self._workers.find(member)
                    if late_worker is not None:
                        self._report_straggler(
                            late_worker,
                            measured,
                            f"{elapsed_s:.0f} s on a hop that should take {expected:.1f} s",
                        )

    def _report_straggler(
        self, straggler: RegisteredWorker, candidates: Iterable[RegisteredWorker], detail: str
    ) -> None:
        if self._reported_pids.get(straggler.id) == straggler.hello.pid:
            return
        self._reported_pids[straggler.id] = straggler.hello.pid
        self._record_event(straggler.id, "straggler", detail)
        replacements = [
            worker
            for worker in candidates
            if worker is not straggler and worker.id not in self._reported_pids
        ]
        if replacements:
            self._workers.share_partitions(
                straggler,
                max(
                    replacements,
                    key=lambda candidate: (
                        -len(candidate.slots),
                        self._coordinator.speed(candidate.id),
                        candidate.id,
                    ),
                ),
            )
