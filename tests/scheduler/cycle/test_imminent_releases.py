"""Imminent releases, updated as gangs start, equal newly computed ones."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from hopyard.domain.gang import Assignment, Placement
from hopyard.domain.ids import NodeId
from hopyard.scheduler.cycle.cluster_state import ClusterState
from hopyard.scheduler.cycle.imminent_releases import IMMINENT_WINDOW, ImminentReleases
from hopyard.scheduler.cycle.planner import plan
from tests.scheduler.cluster_model import ClusterModel, cluster_models
from tests.scheduler.timeline_clusters import T0, limited_gang, machine, running_attempt, seconds, snapshot


@settings(max_examples=150, deadline=None)
@given(cluster_models())
def test_imminent_releases_follow_started_gangs(cluster: ClusterModel) -> None:
    cluster_state = ClusterState(cluster.snapshot())
    run_ends, capacity, usage = (
        cluster_state.run_ends,
        cluster_state.capacity,
        cluster_state.quota_usage.copy(),
    )
    updated = ImminentReleases(run_ends, capacity, usage)
    waiting = list(cluster.pending.values())
    for one in waiting:
        fresh = ImminentReleases(run_ends, capacity, usage)
        for gang in waiting:
            smallest = gang.with_replica_counts([role.required_replicas for role in gang.roles])
            assert (updated.quota_allows(gang), updated.has_room_for(smallest)) == (
                fresh.quota_allows(gang),
                fresh.has_room_for(smallest),
            )
        place = capacity.place(one) if usage.refusal(one) is None else None
        if place is not None:
            capacity.allocate(place)
            usage.charge(place)
            updated.record_start(place)


@settings(max_examples=150, deadline=None)
@given(cluster_models())
def test_imminent_release_has_room_if_the_gang_fits_after_it(cluster: ClusterModel) -> None:
    cluster_state = ClusterState(cluster.snapshot())
    ended, _ = cluster_state.run_ends.ended_by(IMMINENT_WINDOW.total_seconds())
    capacity = cluster_state.capacity.copy()
    capacity.release_all(ended)
    imminent = ImminentReleases(cluster_state.run_ends, cluster_state.capacity, cluster_state.quota_usage)
    for gang in cluster.pending.values():
        smallest = gang.with_replica_counts([role.required_replicas for role in gang.roles])
        fits = bool(ended) and capacity.place(smallest, score="first-fit") is not None
        assert imminent.has_room_for(smallest) == (fits and imminent.quota_allows(smallest))


def test_imminent_releases_on_two_engines_do_not_fit_one_gang() -> None:
    """A gang is never split over two engines.

    One replica would fit on each soon, so the long run is preempted.
    """
    nodes = [
        replace(machine("a1", 4), engine="a"),
        replace(machine("b1", 4), engine="b"),
        replace(machine("a2", 4), engine="a"),
    ]
    held = [_full_node("x", "a1", 100), _full_node("y", "b1", 100), _full_node("low", "a2", 36000)]
    waits = replace(limited_gang("w", 4, replicas=2, limit_s=1000), priority=90)
    new_plan = plan(snapshot(nodes, [running_attempt(one, T0 - seconds(70)) for one in held], [waits]))
    assert ("low", "w") in [(preemption.gang, preemption.for_gang) for preemption in new_plan.preempt]


def _full_node(name: str, node: str, limit_s: float) -> Placement:
    return Placement(
        replace(limited_gang(name, 4, limit_s=limit_s), priority=0),
        (Assignment(0, NodeId(node), (0, 1, 2, 3)),),
    )
