"""The policy of a simulation, by name."""

from __future__ import annotations

from hopyard.config.suggest import unknown_name_hints
from hopyard.errors import SpecError
from hopyard.interfaces.policy import SchedulingPolicy
from hopyard.scheduler.policies.registry import POLICIES

DEFAULT_POLICY = "hopyard"


def new_policy(name: str) -> SchedulingPolicy:
    """Returns a new policy, because a policy may keep state between cycles. Raises SpecError for an unknown
    name."""
    if name not in POLICIES:
        raise SpecError(
            f"--policy: there is no policy `{name}`",
            hints=unknown_name_hints(name, POLICIES, subject="policies"),
        )
    return POLICIES[name]()
