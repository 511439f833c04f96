"""Why a gang does not fit: sentences for people, with the numbers."""

from __future__ import annotations

from hopyard.domain.cluster import HoldReason
from hopyard.domain.gang import Gang
from hopyard.scheduler.placement.free import Free


def why_not(free: Free, gang: Gang) -> tuple[HoldReason, str]:
    if not free.ground.open.any():
        return HoldReason.NO_NODES, "no node is ready"
    return HoldReason.NO_CAPACITY, "not enough is free"


def too_large(gang: Gang, whole: Free) -> str:
    return "larger than the cluster"
