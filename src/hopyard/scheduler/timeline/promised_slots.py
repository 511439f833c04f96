"""Points in the future at which a promised gang or the owner of a reservation must find its resources."""

from __future__ import annotations

from dataclasses import dataclass, field

from hopyard.domain.cluster import Promise
from hopyard.domain.gang import Placement
from hopyard.domain.ids import GangId
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.quota.quota_usage import QuotaUsage

TIME_TOLERANCE_S = 0.001  # times that are nearer than this are one: they went through floats


@dataclass(frozen=True, slots=True)
class PromisedSlot:
    """Where a promised gang is expected to be, in seconds from now: from `expected_start_s` until
    `expected_end_s`, and until `latest_end_s` where it starts as late as was promised. earliest_start_s: not
    later than `expected_start_s`; who ends until then need not care. awaited_runs: runs whose end it waits
    for, the last first. in_own_reservation: it is in what is reserved for it, although others were promised
    that for afterwards."""

    promise: Promise
    placement: Placement
    expected_start_s: float
    expected_end_s: float
    latest_end_s: float
    earliest_start_s: float
    awaited_runs: tuple[GangId, ...] = ()
    in_own_reservation: bool = False

    def is_present(self, at_s: float, *, pessimistic: bool = False) -> bool:
        """pessimistic: returns whether the gang may be present."""
        return (
            self.expected_start_s <= at_s + TIME_TOLERANCE_S
            and at_s < self.end_s(pessimistic=pessimistic) - TIME_TOLERANCE_S
        )

    def end_s(self, *, pessimistic: bool) -> float:
        return self.latest_end_s if pessimistic else self.expected_end_s


@dataclass(slots=True)
class TimelinePoint:
    """Who is expected to be there after `from_s` must fit what is free at `at_s`.

    They differ where what was promised for `from_s` is late: nobody may take what it waits for. capacity:
    what is free then, right on the nodes that anybody was promised or has reserved, before anything is held
    for reservations; None until it is asked for, and so are the accounts. ended: what is taken to have ended
    in it. gang: whose promise it is, None for a reservation. is_exclusive: runs were asked to leave for it,
    so what they leave is for nobody else until then, however short.
    """

    from_s: float
    at_s: float
    gang: GangId | None = None
    capacity: Capacity | None = None
    quota_usage: QuotaUsage | None = None
    ended: set[GangId] = field(default_factory=set)
    is_exclusive: bool = False
