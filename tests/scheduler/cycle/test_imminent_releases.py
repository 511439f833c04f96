"""What is worked out once in a turn, and kept up by what starts, is what would be worked out anew."""

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
    standing = ClusterState(cluster.snapshot())
    future, capacity, accounts = standing.run_ends, standing.capacity, standing.quota_usage.copy()
    kept = ImminentReleases(future, capacity, accounts)
    waiting = list(cluster.pending.values())
    for one in waiting:
        anew = ImminentReleases(future, capacity, accounts)
        for gang in waiting:
            smallest = gang.with_replica_counts([role.required_replicas for role in gang.roles])
            assert (kept.quota_allows(gang), kept.has_room_for(smallest)) == (
                anew.quota_allows(gang),
                anew.has_room_for(smallest),
            )
        place = capacity.place(one) if accounts.refusal(one) is None else None
        if place is not None:
            capacity.allocate(place)
            accounts.charge(place)
            kept.record_start(place)


@settings(max_examples=150, deadline=None)
@given(cluster_models())
def test_imminent_release_has_room_if_the_gang_fits_after_it(cluster: ClusterModel) -> None:
    standing = ClusterState(cluster.snapshot())
    gone, _ = standing.run_ends.ended_by(IMMINENT_WINDOW.total_seconds())
    capacity = standing.capacity.copy()
    capacity.release_all(gone)
    soon = ImminentReleases(standing.run_ends, standing.capacity, standing.quota_usage)
    for gang in cluster.pending.values():
        smallest = gang.with_replica_counts([role.required_replicas for role in gang.roles])
        fits = bool(gone) and capacity.place(smallest, score="first-fit") is not None
        assert soon.has_room_for(smallest) == (fits and soon.quota_allows(smallest))


def test_imminent_releases_on_two_engines_do_not_fit_one_gang() -> None:
    """A gang is never split over two: what ends soon leaves a place on each, and whoever has one for hours
    must make room."""
    nodes = [
        replace(machine("a1", 4), engine="a"),
        replace(machine("b1", 4), engine="b"),
        replace(machine("a2", 4), engine="a"),
    ]
    held = [_all_of("x", "a1", 100), _all_of("y", "b1", 100), _all_of("low", "a2", 36000)]
    waits = replace(limited_gang("w", 4, replicas=2, limit_s=1000), priority=90)
    found = plan(snapshot(nodes, [running_attempt(one, T0 - seconds(70)) for one in held], [waits]))
    assert ("low", "w") in [(one.gang, one.for_gang) for one in found.preempt]


def _all_of(name: str, node: str, limit_s: float) -> Placement:
    return Placement(
        replace(limited_gang(name, 4, limit_s=limit_s), priority=0),
        (Assignment(0, NodeId(node), (0, 1, 2, 3)),),
    )
