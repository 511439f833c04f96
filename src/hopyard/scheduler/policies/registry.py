"""Policies by name: the default policy and the baselines."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hopyard.interfaces.policy import SchedulingPolicy
from hopyard.scheduler.policies.capacity_order import CapacityOrder
from hopyard.scheduler.policies.fifo import Fifo
from hopyard.scheduler.policies.greedy_fifo import GreedyFifo
from hopyard.scheduler.policies.least_attained_service import LeastAttained


def _hopyard() -> SchedulingPolicy:
    from hopyard.scheduler.cycle.planner import Planner

    return Planner()


# Each call makes a fresh one, since a policy may keep state between cycles.
POLICIES: Mapping[str, Callable[[], SchedulingPolicy]] = {
    "hopyard": _hopyard,
    "fifo": Fifo,
    "capacity": CapacityOrder,
    "best-fit": lambda: GreedyFifo("best-fit"),
    "las": LeastAttained,
    "fgd": lambda: GreedyFifo("fgd"),
}
