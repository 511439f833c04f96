"""Why a gang cannot start now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hopyard.domain.gang import Gang
from hopyard.domain.hold_causes import GpuModelsClosed, HoldCause, NodesPromised, NodesReserved
from hopyard.domain.hold_reason import HoldReason
from hopyard.scheduler.duration_estimates import DurationEstimate
from hopyard.scheduler.timeline.availability import Availability

MAX_NAMED_BLOCKERS = 3  # number of blockers that are named


@dataclass(frozen=True, slots=True, eq=False)
class BlockReason:
    """Why a gang cannot start now: the content of a Hold without the position. Two reasons are equal if their
    causes are equal.

    lazy_cause: an expensive cause is computed when it is read; None if equivalent gangs share one.
    """

    reason: HoldReason
    lazy_cause: HoldCause | Callable[[], HoldCause] | None
    blocked_by: tuple[str, ...] = ()

    @classmethod
    def of(cls, cause: HoldCause, blocked_by: tuple[str, ...] = ()) -> BlockReason:
        return cls(cause.reason, cause, blocked_by)

    @property
    def cause(self) -> HoldCause | None:
        return self.lazy_cause() if callable(self.lazy_cause) else self.lazy_cause

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlockReason):
            return NotImplemented
        return (self.reason, self.blocked_by, self.cause) == (other.reason, other.blocked_by, other.cause)

    __hash__ = None  # type: ignore[assignment]


def explain_block(
    availability: Availability,
    gang: Gang,
    estimate: DurationEstimate,
    closed_models: frozenset[str],
    *,
    explain: bool,
) -> BlockReason:
    """Explains why a gang within its quota found no place. closed_models: GPU models that it may not use
    now."""
    placement = availability.capacity.place(gang, closed_models=closed_models)
    if placement is None:
        if closed_models and availability.capacity.place(gang) is not None:
            return BlockReason.of(GpuModelsClosed(tuple(sorted(closed_models))), (f"queue:{gang.queue}",))
        reason = availability.capacity.why_not_reason(gang)
        if not explain:
            return BlockReason(reason, None)
        capacity = availability.capacity.copy()
        return BlockReason(reason, lambda: capacity.why_not(gang))
    nodes = {assignment.node for assignment in placement.assignments}
    reserved = sorted(
        {
            window.reservation.name
            for window in availability.conflicting_windows(gang, estimate.high_s)
            if nodes & {*window.reservation.nodes}
        }
    )
    if reserved:
        names = tuple(reserved[:MAX_NAMED_BLOCKERS])
        return BlockReason.of(NodesReserved(names), tuple(f"reservation:{name}" for name in names))
    ahead = sorted(
        slot.promise.gang for slot in availability.slots.values() if nodes & {*slot.promise.nodes}
    ) or sorted(availability.slots)
    return BlockReason.of(NodesPromised(), tuple(f"run:{gang}" for gang in ahead[:MAX_NAMED_BLOCKERS]))
