"""Points in the future at which a promised gang or the owner of a reservation must find its resources."""

from __future__ import annotations

from dataclasses import dataclass, field

from hopyard.domain.cluster import Promise
from hopyard.domain.gang import Placement
from hopyard.domain.ids import GangId
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.quota.quota_usage import QuotaUsage

TIME_TOLERANCE_S = 0.001  # times closer than this are equal: they were computed in floats


@dataclass(frozen=True, slots=True)
class PromisedSlot:
    """Where a promised gang is expected to be, in seconds from now. It is present from `expected_start_s`
    until `expected_end_s`, and until `latest_end_s` if it starts at its promised time. earliest_start_s: not
    later than `expected_start_s`; runs that end by then do not conflict with it. awaited_runs: the runs for
    whose end it waits, the last first. in_own_reservation: it is in capacity that is reserved for it,
    although that is promised to other gangs afterwards."""

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
    """A point in time at which a promise or reservation needs its resources. Runs that are expected to be
    present after `from_s` must fit what is free at `at_s`.

    The two differ if what was promised for `from_s` is late: other gangs may not take the resources that it
    waits for. capacity: what is free at that time, correct on nodes that are promised or reserved, before
    anything is withheld for reservations. capacity and quota_usage are None until they are needed. ended: the
    runs that count as ended in `capacity`. gang: the promised gang, None for a reservation. is_exclusive:
    runs were preempted for it, so no other gang may use that capacity until then, however short it is.
    """

    from_s: float
    at_s: float
    gang: GangId | None = None
    capacity: Capacity | None = None
    quota_usage: QuotaUsage | None = None
    ended: set[GangId] = field(default_factory=set)
    is_exclusive: bool = False
