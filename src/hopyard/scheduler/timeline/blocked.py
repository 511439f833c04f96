"""Why a gang may not start now."""

from __future__ import annotations

from dataclasses import dataclass

from hopyard.domain.cluster import HoldReason
from hopyard.domain.gang import Gang
from hopyard.scheduler.predict import Expected
from hopyard.scheduler.reasons import Sentence, read
from hopyard.scheduler.timeline.outlook import Outlook

NAMED = 3  # of what blocks a gang, so many are named


@dataclass(frozen=True, slots=True, eq=False)
class Blocked:
    """Why a gang does not start now: as a Hold says it, without a position.
    Equal where they read the same."""

    reason: HoldReason
    sentence: Sentence
    blocked_by: tuple[str, ...] = ()

    @property
    def detail(self) -> str:
        return read(self.sentence)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Blocked):
            return NotImplemented
        return (self.reason, self.blocked_by, self.detail) == (other.reason, other.blocked_by, other.detail)

    __hash__ = None  # type: ignore[assignment]


def blocked(
    outlook: Outlook, gang: Gang, expected: Expected, closed: frozenset[str], *, explain: bool
) -> Blocked:
    """Of a gang that its queue does not refuse, and that found no place.
    closed: models that it may not use now."""
    placement = outlook.capacity.place(gang, closed_models=closed)
    if placement is None:
        if closed and outlook.capacity.place(gang) is not None:
            models = ", ".join(sorted(closed))
            return Blocked(
                HoldReason.QUOTA,
                f"what is free are GPUs of which its queue may use no more: {models}",
                (f"queue:{gang.queue}",),
            )
        return Blocked(
            outlook.capacity.reason(gang), outlook.capacity.copy().sentence(gang) if explain else ""
        )
    nodes = {a.node for a in placement.assignments}
    names = sorted(
        {
            booking.reservation.name
            for booking in outlook.in_way(gang, expected.high_s)
            if nodes & {*booking.reservation.nodes}
        }
    )
    if names:
        return Blocked(
            HoldReason.RESERVED,
            f"what is free is reserved, or will be before it could end: {', '.join(names[:NAMED])}",
            tuple(f"reservation:{name}" for name in names[:NAMED]),
        )
    ahead = sorted(
        stay.promise.gang for stay in outlook.stays.values() if nodes & {*stay.promise.nodes}
    ) or sorted(outlook.stays)
    return Blocked(
        HoldReason.BEHIND,
        "what is free now is promised to runs that wait longer, and it could still be there when they start",
        tuple(f"run:{gang}" for gang in ahead[:NAMED]),
    )
