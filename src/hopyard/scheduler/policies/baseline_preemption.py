"""Selects the runs that are preempted so that a gang fits, for the baseline policies."""

from __future__ import annotations

from collections.abc import Iterable

from hopyard.domain.cluster import Running
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.resources import WHOLE_GPU
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.quota.quota_usage import QuotaUsage


def choose_victims(
    gang: Gang, free: Capacity, quota_usage: QuotaUsage, victims: Iterable[Running], score: str
) -> tuple[Placement, list[Running]] | None:
    """Removes victims one by one until the gang fits, then keeps every victim that is not needed. Returns the
    placement and the victims, or None if the gang does not fit without all of them. `free` is unchanged."""
    free, closed_models = free.copy(), quota_usage.closed_models(gang)
    preempted: list[Running] = []
    for running in victims:
        free.release(running.placement)
        preempted.append(running)
        if (
            _may_fit(gang, free)
            and (placement := free.place(gang, score=score, closed_models=closed_models)) is not None
        ):
            break
    else:
        return None
    for running in list(preempted):
        free.allocate(running.placement)
        new_placement = (
            placement
            if _are_disjoint(running.placement, placement)
            else free.place(gang, score=score, closed_models=closed_models)
        )
        if new_placement is None:
            free.release(running.placement)
        else:
            placement = new_placement
            preempted.remove(running)
    return placement, preempted


def _are_disjoint(left: Placement, right: Placement) -> bool:
    """Returns whether they share no node."""
    return {a.node for a in left.assignments}.isdisjoint(a.node for a in right.assignments)


def _may_fit(gang: Gang, free: Capacity) -> bool:
    """Returns False only if the gang certainly does not fit, in a fraction of the time of a placement
    search."""
    free_milli = free.free_totals()[2]
    required = sum(role.required_replicas * role.resources.gpus for role in gang.roles) * WHOLE_GPU
    largest = max(role.resources.gpus for role in gang.roles) * WHOLE_GPU
    return bool(free_milli.sum() >= required and free_milli.max(initial=0) >= largest)
