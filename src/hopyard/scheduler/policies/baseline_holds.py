"""Holds of the baseline policies, built on first access: simulations plan many thousand times, and most holds
are never read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from hopyard.domain.cluster import Hold, HoldReason
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import GangId
from hopyard.scheduler.amount_text import format_count
from hopyard.scheduler.lazy_holds import LazyHolds
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.policies.incremental_state import (
    GangClassKey,
    TentativePlan,
    class_of,
    submission_order,
)

ReasonAndMessage = tuple[HoldReason, str]


class BaselineHolds(LazyHolds):
    """One hold per pending gang that was not placed, in order; gangs that never fit come last."""

    def __init__(
        self, pending: Sequence[Gang], placed: Iterable[Placement], reasons: BaselineHoldReasons
    ) -> None:
        super().__init__(pending, {placement.gang.id for placement in placed})
        self._reasons = reasons

    def _build_holds(self) -> Iterator[Hold]:
        waiting = [
            (gang, self._reasons.never_fits_reason(gang))
            for gang in self._pending
            if gang.id not in self._placed
        ]
        waiting.sort(key=lambda pair: (pair[1] is not None, submission_order(pair[0])))
        for ahead, (gang, never) in enumerate(waiting):
            reason, detail = (
                (HoldReason.NEVER_FITS, never) if never is not None else self._reasons.reason_of(gang, ahead)
            )
            yield Hold(gang.id, reason, detail, ahead + 1)


class BaselineHoldReasons:
    """As things stood when the plan was made, with `tentative_plan` free.

    never_fits_reason: why a gang never fits, or None. policy_reasons: of those of whom the policy says it
    itself. capacity_at_refusal: who was refused a place, and what was free for it then; with `strict` all
    others wait because of these, and not for a place of their own.
    """

    def __init__(
        self,
        tentative_plan: TentativePlan,
        never_fits_reason: Callable[[Gang], str | None],
        *,
        strict: bool = False,
    ) -> None:
        self.never_fits_reason, self._tentative_plan, self._strict = never_fits_reason, tentative_plan, strict
        self.policy_reasons: dict[GangId, ReasonAndMessage] = {}
        self.capacity_at_refusal: dict[GangId, Capacity] = {}
        self._no_capacity_by_class: dict[tuple[GangClassKey, frozenset[str]], ReasonAndMessage | None] = {}

    def reason_of(self, gang: Gang, ahead: int) -> ReasonAndMessage:
        if gang.id in self.policy_reasons:
            return self.policy_reasons[gang.id]
        if gang.id in self.capacity_at_refusal:
            return self.capacity_at_refusal[gang.id].why_not(gang)
        refused = self._tentative_plan.quota_usage.refusal(gang)
        if refused is not None:
            return refused.reason, refused.detail
        key = class_of(gang), self._tentative_plan.quota_usage.closed_models(gang)
        if key not in self._no_capacity_by_class:
            behind = self._strict or self._tentative_plan.find_placement(gang) is not None
            self._no_capacity_by_class[key] = None if behind else self._tentative_plan.capacity.why_not(gang)
        return self._no_capacity_by_class[key] or (
            HoldReason.BEHIND,
            f"{format_count(ahead, 'run')} ahead of it",
        )
