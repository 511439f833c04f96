"""Units that were sent to workers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from hopyard.domain.ids import PartitionId, TrialId, WorkerId
from hopyard.mop_runtime.messages import HopResult, UnitId, UnitInProgress


@dataclass(slots=True, eq=False)
class DispatchedUnit:
    """epoch: of the hop; for an evaluation, the state's completed epochs minus one. is_measurement: computes
    metrics of the whole validation set, from what evaluations gathered. started_at: `time.monotonic()`.
    results: of the members of a group so far. stuck_s: how long it had run when its workers were ended for
    that."""

    number: int
    trial: TrialId
    epoch: int
    partitions: tuple[PartitionId, ...]
    workers: tuple[WorkerId, ...]
    state: str
    is_training: bool
    started_at: float
    is_measurement: bool = False
    results: dict[WorkerId, HopResult] = field(default_factory=dict)
    stuck_s: float = 0.0


@dataclass(slots=True, eq=False)
class OrphanedUnit:
    """A unit of an earlier driver that still runs. started_at: `time.monotonic()` when this driver first saw
    it."""

    in_progress: UnitInProgress
    workers: set[WorkerId]
    started_at: float = field(default_factory=time.monotonic)
    stuck_s: float = 0.0


class UnitNames:
    """Units are named `<start>.<number>`. Each start of a driver has its own prefix, so no name is reused."""

    def __init__(self, start: int) -> None:
        self._prefix = f"{start}."

    def name_of(self, number: int) -> UnitId:
        return f"{self._prefix}{number}"

    def parse_number(self, unit: UnitId) -> int | None:
        """Returns None for the unit of another driver."""
        number_text = unit.removeprefix(self._prefix)
        return int(number_text) if number_text != unit and number_text.isdecimal() else None
