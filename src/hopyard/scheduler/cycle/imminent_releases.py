"""What there will be room for, and who may use it, once what ends soon anyway has ended."""

from __future__ import annotations

from datetime import timedelta

from hopyard.domain.gang import Gang, Placement, Role, Topology
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.node_table import Ints
from hopyard.scheduler.placement.optimistic_fit import OptimisticFit
from hopyard.scheduler.quota.quota_usage import QuotaUsage
from hopyard.scheduler.timeline.run_end_estimates import RunEndEstimates

IMMINENT_WINDOW = timedelta(seconds=61)  # for what ends by itself by then, nobody is asked to leave


class ImminentReleases:
    """Of one turn. Runs count as gone that will have ended by SOON even where they take as long as can be
    expected.

    last_end_s: in how many seconds the last of them has.
    """

    def __init__(self, run_ends: RunEndEstimates, capacity: Capacity, quota_usage: QuotaUsage) -> None:
        """capacity, quota_usage: as they are, those that start in this turn included; kept up by others."""
        self._ended, self.last_end_s = run_ends.ended_by(IMMINENT_WINDOW.total_seconds())
        self._capacity, self._quota_usage = capacity, quota_usage
        self._future_quota_usage: QuotaUsage | None = None
        # what is free then, and where something else than now
        self._released: tuple[Capacity, Ints] | None = None
        self._optimistic_fit: OptimisticFit | None = None
        self._fit_cache: dict[tuple[tuple[Role, ...], Topology | None], bool] = {}

    def record_start(self, placement: Placement) -> None:
        """It starts in this turn: what has room beside it is to be looked for again, what had none has
        none."""
        if self._future_quota_usage is not None:
            self._future_quota_usage.charge(placement)
        if self._released is not None:
            self._released[0].allocate(placement)
            self._fit_cache = {shape: fits for shape, fits in self._fit_cache.items() if not fits}

    def has_room_for(self, gang: Gang) -> bool:
        """Whether there is room for it by then, and its queue and its user may use so much."""
        return bool(self._ended) and self._capacity_fits(gang) and self.quota_allows(gang)

    def quota_allows(self, gang: Gang) -> bool:
        """Whether its queue and its user may use so much by then."""
        if self._quota_usage.refusal(gang) is None:
            return True
        if self._future_quota_usage is None:
            self._future_quota_usage = self._quota_usage.copy()
            self._future_quota_usage.credit_all(self._ended)
        return self._future_quota_usage.refusal(gang) is None

    def _capacity_fits(self, gang: Gang) -> bool:
        """Those that ask for the same fit alike."""
        shape = gang.roles, gang.topology
        found = self._fit_cache.get(shape)
        if found is None:
            found = self._fit_cache[shape] = self._compute_capacity_fits(gang)
        return found

    def _compute_capacity_fits(self, gang: Gang) -> bool:
        if self._released is None:
            capacity = self._capacity.copy()
            capacity.release_all(self._ended)
            self._released = (
                capacity,
                capacity.rows_of({each.node for placement in self._ended for each in placement.assignments}),
            )
        capacity, emptier = self._released
        if capacity.certainly_fits(gang, emptier):
            return True
        if self._optimistic_fit is None:
            self._optimistic_fit = OptimisticFit(self._capacity, self._ended)
        return self._optimistic_fit.may_fit(gang) and capacity.place(gang, score="first-fit") is not None
