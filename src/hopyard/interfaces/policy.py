from __future__ import annotations

from typing import Protocol

from hopyard.domain.cluster import Plan, Snapshot


class SchedulingPolicy(Protocol):
    """Pure: equal snapshots give equal plans, also under shuffled input. No clock, no I/O, no randomness."""

    def __call__(self, snapshot: Snapshot, /) -> Plan: ...
