from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

from hopyard.domain.cluster import Plan, Snapshot
from hopyard.domain.ids import GangId


class SchedulingPolicy(Protocol):
    """Pure: equal snapshots give equal plans, also under shuffled input. No clock, no I/O, no randomness."""

    def __call__(self, snapshot: Snapshot, /) -> Plan: ...


class StartForecast(Protocol):
    """Returns the probable starts of gangs that a plan holds, as far as they are known. plan: of this
    snapshot. May take seconds."""

    def __call__(self, snapshot: Snapshot, plan: Plan, /) -> Mapping[GangId, datetime]: ...
