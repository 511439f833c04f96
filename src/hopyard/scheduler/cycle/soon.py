"""What there will be room for, and who may use it, once what ends soon anyway has ended."""

from __future__ import annotations

from datetime import timedelta

from hopyard.domain.gang import Gang, Placement, Role, Topology
from hopyard.scheduler.fairness.accounts import Accounts
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.ground import Ints
from hopyard.scheduler.placement.hope import Hope
from hopyard.scheduler.timeline.future import Future

SOON = timedelta(seconds=61)  # for what ends by itself by then, nobody is asked to leave


class Soon:
    """Of one turn. Runs count as gone that will have ended by SOON even where they take as long as can be
    expected.

    last_s: in how many seconds the last of them has.
    """

    def __init__(self, future: Future, capacity: Capacity, accounts: Accounts) -> None:
        """capacity, accounts: as they are, those that start in this turn included; kept up by others."""
        self._gone, self.last_s = future.gone_by(SOON.total_seconds())
        self._now, self._accounts = capacity, accounts
        self._then: Accounts | None = None
        # what is free then, and where something else than now
        self._left: tuple[Capacity, Ints] | None = None
        self._hope: Hope | None = None
        self._fitting: dict[tuple[tuple[Role, ...], Topology | None], bool] = {}

    def starts(self, placement: Placement) -> None:
        """It starts in this turn: what has room beside it is to be looked for again, what had none has
        none."""
        if self._then is not None:
            self._then.charge(placement)
        if self._left is not None:
            self._left[0].take(placement)
            self._fitting = {shape: fits for shape, fits in self._fitting.items() if not fits}

    def holds(self, gang: Gang) -> bool:
        """Whether there is room for it by then, and its queue and its user may use so much."""
        return bool(self._gone) and self._fits(gang) and self.allows(gang)

    def allows(self, gang: Gang) -> bool:
        """Whether its queue and its user may use so much by then."""
        if self._accounts.refusal(gang) is None:
            return True
        if self._then is None:
            self._then = self._accounts.copy()
            self._then.credit_all(self._gone)
        return self._then.refusal(gang) is None

    def _fits(self, gang: Gang) -> bool:
        """Those that ask for the same fit alike."""
        shape = gang.roles, gang.topology
        found = self._fitting.get(shape)
        if found is None:
            found = self._fitting[shape] = self._has_room(gang)
        return found

    def _has_room(self, gang: Gang) -> bool:
        if self._left is None:
            capacity = self._now.copy()
            capacity.give_back_all(self._gone)
            self._left = (
                capacity,
                capacity.rows({each.node for placement in self._gone for each in placement.assignments}),
            )
        capacity, emptier = self._left
        if capacity.surely_holds(gang, emptier):
            return True
        if self._hope is None:
            self._hope = Hope(self._now, self._gone)
        return self._hope.holds(gang) and capacity.place(gang, score="first-fit") is not None
