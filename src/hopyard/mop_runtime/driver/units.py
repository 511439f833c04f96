"""Units that were sent to workers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from hopyard.domain.ids import PartitionId, TrialId, WorkerId
from hopyard.mop_runtime.messages import HopResult, UnitId, UnitInProgress


@dataclass(slots=True, eq=False)
class DispatchedUnit:
    """epoch: of the hop; of an evaluation, the epochs that the state has done, less one. started_at:
    `time.monotonic()`. results: what the members of a group said so far. stuck_s: how long it had taken
    when its workers were ended for that."""

    number: int
    trial: TrialId
    epoch: int
    partitions: tuple[PartitionId, ...]
    workers: tuple[WorkerId, ...]
    state: str
    is_training: bool
    started_at: float
    results: dict[WorkerId, HopResult] = field(default_factory=dict)
    stuck_s: float = 0.0


@dataclass(slots=True, eq=False)
class OrphanedUnit:
    """A unit that a driver before this one asked for, and that is still under way.
    started_at: `time.monotonic()` when that was seen."""

    in_progress: UnitInProgress
    workers: set[WorkerId]
    started_at: float = field(default_factory=time.monotonic)
    stuck_s: float = 0.0


class UnitNames:
    """Units are named `<start>.<number>`: each start of a driver has its own, so no name is ever used
    again."""

    def __init__(self, start: int) -> None:
        self._prefix = f"{start}."

    def name_of(self, number: int) -> UnitId:
        return f"{self._prefix}{number}"

    def parse_number(self, unit: UnitId) -> int | None:
        """None where it is another driver's."""
        rest = unit.removeprefix(self._prefix)
        return int(rest) if rest != unit and rest.isdecimal() else None
