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
from tests.scheduler.cluster_model import (
    ClusterModel,
    cluster_models,
    exceeded_limits,
    gangs,
    overcommitted,
    shuffled,
)

NAMES = sorted(set(POLICIES) - {"hopyard"})  # ours has laws of its own
every_policy = pytest.mark.parametrize("name", NAMES)


def placements(cluster: ClusterModel) -> list[Placement]:
    return [running.placement for running in cluster.running.values()]


def check(snapshot: Snapshot, plan: Plan, cluster: ClusterModel) -> None:
    """Each that waits is told once; what is given out is there, and within the limits."""
    told = [placement.gang.id for placement in plan.place] + [hold.gang for hold in plan.hold]
    assert sorted(told) == sorted(gang.id for gang in snapshot.pending)
    assert len(plan.hold) == len(list(plan.hold))
    assert [hold.position for hold in plan.hold] == list(range(1, len(plan.hold) + 1))
    assert all(hold.detail for hold in plan.hold)
    assert not overcommitted(cluster.nodes, placements(cluster))
    assert not exceeded_limits(cluster.queues, cluster.nodes, placements(cluster))
    asked = {preemption.attempt: preemption.for_gang for preemption in plan.preempt}
    for running in snapshot.running:
        if running.attempt in asked:
            assert running.gang.preemptible and not running.stopping
            assert asked[running.attempt] in {hold.gang for hold in plan.hold}


@every_policy
@settings(max_examples=12)
@given(data=st.data())
def test_plans_are_legal_and_independent_of_history_and_order(name: str, data: st.DataObject) -> None:
    """A policy that has followed many snapshots plans as a fresh one that sees the last, told in another
    order."""
    cluster, policy = data.draw(cluster_models(reserved=False)), POLICIES[name]()
    random = Random(data.draw(st.integers(0, 999)))
    for turn in range(data.draw(st.integers(1, 6))):
        snapshot = cluster.snapshot()
        plan = policy(snapshot)
        fresh = POLICIES[name]()(shuffled(snapshot, random))
        assert sorted(plan.place, key=lambda p: p.gang.id) == sorted(fresh.place, key=lambda p: p.gang.id)
        assert sorted(plan.preempt, key=lambda p: p.attempt) == sorted(fresh.preempt, key=lambda p: p.attempt)
        assert list(plan.hold) == list(fresh.hold)
        assert plan.next_cycle_at == fresh.next_cycle_at
        if data.draw(st.integers(0, 4)):  # else the store refuses all of it
            cluster.apply(plan)
            check(snapshot, plan, cluster)
        for one in sorted(cluster.running):
            if cluster.running[one].stopping:
                cluster.evict(one)
            elif data.draw(st.integers(0, 2)) == 0:
                cluster.finish(one)
        cluster.now += timedelta(seconds=data.draw(st.sampled_from([1, 60, 5000])))
        cluster.submit(
            *(
                data.draw(gangs(f"new{turn}-{i}", cluster.queues, at=10 * turn))
                for i in range(data.draw(st.integers(0, 3)))
            )
        )


@every_policy
@settings(max_examples=8)
@given(data=st.data())
def test_all_fitting_gangs_start_and_end_when_demand_stops(name: str, data: st.DataObject) -> None:
    cluster, policy = data.draw(cluster_models(reserved=False)), POLICIES[name]()
    left = {one: data.draw(st.sampled_from([10.0, 4000.0])) for one in [*cluster.pending, *cluster.running]}
    for _ in range(60):
        plan = cluster.run_cycle(policy)
        if not cluster.running:
            break
        cluster.now += timedelta(seconds=2000)
        for one in sorted(cluster.running):
            running = cluster.running[one]
            left[one] -= 2000.0
            if left[one] <= 0:
                cluster.finish(one)
            elif running.stopping:
                cluster.evict(one)
    assert not cluster.running
    fits = [
        hold
        for hold in policy(cluster.snapshot()).hold
        if hold.reason not in ("never-fits", "quota", "user-limit", "no-nodes")
    ]
    assert not fits, (fits, plan)
