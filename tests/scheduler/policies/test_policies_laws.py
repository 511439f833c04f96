"""What holds of every policy to compare with, on clusters that live."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.cluster import Plan, Snapshot
from hopyard.domain.gang import Placement
from hopyard.scheduler.policies.registry import POLICIES
from tests.scheduler.worlds import World, beyond_limits, gangs, overcommitted, shuffled, worlds

NAMES = sorted(set(POLICIES) - {"hopyard"})  # ours has laws of its own
every_policy = pytest.mark.parametrize("name", NAMES)


def placements(world: World) -> list[Placement]:
    return [running.placement for running in world.running.values()]


def check(snapshot: Snapshot, plan: Plan, world: World) -> None:
    """Each that waits is told once; what is given out is there, and within the limits."""
    told = [placement.gang.id for placement in plan.place] + [hold.gang for hold in plan.hold]
    assert sorted(told) == sorted(gang.id for gang in snapshot.pending)
    assert len(plan.hold) == len(list(plan.hold))
    assert [hold.position for hold in plan.hold] == list(range(1, len(plan.hold) + 1))
    assert all(hold.detail for hold in plan.hold)
    assert not overcommitted(world.nodes, placements(world))
    assert not beyond_limits(world.queues, world.nodes, placements(world))
    asked = {preemption.attempt: preemption.for_gang for preemption in plan.preempt}
    for running in snapshot.running:
        if running.attempt in asked:
            assert running.gang.preemptible and not running.stopping
            assert asked[running.attempt] in {hold.gang for hold in plan.hold}


@every_policy
@settings(max_examples=12)
@given(data=st.data())
def test_plans_are_legal_and_do_not_depend_on_the_past_or_on_order(name: str, data: st.DataObject) -> None:
    """A policy that has followed many snapshots plans as a fresh one that sees the last, told in another
    order."""
    world, policy = data.draw(worlds(reserved=False)), POLICIES[name]()
    random = Random(data.draw(st.integers(0, 999)))
    for turn in range(data.draw(st.integers(1, 6))):
        snapshot = world.snapshot()
        plan = policy(snapshot)
        fresh = POLICIES[name]()(shuffled(snapshot, random))
        assert sorted(plan.place, key=lambda p: p.gang.id) == sorted(fresh.place, key=lambda p: p.gang.id)
        assert sorted(plan.preempt, key=lambda p: p.attempt) == sorted(fresh.preempt, key=lambda p: p.attempt)
        assert list(plan.hold) == list(fresh.hold)
        assert plan.next_cycle_at == fresh.next_cycle_at
        if data.draw(st.integers(0, 4)):  # else the store refuses all of it
            world.apply(plan)
            check(snapshot, plan, world)
        for one in sorted(world.running):
            if world.running[one].stopping:
                world.leave(one)
            elif data.draw(st.integers(0, 2)) == 0:
                world.end(one)
        world.now += timedelta(seconds=data.draw(st.sampled_from([1, 60, 5000])))
        world.submit(
            *(
                data.draw(gangs(f"new{turn}-{i}", world.queues, at=10 * turn))
                for i in range(data.draw(st.integers(0, 3)))
            )
        )


@every_policy
@settings(max_examples=8)
@given(data=st.data())
def test_when_demand_stops_all_that_fits_starts_and_ends(name: str, data: st.DataObject) -> None:
    world, policy = data.draw(worlds(reserved=False)), POLICIES[name]()
    left = {one: data.draw(st.sampled_from([10.0, 4000.0])) for one in [*world.pending, *world.running]}
    for _ in range(60):
        plan = world.turn(policy)
        if not world.running:
            break
        world.now += timedelta(seconds=2000)
        for one in sorted(world.running):
            running = world.running[one]
            left[one] -= 2000.0
            if left[one] <= 0:
                world.end(one)
            elif running.stopping:
                world.leave(one)
    assert not world.running
    fits = [
        hold
        for hold in policy(world.snapshot()).hold
        if hold.reason not in ("never-fits", "quota", "user-limit", "no-nodes")
    ]
    assert not fits, (fits, plan)
