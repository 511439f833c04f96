"""The policies that a simulation can play, by name."""

from __future__ import annotations

from collections.abc import Callable

from hopyard.config.suggest import hints_for
from hopyard.errors import SpecError
from hopyard.interfaces.policy import SchedulingPolicy
from hopyard.scheduler.fifo import priority_fifo

# Each call makes a fresh one, since a policy may remember between turns.
POLICIES: dict[str, Callable[[], SchedulingPolicy]] = {"fifo": lambda: priority_fifo}
DEFAULT = "fifo"


def new_policy(name: str) -> SchedulingPolicy:
    """Raises SpecError for a name that there is not."""
    if name not in POLICIES:
        raise SpecError(f"--policy: there is no policy `{name}`", hints=hints_for(name, POLICIES, what="policies"))
    return POLICIES[name]()
