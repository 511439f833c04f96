"""Measures a policy during a simulation."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from hopyard.domain.cluster import Plan, Snapshot
from hopyard.domain.ids import Version
from hopyard.errors import HopyardError
from hopyard.interfaces.policy import SchedulingPolicy

MAX_REPEATED_PLANS = 100  # cycles at one moment that change nothing


class TimedPolicy:
    """A policy whose plans are counted and reported. Its error ends the simulation, where a server would
    retry."""

    def __init__(self, policy: SchedulingPolicy, on_plan: Callable[[Snapshot, Plan], None]) -> None:
        self._policy, self._on_plan = policy, on_plan
        self._fault: Exception | None = None
        self._last_snapshot: tuple[datetime, Version] | None = None
        self._repeated_plans = 0  # cycles in a row with the same snapshot
        self.spent_s, self.cycles = 0.0, 0

    def __call__(self, snapshot: Snapshot) -> Plan:
        snapshot_key = snapshot.now, snapshot.version
        self._repeated_plans = self._repeated_plans + 1 if snapshot_key == self._last_snapshot else 0
        self._last_snapshot = snapshot_key
        started = time.perf_counter()
        try:
            if self._repeated_plans > MAX_REPEATED_PLANS:
                raise HopyardError(
                    "the policy plans what the store refuses, again and again",
                    hints=("it takes runs to fit that do not",),
                )
            plan = self._policy(snapshot)
        except Exception as error:
            self._fault = error
            return Plan(snapshot.version)
        self.spent_s += time.perf_counter() - started
        self.cycles += 1
        self._on_plan(snapshot, plan)
        return plan

    def raise_fault(self) -> None:
        """Raises what the policy raised."""
        if self._fault is not None:
            raise self._fault
