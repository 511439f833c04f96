"""How often the units of a trial were repeated, and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from hopyard.domain.ids import PartitionId

UnitKey = tuple[int, tuple[PartitionId, ...]]  # epoch and partitions


class RetryCause(StrEnum):
    WORKER = "worker"  # its worker was lost
    STATE = "state"  # no worker had its start state
    ERROR = "error"  # the code of the trial has failed


@dataclass(slots=True, eq=False)
class RetryCounts:
    """by_unit: how often each unit was repeated, by cause. errors: how often the trial's code has failed."""

    by_unit: Counter[tuple[RetryCause, UnitKey]] = field(default_factory=Counter)
    errors: int = 0

    def add(self, cause: RetryCause, unit: UnitKey) -> None:
        if cause is RetryCause.ERROR:
            self.errors += 1
        else:
            self.by_unit[cause, unit] += 1
