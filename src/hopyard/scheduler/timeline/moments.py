"""Points in the future at which somebody must find what it was promised or has reserved."""

from __future__ import annotations

from dataclasses import dataclass, field

from hopyard.domain.cluster import Promise
from hopyard.domain.gang import Placement
from hopyard.domain.ids import GangId
from hopyard.scheduler.fairness.accounts import Accounts
from hopyard.scheduler.placement.capacity import Capacity

SLACK_S = 0.001  # times that are nearer than this are one: they went through floats


@dataclass(frozen=True, slots=True)
class Stay:
    """Where a promised gang is expected to be, in seconds from now: from `at_s` until `until_s`, and until
    `last_s` where it starts as late as was promised. from_s: not later than `at_s`; who ends until then need
    not care. needed: runs whose end it waits for, the last first. own: it is in what is reserved for it,
    although others were promised that for afterwards."""

    promise: Promise
    placement: Placement
    at_s: float
    until_s: float
    last_s: float
    from_s: float
    needed: tuple[GangId, ...] = ()
    own: bool = False

    def there(self, at_s: float, *, latest: bool = False) -> bool:
        """latest: whether it may be."""
        return self.at_s <= at_s + SLACK_S and at_s < self.gone_s(latest=latest) - SLACK_S

    def gone_s(self, *, latest: bool) -> float:
        return self.last_s if latest else self.until_s


@dataclass(slots=True)
class Moment:
    """Who is expected to be there after `from_s` must fit what is free at `at_s`.

    They differ where what was promised for `from_s` is late: nobody may take what it waits for. capacity:
    what is free then, right on the nodes that anybody was promised or has reserved, before anything is held
    for reservations; None until it is asked for, and so are the accounts. ended: what is taken to have ended
    in it. gang: whose promise it is, None for a reservation. closed: runs were asked to leave for it, so what
    they leave is for nobody else until then, however short.
    """

    from_s: float
    at_s: float
    gang: GangId | None = None
    capacity: Capacity | None = None
    accounts: Accounts | None = None
    ended: set[GangId] = field(default_factory=set)
    closed: bool = False
