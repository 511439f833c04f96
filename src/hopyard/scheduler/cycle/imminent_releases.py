"""Capacity that running runs release soon without preemption, and the gangs that may use it."""

from __future__ import annotations

from datetime import timedelta

from hopyard.domain.gang import Gang, Placement, Role, Topology
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.placement.node_table import Ints
from hopyard.scheduler.placement.optimistic_fit import OptimisticFit
from hopyard.scheduler.quota.quota_usage import QuotaUsage
from hopyard.scheduler.timeline.run_end_estimates import RunEndEstimates

IMMINENT_WINDOW = timedelta(seconds=61)  # no run is preempted for capacity that is released by then anyway


class ImminentReleases:
    """Valid for one cycle. A run counts as ended if it ends within IMMINENT_WINDOW even at the upper end of
    its estimate.

    last_end_s: seconds until the last of these runs has ended.
    """

    def __init__(self, run_ends: RunEndEstimates, capacity: Capacity, quota_usage: QuotaUsage) -> None:
        """capacity, quota_usage: the current state with the starts of this cycle; the caller updates them."""
        self._ended, self.last_end_s = run_ends.ended_by(IMMINENT_WINDOW.total_seconds())
        self._capacity, self._quota_usage = capacity, quota_usage
        self._future_quota_usage: QuotaUsage | None = None
        # what is free then, and the nodes where it differs from now
        self._released: tuple[Capacity, Ints] | None = None
        self._optimistic_fit: OptimisticFit | None = None
        self._fit_cache: dict[tuple[tuple[Role, ...], Topology | None], bool] = {}

    def record_start(self, placement: Placement) -> None:
        """Records a start of this cycle: shapes that fitted are checked again, shapes that did not fit still
        do not fit."""
        if self._future_quota_usage is not None:
            self._future_quota_usage.charge(placement)
        if self._released is not None:
            self._released[0].allocate(placement)
            self._fit_cache = {shape: fits for shape, fits in self._fit_cache.items() if not fits}

    def has_room_for(self, gang: Gang) -> bool:
        """Returns whether the gang fits by then, within the quota of its queue and user."""
        return bool(self._ended) and self._capacity_fits(gang) and self.quota_allows(gang)

    def quota_allows(self, gang: Gang) -> bool:
        """Returns whether its queue and user have enough quota by then."""
        if self._quota_usage.refusal(gang) is None:
            return True
        if self._future_quota_usage is None:
            self._future_quota_usage = self._quota_usage.copy()
            self._future_quota_usage.credit_all(self._ended)
        return self._future_quota_usage.refusal(gang) is None

    def _capacity_fits(self, gang: Gang) -> bool:
        """Returns whether the request fits; equal requests share one answer."""
        shape = gang.roles, gang.topology
        fits = self._fit_cache.get(shape)
        if fits is None:
            fits = self._fit_cache[shape] = self._compute_capacity_fits(gang)
        return fits

    def _compute_capacity_fits(self, gang: Gang) -> bool:
        if self._released is None:
            capacity = self._capacity.copy()
            capacity.release_all(self._ended)
            self._released = (
                capacity,
                capacity.rows_of(
                    {assignment.node for placement in self._ended for assignment in placement.assignments}
                ),
            )
        capacity, released_rows = self._released
        if capacity.certainly_fits(gang, released_rows):
            return True
        if self._optimistic_fit is None:
            self._optimistic_fit = OptimisticFit(self._capacity, self._ended)
        return self._optimistic_fit.may_fit(gang) and capacity.place(gang, score="first-fit") is not None
