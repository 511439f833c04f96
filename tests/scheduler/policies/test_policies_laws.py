"""Laws of every baseline policy, on changing clusters."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.cluster import Plan, Snapshot
from hopyard.domain.gang import Placement
from hopyard.scheduler.explain.hold_messages import hold_message
from hopyard.scheduler.policies.registry import POLICIES
from tests.scheduler.cluster_model import (
    ClusterModel,
    cluster_models,
    exceeded_limits,
    gangs,
    overcommitted,
    shuffled,
)

NAMES = sorted(set(POLICIES) - {"hopyard"})  # the default policy has its own laws
every_policy = pytest.mark.parametrize("name", NAMES)


def placements(cluster: ClusterModel) -> list[Placement]:
    return [running.placement for running in cluster.running.values()]


def check(snapshot: Snapshot, plan: Plan, cluster: ClusterModel) -> None:
    """Checks that each pending gang has one answer, and that placements respect capacity and limits."""
    result = [placement.gang.id for placement in plan.place] + [hold.gang for hold in plan.hold]
    assert sorted(result) == sorted(gang.id for gang in snapshot.pending)
    assert len(plan.hold) == len(list(plan.hold))
    assert [hold.position for hold in plan.hold] == list(range(1, len(plan.hold) + 1))
    assert all(hold_message(hold.cause) for hold in plan.hold)
    assert not overcommitted(cluster.nodes, placements(cluster))
    assert not exceeded_limits(cluster.queues, cluster.nodes, placements(cluster))
    preempted = {preemption.attempt: preemption.for_gang for preemption in plan.preempt}
    for running in snapshot.running:
        if running.attempt in preempted:
            assert running.gang.preemptible and not running.stopping
            assert preempted[running.attempt] in {hold.gang for hold in plan.hold}


@every_policy
@settings(max_examples=12)
@given(data=st.data())
def test_plans_are_legal_and_independent_of_history_and_order(name: str, data: st.DataObject) -> None:
    """A policy that has seen many snapshots plans like a new one that gets only the last, in another
    order."""
    cluster, policy = data.draw(cluster_models(reserved=False)), POLICIES[name]()
    random = Random(data.draw(st.integers(0, 999)))
    for cycle in range(data.draw(st.integers(1, 6))):
        snapshot = cluster.snapshot()
        plan = policy(snapshot)
        fresh = POLICIES[name]()(shuffled(snapshot, random))
        assert sorted(plan.place, key=lambda p: p.gang.id) == sorted(fresh.place, key=lambda p: p.gang.id)
        assert sorted(plan.preempt, key=lambda p: p.attempt) == sorted(fresh.preempt, key=lambda p: p.attempt)
        assert list(plan.hold) == list(fresh.hold)
        assert plan.next_cycle_at == fresh.next_cycle_at
        if data.draw(st.integers(0, 4)):  # otherwise the store rejects the complete plan
            cluster.apply(plan)
            check(snapshot, plan, cluster)
        for gang_id in sorted(cluster.running):
            if cluster.running[gang_id].stopping:
                cluster.evict(gang_id)
            elif data.draw(st.integers(0, 2)) == 0:
                cluster.finish(gang_id)
        cluster.now += timedelta(seconds=data.draw(st.sampled_from([1, 60, 5000])))
        cluster.submit(
            *(
                data.draw(gangs(f"new{cycle}-{i}", cluster.queues, at=10 * cycle))
                for i in range(data.draw(st.integers(0, 3)))
            )
        )


@every_policy
@settings(max_examples=8)
@given(data=st.data())
def test_all_fitting_gangs_start_and_end_when_demand_stops(name: str, data: st.DataObject) -> None:
    cluster, policy = data.draw(cluster_models(reserved=False)), POLICIES[name]()
    remaining_s = {
        gang: data.draw(st.sampled_from([10.0, 4000.0])) for gang in [*cluster.pending, *cluster.running]
    }
    for _ in range(60):
        plan = cluster.run_cycle(policy)
        if not cluster.running:
            break
        cluster.now += timedelta(seconds=2000)
        for gang_id in sorted(cluster.running):
            running = cluster.running[gang_id]
            remaining_s[gang_id] -= 2000.0
            if remaining_s[gang_id] <= 0:
                cluster.finish(gang_id)
            elif running.stopping:
                cluster.evict(gang_id)
    assert not cluster.running
    fits = [
        hold
        for hold in policy(cluster.snapshot()).hold
        if hold.reason not in ("never-fits", "quota", "user-limit", "no-nodes")
    ]
    assert not fits, (fits, plan)
