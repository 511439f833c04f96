"""What is worked out once in a turn, and kept up by what starts, is what would be worked out anew."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings

from hopyard.domain.gang import Assignment, Placement
from hopyard.domain.ids import NodeId
from hopyard.scheduler.cycle.cluster_state import ClusterState
from hopyard.scheduler.cycle.imminent_releases import IMMINENT_WINDOW, ImminentReleases
from hopyard.scheduler.cycle.planner import plan
from tests.scheduler.futures import T0, asks, machine, runs, seconds, snapshot
from tests.scheduler.worlds import World, worlds


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_who_may_start_soon_follows_what_starts(world: World) -> None:
    standing = ClusterState(world.snapshot())
    future, capacity, accounts = standing.run_ends, standing.capacity, standing.quota_usage.copy()
    kept = ImminentReleases(future, capacity, accounts)
    waiting = list(world.pending.values())
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
@given(worlds())
def test_there_is_room_soon_where_a_place_is_found_once_they_have_gone(world: World) -> None:
    standing = ClusterState(world.snapshot())
    gone, _ = standing.run_ends.ended_by(IMMINENT_WINDOW.total_seconds())
    capacity = standing.capacity.copy()
    capacity.release_all(gone)
    soon = ImminentReleases(standing.run_ends, standing.capacity, standing.quota_usage)
    for gang in world.pending.values():
        smallest = gang.with_replica_counts([role.required_replicas for role in gang.roles])
        fits = bool(gone) and capacity.place(smallest, score="first-fit") is not None
        assert soon.has_room_for(smallest) == (fits and soon.quota_allows(smallest))


def test_room_on_machines_of_two_engines_is_no_room_for_one_gang() -> None:
    """A gang is never split over two: what ends soon leaves a place on each, and whoever has one for hours
    must make room."""
    nodes = [
        replace(machine("a1", 4), engine="a"),
        replace(machine("b1", 4), engine="b"),
        replace(machine("a2", 4), engine="a"),
    ]
    held = [_all_of("x", "a1", 100), _all_of("y", "b1", 100), _all_of("low", "a2", 36000)]
    waits = replace(asks("w", 4, replicas=2, limit_s=1000), priority=90)
    found = plan(snapshot(nodes, [runs(one, T0 - seconds(70)) for one in held], [waits]))
    assert ("low", "w") in [(one.gang, one.for_gang) for one in found.preempt]


def _all_of(name: str, node: str, limit_s: float) -> Placement:
    return Placement(
        replace(asks(name, 4, limit_s=limit_s), priority=0), (Assignment(0, NodeId(node), (0, 1, 2, 3)),)
    )
