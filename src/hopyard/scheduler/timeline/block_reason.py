"""Why a gang cannot start now."""

from __future__ import annotations

from dataclasses import dataclass

from hopyard.domain.cluster import HoldReason
from hopyard.domain.gang import Gang
from hopyard.scheduler.amount_text import LazyMessage, render
from hopyard.scheduler.duration_estimates import DurationEstimate
from hopyard.scheduler.timeline.availability import Availability

MAX_NAMED_BLOCKERS = 3  # of what blocks a gang, so many are named


@dataclass(frozen=True, slots=True, eq=False)
class BlockReason:
    """Why a gang cannot start now: the content of a Hold without the position. Two reasons are equal if their
    texts are equal."""

    reason: HoldReason
    message: LazyMessage
    blocked_by: tuple[str, ...] = ()

    @property
    def detail(self) -> str:
        return render(self.message)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BlockReason):
            return NotImplemented
        return (self.reason, self.blocked_by, self.detail) == (other.reason, other.blocked_by, other.detail)

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
            models = ", ".join(sorted(closed_models))
            return BlockReason(
                HoldReason.QUOTA,
                f"only GPU models at the limit of its queue are free: {models}",
                (f"queue:{gang.queue}",),
            )
        return BlockReason(
            availability.capacity.why_not_reason(gang),
            availability.capacity.copy().why_not_message(gang) if explain else "",
        )
    nodes = {a.node for a in placement.assignments}
    names = sorted(
        {
            booking.reservation.name
            for booking in availability.conflicting_windows(gang, estimate.high_s)
            if nodes & {*booking.reservation.nodes}
        }
    )
    if names:
        return BlockReason(
            HoldReason.RESERVED,
            "the free nodes are reserved, or will be before it could end: "
            f"{', '.join(names[:MAX_NAMED_BLOCKERS])}",
            tuple(f"reservation:{name}" for name in names[:MAX_NAMED_BLOCKERS]),
        )
    ahead = sorted(
        stay.promise.gang for stay in availability.slots.values() if nodes & {*stay.promise.nodes}
    ) or sorted(availability.slots)
    return BlockReason(
        HoldReason.BEHIND,
        "the free nodes are promised to runs that have waited longer, and it could still run when they start",
        tuple(f"run:{gang}" for gang in ahead[:MAX_NAMED_BLOCKERS]),
    )
