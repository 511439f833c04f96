"""Holds of the baseline policies, built on first access: simulations plan many thousand times, and most holds
are never read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from hopyard.domain.cluster import Hold
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.hold_causes import HoldCause, QueueBacklog
from hopyard.domain.ids import GangId
from hopyard.domain.placement_causes import NeverFitsCause, NoCapacityCause
from hopyard.scheduler.lazy_holds import LazyHolds
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.policies.incremental_state import (
    GangClassKey,
    TentativePlan,
    class_of,
    submission_order,
)


class BaselineHolds(LazyHolds):
    """One hold per pending gang that was not placed, in order; gangs that never fit come last."""

    def __init__(
        self, pending: Sequence[Gang], placed: Iterable[Placement], causes: BaselineHoldCauses
    ) -> None:
        super().__init__(pending, {placement.gang.id for placement in placed})
        self._causes = causes

    def _build_holds(self) -> Iterator[Hold]:
        pending = [
            (gang, self._causes.never_fits_cause(gang))
            for gang in self._pending
            if gang.id not in self._placed
        ]
        pending.sort(key=lambda pair: (pair[1] is not None, submission_order(pair[0])))
        for ahead, (gang, never_fits_cause) in enumerate(pending):
            yield Hold(gang.id, never_fits_cause or self._causes.cause_of(gang, ahead), ahead + 1)


class BaselineHoldCauses:
    """The causes as of the end of the cycle, with the free resources of `tentative_plan`.

    never_fits_cause: returns why a gang never fits, or None. policy_causes: causes that the policy sets
    itself. capacity_at_refusal: for each gang that was refused a place, the capacity at that time. With
    `strict` all other gangs wait for these gangs, not for capacity.
    """

    def __init__(
        self,
        tentative_plan: TentativePlan,
        never_fits_cause: Callable[[Gang], NeverFitsCause | None],
        *,
        strict: bool = False,
    ) -> None:
        self.never_fits_cause, self._tentative_plan, self._strict = never_fits_cause, tentative_plan, strict
        self.policy_causes: dict[GangId, HoldCause] = {}
        self.capacity_at_refusal: dict[GangId, Capacity] = {}
        self._no_capacity_by_class: dict[tuple[GangClassKey, frozenset[str]], NoCapacityCause | None] = {}

    def cause_of(self, gang: Gang, ahead: int) -> HoldCause:
        """Returns why a gang waits that fits the cluster. ahead: the number of gangs ahead of it."""
        if gang.id in self.policy_causes:
            return self.policy_causes[gang.id]
        if gang.id in self.capacity_at_refusal:
            return self.capacity_at_refusal[gang.id].why_not(gang)
        refusal = self._tentative_plan.quota_usage.refusal(gang)
        if refusal is not None:
            return refusal.cause
        key = class_of(gang), self._tentative_plan.quota_usage.closed_models(gang)
        if key not in self._no_capacity_by_class:
            is_behind = self._strict or self._tentative_plan.find_placement(gang) is not None
            self._no_capacity_by_class[key] = (
                None if is_behind else self._tentative_plan.capacity.why_not(gang)
            )
        return self._no_capacity_by_class[key] or QueueBacklog(ahead)
