"""Units that workers were asked for."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from hopyard.domain.ids import PartitionId, TrialId, WorkerId
from hopyard.studies.messages import Doing, Finished, UnitId


@dataclass(slots=True, eq=False)
class Unit:
    """epoch: of the hop; of an evaluation, the epochs that the state has done, less one. begun_at:
    `time.monotonic()`. finished: what the members of a group said so far. frozen_s: how long it had taken
    when its workers were ended for that."""

    number: int
    trial: TrialId
    epoch: int
    partitions: tuple[PartitionId, ...]
    workers: tuple[WorkerId, ...]
    state: str
    training: bool
    begun_at: float
    finished: dict[WorkerId, Finished] = field(default_factory=dict)
    frozen_s: float = 0.0


@dataclass(slots=True, eq=False)
class Orphan:
    """A unit that a driver before this one asked for, and that is still under way.
    begun_at: `time.monotonic()` when that was seen."""

    doing: Doing
    workers: set[WorkerId]
    begun_at: float = field(default_factory=time.monotonic)
    frozen_s: float = 0.0


class Names:
    """Units are named `<start>.<number>`: each start of a driver has its own, so no name is ever used
    again."""

    def __init__(self, start: int) -> None:
        self._prefix = f"{start}."

    def of(self, number: int) -> UnitId:
        return f"{self._prefix}{number}"

    def number(self, unit: UnitId) -> int | None:
        """None where it is another driver's."""
        rest = unit.removeprefix(self._prefix)
        return int(rest) if rest != unit and rest.isdecimal() else None
