"""An incremental Planner plans like a new one, for any events between its cycles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.cluster import Node, Snapshot
from hopyard.domain.gang import ANY_NODE, Assignment, Gang, NodeSelector, Placement, Role
from hopyard.domain.ids import GangId, NodeId, PoolName, QueueName
from hopyard.domain.persistent_sequence import PersistentMap
from hopyard.domain.resources import Gpu, Resources
from hopyard.scheduler.cycle import preemption_requests, promises, scheduling_cycle
from hopyard.scheduler.cycle.planner import Planner, plan
from tests.scheduler.cluster_model import (
    GIB,
    ClusterModel,
    cluster_models,
    exceeded_limits,
    gangs,
    machine,
    overcommitted,
    queue,
    queue_trees,
    reservations,
    seconds,
    tree,
)
from tests.scheduler.timeline_clusters import T0, limited_gang, running_attempt, snapshot

histories = settings(max_examples=50, deadline=None)
EVENTS = (
    "submit",
    "submit",
    "submit",
    "end",
    "end",
    "leave",
    "time",
    "time",
    "save",
    "lose",
    "cordon",
    "join",
    "drop",
    "tree",
    "reserve",
    "cancel",
    "edit",
    "edit",
    "release",
)


def apply_event(cluster: ClusterModel, event: str, data: st.DataObject, count: int) -> None:
    """Applies an event that changes the cluster."""

    def draw_one(items: object) -> object:
        result = list(items)  # type: ignore[call-overload]
        return data.draw(st.sampled_from(result)) if result else None

    stopping = [run.gang.id for run in cluster.running.values() if run.stopping]
    if event == "submit":
        cluster.submit(
            *(
                data.draw(gangs(f"h{count}.{i}", cluster.queues, at=count))
                for i in range(data.draw(st.integers(1, 3)))
            )
        )
    elif event == "end" and (one := draw_one(cluster.running)):
        cluster.finish(GangId(str(one)))
    elif event == "leave" and (one := draw_one(stopping)):
        cluster.evict(GangId(str(one)))
    elif event == "time":
        cluster.now += seconds(data.draw(st.sampled_from([0.5, 10, 70, 700, 5000, -60, -9000])))
    elif event == "save" and (one := draw_one(cluster.running)):
        gang = GangId(str(one))
        cluster.running[gang] = replace(cluster.running[gang], saved_at=cluster.now)
    elif event in ("lose", "cordon", "drop") and (name := draw_one(cluster.nodes)):
        node = cluster.nodes[name]  # type: ignore[index]
        if event == "drop":
            del cluster.nodes[node.id]
        else:
            cluster.nodes[node.id] = (
                replace(node, ready=not node.ready)
                if event == "lose"
                else replace(node, cordoned=not node.cordoned)
            )
    elif event == "join":
        joined = machine(f"n{data.draw(st.integers(0, 7))}", data.draw(st.sampled_from([2, 8])))
        cluster.nodes[joined.id] = joined
    elif event == "tree":
        cluster.queues = data.draw(queue_trees())
    elif event == "reserve" and cluster.nodes:
        cluster.reservations = (
            ()
            if cluster.reservations
            else (data.draw(reservations(list(cluster.nodes.values()), cluster.queues)),)
        )
    elif event == "cancel" and (one := draw_one(cluster.pending)):
        del cluster.pending[GangId(str(one))]
    elif event == "edit" and (one := draw_one(cluster.pending)):
        gang_id = GangId(str(one))
        known = cluster.pending[gang_id]
        other = data.draw(gangs(str(gang_id), cluster.queues))
        field = data.draw(st.sampled_from(["priority", "queue", "time_limit_s", "roles"]))
        resized = tuple(replace(role, resources=other.roles[0].resources) for role in known.roles)
        edited: Gang = replace(known, **{field: resized if field == "roles" else getattr(other, field)})
        cluster.pending[gang_id] = edited
    elif (
        event == "release"
    ):  # it was submitted long ago and is released only now; a hold removes it like a cancellation
        cluster.submit(data.draw(gangs(f"r{count}", cluster.queues, at=-1000)))


def as_stored(snapshot: Snapshot, waiting: PersistentMap[GangId, Gang]) -> Snapshot:
    """Returns the snapshot with its pending gangs as a store returns them; `waiting` is the state of the
    store."""
    pending = {gang.id: gang for gang in snapshot.pending}
    for removed in set(waiting) - pending.keys():
        del waiting[removed]
    for gang in pending.values():
        if waiting.get(gang.id) is not gang:
            waiting[gang.id] = gang
    return replace(snapshot, pending=waiting.to_sequence())


@histories
@given(cluster_models(), st.data())
def test_incremental_planner_equals_a_new_planner(cluster: ClusterModel, data: st.DataObject) -> None:
    planner, waiting = Planner(), PersistentMap[GangId, Gang](data.draw(st.integers(1, 4)))
    for count in range(data.draw(st.integers(2, 8))):
        snapshot = cluster.snapshot()
        incremental_plan = planner(as_stored(snapshot, waiting))
        assert incremental_plan == plan(snapshot)
        if data.draw(st.integers(0, 4)):
            cluster.apply(incremental_plan)
        for event in data.draw(st.lists(st.sampled_from(EVENTS), min_size=1, max_size=4)):
            apply_event(cluster, event, data, count)


@histories
@given(cluster_models(most_pending=12), st.integers(1, 3), st.data())
def test_incremental_planner_equals_a_new_planner_with_limited_placements(
    cluster: ClusterModel, most: int, data: st.DataObject
) -> None:
    """A gang left for the next plan has a hold, and no capacity is allocated twice."""
    planner = Planner()
    for count in range(data.draw(st.integers(2, 8))):
        snapshot = replace(cluster.snapshot(), max_placements=most)
        incremental_plan = planner(snapshot)
        assert incremental_plan == plan(snapshot)
        placed, held = (
            {placement.gang.id for placement in incremental_plan.place},
            {hold.gang for hold in incremental_plan.hold},
        )
        assert placed | held == cluster.pending.keys() and not placed & held
        # promised gangs start before other gangs are considered
        walked = placed - snapshot.promises.keys()
        assert len(walked) <= most
        cluster.apply(incremental_plan)
        running = [run.placement for run in cluster.running.values()]
        assert (
            overcommitted(cluster.nodes, running)
            == exceeded_limits(cluster.queues, cluster.nodes, running)
            == []
        )
        for event in data.draw(
            st.lists(st.sampled_from(("submit", "submit", "end", "time", "leave")), max_size=3)
        ):
            apply_event(cluster, event, data, count)


@histories
@given(cluster_models(), st.data())
def test_incremental_planner_equals_a_new_planner_for_gangs_of_several_roles(
    cluster: ClusterModel, data: st.DataObject
) -> None:
    """Roles that use up, during the search, the capacity for the other roles of their gang."""
    planner = Planner()
    for count in range(data.draw(st.integers(2, 6))):
        for single in [gang for gang in cluster.pending.values() if len(gang.roles) == 1]:
            resources = Resources(
                1000 * data.draw(st.sampled_from([1, 4])), GIB, data.draw(st.integers(0, 2))
            )
            cluster.submit(
                replace(
                    single,
                    roles=(*single.roles, Role("helper", data.draw(st.integers(1, 2)), resources)),
                    topology=None,
                )
            )
        snapshot = cluster.snapshot()
        incremental_plan = planner(snapshot)
        assert incremental_plan == plan(snapshot)
        if data.draw(st.booleans()):
            cluster.apply(incremental_plan)
        for event in data.draw(st.lists(st.sampled_from(EVENTS), min_size=1, max_size=4)):
            apply_event(cluster, event, data, count)


def test_batches_of_a_plan_equal_one_plan() -> None:
    """On a cluster with room for all that may start."""
    nodes = [machine(f"n{at}", 8) for at in range(4)]
    waiting = [limited_gang(f"w{at:02}", 1 + at % 3) for at in range(20)]
    single_plan = {placement.gang.id for placement in plan(snapshot(nodes, [], waiting)).place}
    cluster = ClusterModel(
        {node.id: node for node in nodes},
        snapshot(nodes, [], []).queues,
        pending={gang.id: gang for gang in waiting},
    )
    planner = Planner()
    pieces = [planner(replace(cluster.snapshot(), max_placements=4))]
    while len(pieces[-1].place) == 4:
        cluster.apply(pieces[-1])
        pieces.append(planner(replace(cluster.snapshot(), max_placements=4)))
    assert {placement.gang.id for piece in pieces for placement in piece.place} == single_plan
    assert len(pieces) > 3


@histories
@given(cluster_models())
def test_planner_repeats_its_plan_for_an_unchanged_snapshot(cluster: ClusterModel) -> None:
    snapshot = cluster.snapshot()
    planner = Planner()
    assert planner(snapshot) == planner(snapshot) == plan(snapshot)


@histories
@given(cluster_models(most_pending=12), st.data())
def test_incremental_planner_equals_a_new_planner_with_small_search_budgets(
    cluster: ClusterModel, data: st.DataObject
) -> None:
    """As in a large cluster: one promise and one victim search per cycle."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(promises, "MAX_PROMISES", 1)
        patch.setattr(preemption_requests, "GANG_SEARCH_BUDGET", (1, 1))
        patch.setattr(scheduling_cycle, "SEARCHES_PER_QUEUE", 1)
        planner = Planner()
        for count in range(data.draw(st.integers(2, 6))):
            snapshot = cluster.snapshot()
            incremental_plan = planner(snapshot)
            assert incremental_plan == plan(snapshot)
            cluster.apply(incremental_plan)
            for event in data.draw(st.lists(st.sampled_from(EVENTS), min_size=1, max_size=4)):
                apply_event(cluster, event, data, count)


def test_incremental_planner_equals_a_new_planner_after_the_clock_was_set_back() -> None:
    """The estimate for an overrun run must not be reused for the same run at a younger age."""
    running = [
        running_attempt(Placement(limited_gang("r", 2, limit_s=None), (Assignment(0, NodeId("n1"), (0, 1)),)))
    ]
    planner = Planner()
    for at_s in (0, 100_000, 10, 5000, 0):
        current = snapshot(
            [machine("n1", 2)],
            running,
            [limited_gang("w", 2)],
            now=T0 + seconds(at_s),
            durations={"all": (100.0,) * 20},
        )
        assert planner(current) == plan(current)


@pytest.mark.parametrize(
    ("roles", "sizes", "on_a100"),
    [
        pytest.param([("any", 8, 1, (), "p")], (4,), 4, id="elastic, in the pool of that model"),
        pytest.param([("any", 8, 1, ("A100", "H100"), None)], (4,), 4, id="elastic, of an absent model"),
        pytest.param([("any", 8, 1, (), None)], (8,), 0, id="elastic, with other models free"),
        pytest.param(
            [("lead", 1, 0, ("A100",), None), ("any", 4, 0, (), None)],
            (1, 4),
            1,
            id="with a fixed role",
        ),
        pytest.param(
            [("lead", 2, 0, ("A100",), None), ("any", 8, 1, (), None)],
            (2, 8),
            2,
            id="elastic, with a fixed role",
        ),
        pytest.param(
            [("lead", 1, 0, ("A100",), None), ("any", 4, 0, (), "q")],
            (1, 4),
            1,
            id="with other roles elsewhere",
        ),
    ],
)
def test_limit_on_one_gpu_model_leaves_other_models_usable(
    roles: Sequence[tuple[str, int, int, tuple[str, ...], str | None]], sizes: tuple[int, ...], on_a100: int
) -> None:
    """8 A100 GPUs in pool p of which the queue may use 4, and 8 T4 GPUs in pool q."""
    nodes = [
        Node(
            NodeId(pool), "local", 64_000, 64 * GIB, tuple(Gpu(i, model, 0) for i in range(8)), PoolName(pool)
        )
        for pool, model in (("p", "A100"), ("q", "T4"))
    ]
    queues = tree(replace(queue("default"), maximum={"gpu:a100": 4000}))
    requested = [
        Role(
            name,
            most,
            Resources(1000, GIB, 1, models),
            fewest,
            NodeSelector((PoolName(pool),)) if pool else ANY_NODE,
        )
        for name, most, fewest, models, pool in roles
    ]
    cluster = ClusterModel({node.id: node for node in nodes}, queues)
    cluster.submit(Gang(GangId("g"), tuple(requested), T0, QueueName("default")))
    (placement,) = cluster.run_cycle().place
    assert tuple(role.replicas for role in placement.gang.roles) == sizes
    assert sum(assignment.node == "p" for assignment in placement.assignments) == on_a100


def test_overrun_runs_have_a_later_expected_end_in_every_cycle() -> None:
    """Many runs that started together, at the exact moment at which their estimate expires."""
    nodes = [machine(f"n{i}", 2) for i in range(9)]
    held = [
        running_attempt(
            Placement(limited_gang(f"r{i}", 2, limit_s=None), (Assignment(0, nodes[i].id, (0, 1)),)), T0
        )
        for i in range(9)
    ]
    planner = Planner()
    for at_s in (1.1, 2.0, 3600.0):
        current = snapshot(
            nodes, held, [limited_gang("w", 2)], now=T0 + seconds(at_s), durations={"all": (0.5,) * 20}
        )
        new_plan = planner(current)
        assert new_plan == plan(current) and [promise.gang for promise in new_plan.promises] == ["w"]
