"""Victims lose no more GPU-seconds than any sufficient set of runs, and only permitted ones are preempted."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hopyard.domain.cluster import Running
from hopyard.domain.effective_limits import guaranteed_amounts
from hopyard.domain.gang import Assignment, Gang, Placement
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import AttemptId, GangId, NodeId, QueueName
from hopyard.domain.queue import CPU, GPU, QueueTree
from hopyard.scheduler.cycle.cluster_state import ClusterState
from hopyard.scheduler.cycle.preemptor import Preemptor
from hopyard.scheduler.cycle.victim_search import Victim, gpu_weight_of, unsaved_gpu_seconds
from hopyard.scheduler.explain.preemption_messages import preemption_message
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.quota.quota_usage import QuotaUsage
from tests.scheduler.cluster_model import T0, ClusterModel, gang, leaf_queues, machine, queue, seconds, tree
from tests.scheduler.cycle.preemption_cluster import make_cluster, preempted_gangs, running_on

SHARED = tree(queue("root"), queue("a", "root", guarantee=4), queue("b", "root", guarantee=4))


def test_victim_with_least_unsaved_work_is_preempted() -> None:
    runs = [
        running_on("old", "n", (0, 1), ran_s=900, priority=10),
        running_on("new", "n", (2, 3), ran_s=30, priority=10),
    ]
    assert preempted_gangs(
        make_cluster(tree(queue("default")), {"n": 4}, *runs, pending=(gang("g", 2, priority=90),))
    ) == {"new"}


def test_previously_preempted_run_is_preempted_after_others() -> None:
    runs = [
        running_on("back", "n", (0, 1), ran_s=1, priority=10),
        running_on("other", "n", (2, 3), ran_s=300, priority=10),
    ]
    again = replace(runs[0], placement=replace(runs[0].placement, gang=replace(runs[0].gang, preemptions=1)))
    pending = (gang("g", 2, priority=90),)
    assert preempted_gangs(make_cluster(tree(queue("default")), {"n": 4}, *runs, pending=pending)) == {"back"}
    assert preempted_gangs(
        make_cluster(tree(queue("default")), {"n": 4}, again, runs[1], pending=pending)
    ) == {"other"}


def test_saved_work_does_not_count_as_lost() -> None:
    runs = [
        running_on("old", "n", (0, 1), ran_s=900, saved_s=5, priority=10),
        running_on("new", "n", (2, 3), ran_s=30, priority=10),
    ]
    assert preempted_gangs(
        make_cluster(tree(queue("default")), {"n": 4}, *runs, pending=(gang("g", 2, priority=90),))
    ) == {"old"}


def test_one_large_victim_is_preferred_over_many_that_lose_more() -> None:
    small = [running_on(f"s{i}", "n", (i,), ran_s=50, priority=10) for i in range(4)]
    large = running_on("large", "m", (0, 1, 2, 3), ran_s=30, priority=10)
    assert preempted_gangs(
        make_cluster(
            tree(queue("default")), {"n": 4, "m": 4}, *small, large, pending=(gang("g", 4, priority=90),)
        )
    ) == {"large"}


def test_equal_priority_does_not_preempt() -> None:
    runs = [running_on("one", "n", (0, 1))]
    cluster = make_cluster(tree(queue("default")), {"n": 2}, *runs, pending=(gang("g", 2),))
    assert preempted_gangs(cluster) == set()


def test_preemption_that_would_not_suffice_is_not_requested() -> None:
    runs = [running_on("low", "n", (0,), priority=10), running_on("high", "n", (1,), priority=90)]
    cluster = make_cluster(tree(queue("default")), {"n": 2}, *runs, pending=(gang("g", 2, priority=50),))
    new_plan = cluster.run_cycle()
    assert not new_plan.preempt
    assert new_plan.hold[0].reason is HoldReason.NO_CAPACITY


def test_non_preemptible_run_is_not_preempted() -> None:
    runs = [running_on("sure", "n", (0, 1), priority=10, preemptible=False)]
    assert (
        preempted_gangs(
            make_cluster(tree(queue("default")), {"n": 2}, *runs, pending=(gang("g", 2, priority=90),))
        )
        == set()
    )


def test_queue_reclaims_only_its_guarantee() -> None:
    runs = [running_on(f"a{i}", "n", (i,), ran_s=100 - i, queue="a") for i in range(8)]
    cluster = make_cluster(
        SHARED, {"n": 8}, *runs, pending=tuple(gang(f"b{i}", 1, queue="b", at=i) for i in range(6))
    )
    assert preempted_gangs(cluster) == {"a4", "a5", "a6", "a7"}


def test_lender_is_the_queue_with_the_guarantee() -> None:
    """Here this is the team: its queue has one guaranteed GPU, and the gang requests two."""
    tree_of_teams = tree(
        queue("root"),
        queue("team", "root", guarantee=4),
        queue("one", "team", guarantee=1),
        queue("two", "team"),
        queue("other", "root"),
    )
    runs = [running_on(f"o{i}", "n", (i,), queue="other") for i in range(4)]
    cluster = make_cluster(tree_of_teams, {"n": 4}, *runs, pending=(gang("g", 2, queue="one"),))
    reasons = {preemption_message(preemption.cause) for preemption in cluster.run_cycle().preempt}
    assert reasons == {"queue other uses more than its guarantee; run g reclaims what queue team lent"}


def test_queue_within_its_guarantee_is_not_reclaimed_from() -> None:
    runs = [running_on(f"a{i}", "n", (i,), queue="a") for i in range(4)]
    assert preempted_gangs(make_cluster(SHARED, {"n": 4}, *runs, pending=(gang("b", 1, queue="b"),))) == set()


def test_queue_that_would_borrow_does_not_reclaim() -> None:
    runs = [running_on(f"a{i}", "n", (i,), queue="a") for i in range(8)]
    assert preempted_gangs(make_cluster(SHARED, {"n": 8}, *runs, pending=(gang("b", 5, queue="b"),))) == set()


def test_gang_within_its_guarantee_waits_for_capacity_not_quota() -> None:
    """It does not wait for quota: borrowing by others does not limit it."""
    queues = tree(queue("root"), queue("a", "root", guarantee=4), queue("b", "root", guarantee=4, lend=2))
    runs = [running_on(f"a{i}", "n", (i,), queue="a", preemptible=False) for i in range(6)]
    within, beyond = gang("b4", 4, queue="b"), gang("a3", 3, queue="a")
    holds = make_cluster(queues, {"n": 8}, *runs, pending=(within, beyond)).run_cycle().hold
    assert {hold.gang: hold.reason for hold in holds} == {
        "b4": HoldReason.NO_CAPACITY,
        "a3": HoldReason.QUOTA,
    }


@pytest.mark.parametrize(("lends", "leave"), [(0, {"g0", "g1", "g2"}), (1, {"g1", "g2", "g3"})])
def test_unlent_guarantee_is_not_available_to_sibling_queues(lends: int, leave: set[str]) -> None:
    queues = tree(
        queue("root"), queue("a", "root", guarantee=3), queue("team", "root"), queue("guest", "team"),
        queue("inner", "team", guarantee=3, lend=lends),
    )  # fmt: skip
    runs = [running_on(f"g{i}", "n", (i,), ran_s=100 - i, queue="guest") for i in range(3 + lends)]
    cluster = make_cluster(queues, {"n": 6}, *runs, pending=(gang("a3", 3, queue="a"),))
    assert preempted_gangs(cluster) == leave
    for name in leave:
        cluster.evict(GangId(name))
    assert [placement.gang.id for placement in cluster.run_cycle().place] == ["a3"]
    cluster.submit(gang("i2", 3 - lends, queue="inner"))
    new_plan = cluster.run_cycle()
    assert ([placement.gang.id for placement in new_plan.place], new_plan.preempt) == (["i2"], ())


@pytest.mark.parametrize("closed_cpus", [0, 512])
def test_victim_cost_ignores_unschedulable_nodes(closed_cpus: int) -> None:
    """4 of 8 CPUs weigh as much as 2 of 4 GPUs, more than the one GPU of the other run.

    Of 520 CPUs they would weigh almost nothing.
    """
    cpus = gang("cpus", 0, cpus=4, priority=10)
    on_cpus = Running(
        Placement(cpus, (Assignment(0, NodeId("n"), ()),)),
        T0 - seconds(100),
        AttemptId("cpus.1"),
        T0 - seconds(100),
    )
    gpu = gang("gpu", 1, cpus=4, priority=10)
    on_gpu = Running(
        Placement(gpu, (Assignment(0, NodeId("n"), (0,)),)),
        T0 - seconds(100),
        AttemptId("gpu.1"),
        T0 - seconds(100),
    )
    cluster = make_cluster(
        tree(queue("default")), {}, on_cpus, on_gpu, pending=(gang("urgent", 0, cpus=4, priority=90),)
    )
    cluster.nodes = {NodeId("n"): machine("n", 4, cpus=8)}
    if closed_cpus:
        cluster.nodes[NodeId("z")] = replace(machine("z", 0, cpus=closed_cpus), cordoned=True)
    assert preempted_gangs(cluster) == {"gpu"}


@pytest.mark.parametrize("lends", [None, 1, 0])
def test_borrowed_usage_in_a_team_does_not_depend_on_start_order(lends: int | None) -> None:
    """`x` has no guarantee and started before `y`, which has all of the team's guarantee."""
    queues = tree(
        queue("root"),
        queue("a", "root", guarantee=2),
        queue("team", "root"),
        queue("x", "team"),
        queue("y", "team", guarantee=1, lend=lends),
    )
    runs = [
        running_on("x1", "n", (0,), ran_s=500, queue="x"),
        running_on("y1", "n", (1,), ran_s=400, queue="y"),
    ]
    assert preempted_gangs(make_cluster(queues, {"n": 3}, *runs, pending=(gang("a2", 2, queue="a"),))) == {
        "x1"
    }


def test_guaranteed_gang_starts_before_one_that_borrows_unlent_quota() -> None:
    queues = tree(
        queue("root"),
        queue("z", "root", guarantee=3),
        queue("team", "root"),
        queue("guest", "team"),
        queue("inner", "team", guarantee=3, lend=0),
    )
    guests = [gang(f"g{i}", 1, queue="guest") for i in range(3)]
    cluster = make_cluster(
        queues, {"n": 6}, pending=(*guests, *(gang(f"z{i}", 1, queue="z", at=1) for i in range(3)))
    )
    new_plan = cluster.run_cycle()
    assert [placement.gang.id for placement in new_plan.place] == ["z0", "z1", "z2"]
    assert cluster.run_cycle().preempt == ()
    cluster.submit(gang("i3", 3, queue="inner", at=2))
    assert [placement.gang.id for placement in cluster.run_cycle().place] == ["i3"]


def test_parent_queue_with_older_runs_is_reclaimed_from() -> None:
    queues = tree(
        queue("root"),
        queue("a", "root", guarantee=3),
        queue("team", "root"),
        queue("guest", "team"),
        queue("inner", "team", guarantee=3, lend=0),
    )
    runs = [running_on(f"r{i}", "n", (i,), ran_s=100 - i, queue="team") for i in range(3)]
    assert preempted_gangs(make_cluster(queues, {"n": 6}, *runs, pending=(gang("a3", 3, queue="a"),))) == {
        "r0",
        "r1",
        "r2",
    }


def test_preemptor_waits_for_its_victims_without_more_preemptions() -> None:
    runs = [running_on(f"a{i}", "n", (i,), ran_s=100 - i, queue="a") for i in range(8)]
    cluster = make_cluster(SHARED, {"n": 8}, *runs, pending=(gang("b", 2, queue="b"),))
    assert preempted_gangs(cluster) == {"a6", "a7"}
    for _ in range(3):
        cluster.now += seconds(1)
        new_plan = cluster.run_cycle()
        assert not new_plan.preempt
        assert new_plan.hold[0].reason is HoldReason.PREEMPTING
    cluster.evict(GangId("a6"))  # one of two victims
    cluster.submit(gang("thief", 1, queue="a", priority=99))
    assert not cluster.run_cycle().place
    cluster.evict(GangId("a7"))
    assert [placement.gang.id for placement in cluster.run_cycle().place] == ["b"]


def test_run_already_stopping_is_awaited_instead_of_a_preemption() -> None:
    leaving = replace(running_on("a", "n", (0, 1), priority=10), stopping=True)
    runs = [leaving, running_on("b", "n", (2, 3), ran_s=1, priority=10)]
    assert (
        preempted_gangs(
            make_cluster(tree(queue("default")), {"n": 4}, *runs, pending=(gang("g", 2, priority=90),))
        )
        == set()
    )


def test_run_that_overran_its_expected_end_is_preempted() -> None:
    """A run that is expected to end soon is not preempted at first.

    No event marks its overrun, so the passing of time must trigger the preemption.
    """
    cluster = make_cluster(
        tree(queue("default")),
        {"n": 4},
        running_on("low", "n", (0, 1, 2, 3), ran_s=5, priority=10),
        pending=(gang("g", 4, priority=90),),
    )
    cluster.durations = {"all": (20.0,) * 10}
    assert preempted_gangs(cluster) == set()
    for _ in range(8):
        new_plan = cluster.run_cycle()
        if new_plan.preempt:
            break
        assert new_plan.next_cycle_at is not None
        cluster.now = new_plan.next_cycle_at
    assert [preemption.gang for preemption in new_plan.preempt] == ["low"]
    assert cluster.now - T0 < seconds(180)


@pytest.mark.parametrize(
    ("took", "limit_s", "waits"),
    [((20.0,) * 9 + (5000.0,) * 3, None, False), ((), 35.0, True), ((), 900.0, False)],
)
def test_preemptor_waits_for_certain_ends_only(
    took: tuple[float, ...], limit_s: float | None, waits: bool
) -> None:
    """Most similar runs take 20 s, some far longer; a run with a time limit certainly ends by then."""
    low = running_on("low", "n", (0, 1, 2, 3), ran_s=5, priority=10, limit_s=limit_s)
    cluster = make_cluster(tree(queue("default")), {"n": 4}, low, pending=(gang("g", 4, priority=90),))
    cluster.durations = {"all": took} if took else {}
    assert preempted_gangs(cluster) == (set() if waits else {"low"})


@pytest.mark.parametrize("most", [None, 5])
def test_no_preemption_for_capacity_that_a_third_gang_may_take(most: int | None) -> None:
    """`large` needs three GPUs: the free ones of n and o plus that of `low`, or those of n once `equal` ends,
    which is expected in 3 s but not certain. If `low` were preempted and only n reserved, `small` would take
    the GPU of o. If `equal` then overran, `small` would be preempted next, `low` would take its GPU, and so
    on. most: the maximum of the queue, which `large` meets only after `low` has ended."""
    cluster = make_cluster(
        tree(queue("default", maximum=most)),
        {"n": 3, "m": 1, "o": 1},
        running_on("equal", "n", (0, 1), ran_s=17, priority=50),
        running_on("low", "m", (0,), ran_s=5, priority=10),
        pending=(gang("large", 1, replicas=3, priority=50), gang("small", 1, priority=10)),
    )
    cluster.durations = {"all": (20.0,) * 9 + (5000.0,) * 3}
    asked_to_leave: list[str] = []
    for _ in range(6):  # at one instant: every victim ends at once
        new_plan = cluster.run_cycle()
        asked_to_leave += [preemption.gang for preemption in new_plan.preempt]
        for preemption in new_plan.preempt:
            cluster.evict(preemption.gang)
    assert len(asked_to_leave) == len(set(asked_to_leave)), asked_to_leave
    assert not asked_to_leave or "large" in cluster.running


def test_no_preemption_for_quota_that_a_third_gang_may_take() -> None:
    """The queue may use three GPUs, all of which `large` needs, and n is free once `equal` ends.

    `low` is expected to end in 15 s, but not certainly. If `large` waited for it, `small` would start with
    the rest of the quota and be preempted next.
    """
    cluster = make_cluster(
        tree(queue("default", maximum=3)),
        {"n": 3, "m": 1},
        running_on("equal", "n", (0, 1), ran_s=17, priority=50),
        running_on("low", "m", (0,), ran_s=5, priority=10),
        pending=(gang("large", 3, priority=50), gang("small", 1, priority=10)),
    )
    cluster.durations = {"all": (20.0,) * 9 + (5000.0,) * 3}
    assert preempted_gangs(cluster) == set()
    cluster.finish(GangId("equal"))
    assert preempted_gangs(cluster) == {"low"}
    cluster.evict(GangId("low"))
    assert [placement.gang.id for placement in cluster.run_cycle().place] == ["large"]


def test_freed_capacity_is_reserved_for_its_preemptor_only() -> None:
    """`early` was promised the GPU of `low` one minute later, because `low` was expected to end soon.

    It overran, which leaves time for `short`.
    """
    cluster = make_cluster(
        tree(queue("root"), queue("a", "root"), queue("b", "root")),
        {"n": 1},
        running_on("low", "n", (0,), ran_s=5, priority=10, queue="b"),
        pending=(gang("early", 1, queue="a"),),
    )
    cluster.durations = {"all": (20.0,) * 10}
    assert preempted_gangs(cluster) == set() and "early" in cluster.promises
    cluster.now += seconds(22)
    cluster.submit(gang("short", 1, queue="b", at=22, limit_s=10))
    assert preempted_gangs(cluster) == {"low"}
    cluster.evict(GangId("low"))
    new_plan = cluster.run_cycle()
    assert [placement.gang.id for placement in new_plan.place] == ["short"]
    assert not new_plan.breaches


def test_preemptor_reserves_all_nodes_that_its_victims_free() -> None:
    """Once `equal` is expected to end as soon as the victims, n alone would suffice for `wide` if that came
    true."""
    cluster = make_cluster(
        tree(queue("default")),
        {"n": 2, "o": 1},
        running_on("low0", "n", (0,), ran_s=5, priority=10),
        running_on("equal", "n", (1,), ran_s=14.5, priority=50),
        running_on("low1", "o", (0,), ran_s=5, priority=10),
        pending=(gang("wide", 1, replicas=2, priority=50),),
    )
    cluster.durations = {"all": (20.0,) * 9 + (5000.0,) * 3}
    assert preempted_gangs(cluster) == {"low0", "low1"}
    cluster.now += seconds(1)
    assert preempted_gangs(cluster) == set()
    assert cluster.promises[GangId("wide")].nodes == ("n", "o")


@pytest.mark.parametrize("grace_s", [5.0, 60.0, 600.0])
def test_preemptor_is_not_late_before_the_victims_grace_ends(grace_s: float) -> None:
    low = running_on("low", "n", (0, 1, 2, 3), ran_s=5, priority=10)
    cluster = make_cluster(tree(queue("default")), {"n": 4}, low, pending=(gang("g", 4, priority=90),))
    cluster.grace_s = grace_s
    assert preempted_gangs(cluster) == {"low"}
    promise = cluster.promises[GangId("g")]
    assert promise.has_preempted and seconds(grace_s) < promise.start_at - T0 <= seconds(
        max(grace_s, 60) + 10
    )
    for at_s in (grace_s / 2, grace_s - 1, grace_s):
        cluster.now = T0 + seconds(at_s)
        new_plan = cluster.run_cycle()
        assert not new_plan.breaches and not new_plan.preempt
        assert cluster.promises[GangId("g")] == promise
    cluster.submit(gang("thief", 4, priority=90, at=grace_s))
    cluster.evict(GangId("low"))
    assert [placement.gang.id for placement in cluster.run_cycle().place] == ["g"]


def test_victim_beyond_its_grace_still_frees_capacity_for_its_preemptor() -> None:
    low = running_on("low", "n", (0, 1, 2, 3), ran_s=5, priority=10)
    cluster = make_cluster(tree(queue("default")), {"n": 4}, low, pending=(gang("g", 4, priority=90),))
    assert preempted_gangs(cluster) == {"low"}
    cluster.now += seconds(100)
    assert [breach.gang for breach in cluster.run_cycle().breaches] == ["g"]
    cluster.submit(gang("thief", 4, priority=90, at=100))
    cluster.evict(GangId("low"))
    assert [placement.gang.id for placement in cluster.run_cycle().place] == ["g"]


@pytest.mark.parametrize("grace_s", [60.0, 600.0])
def test_long_grace_does_not_make_preemptors_wait_for_later_ends(grace_s: float) -> None:
    """Eight runs end by themselves, one every 500 s; eight gangs of higher priority need not wait for
    that."""
    nodes = {f"n{i}": 1 for i in range(8)}
    runs = [
        running_on(f"low{i}", f"n{i}", (0,), ran_s=100, priority=10, limit_s=600 + 500 * i) for i in range(8)
    ]
    cluster = make_cluster(
        tree(queue("default")), nodes, *runs, pending=tuple(gang(f"g{i}", 1, priority=90) for i in range(8))
    )
    cluster.grace_s = grace_s
    for _ in range(20):
        cluster.run_cycle()
        for gang_id in [run.gang.id for run in cluster.running.values() if run.stopping]:
            cluster.evict(gang_id)
        cluster.now += seconds(1)
    assert set(cluster.running) == {f"g{i}" for i in range(8)}


def test_elastic_gang_preempts_for_its_smallest_size_only() -> None:
    runs = [running_on(f"low{i}", "n", (i,), ran_s=10 + i, priority=10) for i in range(4)]
    cluster = make_cluster(
        tree(queue("default")),
        {"n": 4},
        *runs,
        pending=(gang("g", 1, replicas=4, min_replicas=2, priority=90),),
    )
    assert preempted_gangs(cluster) == {"low0", "low1"}


def test_cpu_work_counts_by_its_share_of_the_cluster() -> None:
    nodes = [machine("n", 4, cpus=40)]
    share = Placement(gang("c", 0, cpus=10), (Assignment(0, NodeId("n")),))
    assert gpu_weight_of(nodes)(share) == 1000  # a quarter of all cores weighs as much as one of four GPUs
    assert gpu_weight_of([machine("n", 0, cpus=40)])(share) == 10000
    assert gpu_weight_of(nodes)(running_on("g", "n", (0, 1)).placement) == 2000


@pytest.mark.parametrize(("saved_s", "expected_s"), [(None, 100.0), (40, 40.0), (400, 100.0)])
def test_unsaved_work_is_the_time_since_the_last_checkpoint(saved_s: float | None, expected_s: float) -> None:
    run = running_on("g", "n", (0, 1), ran_s=100, saved_s=saved_s)
    assert unsaved_gpu_seconds(run, T0, gpu_weight_of([machine("n", 4)])) == 2000 * expected_s * 1000
    assert (
        unsaved_gpu_seconds(
            replace(run, started_at=None, saved_at=None), T0, gpu_weight_of([machine("n", 4)])
        )
        == 0
    )
    # a clock went back
    assert unsaved_gpu_seconds(run, T0 - seconds(1000), gpu_weight_of([machine("n", 4)])) == 0


@st.composite
def crowded_clusters(draw: st.DrawFn) -> ClusterModel:
    """Two queues on one or two full nodes, and one pending gang."""
    sizes = draw(st.lists(st.sampled_from([1, 1, 2, 2, 3]), min_size=1, max_size=6))
    runs, at = [], {"n": 0, "m": 0}
    for index, size in enumerate(sizes):
        node = draw(st.sampled_from(["n", "m"]))
        if at[node] + size > 4:
            continue
        runs.append(
            running_on(
                f"r{index}",
                node,
                tuple(range(at[node], at[node] + size)),
                ran_s=draw(st.integers(0, 50)),
                queue=draw(st.sampled_from(["a", "a", "b"])),
                priority=draw(st.sampled_from([10, 50])),
                preemptible=draw(st.integers(0, 5)) > 0,
            )
        )
        at[node] += size
    queues = tree(
        queue("root"),
        queue("a", "root", guarantee=draw(st.integers(0, 4)), maximum=draw(st.sampled_from([None, 4, 6]))),
        queue("b", "root", guarantee=draw(st.integers(0, 4))),
    )
    waiting = gang(
        "g",
        draw(st.integers(1, 4)),
        replicas=draw(st.sampled_from([1, 1, 2])),
        queue=draw(st.sampled_from(["a", "b"])),
        cpus=0,
    )
    return make_cluster(queues, {"n": 4, "m": 4}, *runs, pending=(waiting,))


def cheapest_victims(
    waiting: Gang, victims: list[Victim], capacity: Capacity, accounts: QuotaUsage
) -> int | None:
    """Returns the cheapest sufficient set of victims, by trying every set."""
    costs = []
    for count in range(len(victims) + 1):
        for chosen in combinations(victims, count):
            free, after = capacity.copy(), accounts.copy()
            for victim in chosen:
                free.release(victim.running.placement)
                after.credit(victim.running.placement)
            if (
                after.refusal(waiting) is None
                and free.place(waiting, closed_models=after.closed_models(waiting)) is not None
            ):
                costs.append(sum(victim.unsaved_work for victim in chosen))
    return min(costs, default=None)


@settings(max_examples=100, deadline=None)
@given(crowded_clusters())
def test_chosen_victims_lose_the_least_work(cluster: ClusterModel) -> None:
    snapshot = cluster.snapshot()
    cluster_state = ClusterState(snapshot)
    waiting = snapshot.pending[0]
    preemptor = Preemptor(cluster_state, cluster_state.capacity, cluster_state.quota_usage)
    victims = preemptor.candidate_victims(waiting)
    assume(victims)
    chosen = preemptor.find_victims(waiting, victims)
    best = cheapest_victims(waiting, victims, cluster_state.capacity, cluster_state.quota_usage)
    if chosen is None:
        fits = (
            cluster_state.quota_usage.refusal(waiting) is None
            and cluster_state.capacity.place(waiting) is not None
        )
        assert best is None or fits
        return
    costs = {victim.running.gang.id: victim.unsaved_work for victim in victims}
    assert sum(costs[run.gang.id] for run in chosen[0]) == best
    for run in chosen[0]:  # and each of them is necessary
        rest = [victim for victim in victims if victim.running in chosen[0] and victim.running is not run]
        assert preemptor.find_victims(waiting, rest) is None


@settings(max_examples=100, deadline=None)
@given(crowded_clusters())
def test_only_borrowed_usage_is_reclaimed(
    cluster: ClusterModel,
) -> None:
    assume(all(run.gang.preemptible for run in cluster.running.values()))
    snapshot = cluster.snapshot()
    cluster_state = ClusterState(snapshot)
    waiting = snapshot.pending[0]
    victims = Preemptor(cluster_state, cluster_state.capacity, cluster_state.quota_usage).candidate_victims(
        waiting
    )
    taken = [victim.running for victim in victims if victim.running.gang.queue != waiting.queue]
    remaining = [run for run in snapshot.running if run not in taken]
    for name in {run.gang.queue for run in taken}:
        sure = snapshot.queues.queues[name].guarantee.get(GPU, 0)
        use = [
            sum(1000 * len(a.gpus) for a in run.placement.assignments)
            for run in remaining
            if run.gang.queue == name
        ]
        assert sum(use) <= sure
        for run in taken:  # without it the guarantee would be used up or less; with it, it is not
            size = sum(1000 * len(a.gpus) for a in run.placement.assignments)
            assert run.gang.queue != name or sum(use) + size > sure


@settings(max_examples=40, deadline=None)
@given(crowded_clusters())
def test_victim_search_changes_no_state(cluster: ClusterModel) -> None:
    cluster_state = ClusterState(cluster.snapshot())
    waiting = cluster.snapshot().pending[0]
    capacity, usage = cluster_state.capacity.copy(), cluster_state.quota_usage.copy()
    preemptor = Preemptor(cluster_state, cluster_state.capacity, cluster_state.quota_usage)
    preemptor.find_victims(waiting, preemptor.candidate_victims(waiting))
    again = Preemptor(cluster_state, cluster_state.capacity, cluster_state.quota_usage)
    assert preemptor.find_victims(waiting, preemptor.candidate_victims(waiting)) == again.find_victims(
        waiting, again.candidate_victims(waiting)
    )
    assert cluster_state.quota_usage == usage
    for gpus in range(5):
        assert cluster_state.capacity.place(gang("x", gpus)) == capacity.place(gang("x", gpus))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([1, 1, 2, 4]), max_size=16),
    st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=4),
)
def test_guaranteed_gangs_run_despite_borrowers(borrowing: list[int], requested: list[int]) -> None:
    """On one node only borrowers are in the way: after two cycles all guaranteed gangs run."""
    sure = tree(queue("root"), queue("a", "root", guarantee=0), queue("b", "root", guarantee=8))
    cluster = ClusterModel({NodeId("n"): machine("n", 16)}, sure)
    cluster.submit(*(gang(f"a{i}", size, queue="a", cpus=0, priority=99) for i, size in enumerate(borrowing)))
    cluster.run_cycle()
    cluster.now += seconds(100)
    total, mine = 0, []
    for i, size in enumerate(requested):
        if total + size <= 8:
            total += size
            mine.append(gang(f"b{i}", size, queue="b", cpus=0, at=100 + i, priority=0))
    cluster.submit(*mine)
    for _ in range(2 * len(mine)):
        cluster.run_cycle()
        for gang_id in [run.gang.id for run in cluster.running.values() if run.stopping]:
            cluster.evict(gang_id)
    assert {own_gang.id for own_gang in mine} <= cluster.running.keys()


@st.composite
def lending_trees(draw: st.DrawFn) -> QueueTree:
    """Queues and teams of two whose guarantees fit, with lend limits."""
    sure, lend = st.sampled_from([None, 1, 2, 3]), st.sampled_from([None, None, 0, 1, 2])
    result = [queue("root")]
    for name in ("a", "b", "c")[: draw(st.integers(2, 3))]:
        if draw(st.booleans()):
            result.append(queue(name, "root", guarantee=draw(sure), lend=draw(lend)))
            continue
        inner = [draw(sure), draw(sure)]
        total = sum(amount or 0 for amount in inner)
        result.append(
            queue(name, "root", guarantee=draw(st.sampled_from([None, total, total + 1])), lend=draw(lend))
        )
        result += [
            queue(f"{name}{number}", name, guarantee=one, lend=draw(lend)) for number, one in enumerate(inner)
        ]
    return tree(*result)


@settings(max_examples=80, deadline=None)
@given(
    lending_trees(),
    st.integers(0, 1),
    st.lists(st.integers(0, 5), max_size=16),
    st.integers(0, 5),
    st.integers(1, 2),
)
def test_guarantee_is_reclaimed_from_any_borrower_in_any_order(
    queues: QueueTree, extra: int, arrivals: list[int], wants: int, gpus: int
) -> None:
    named = leaf_queues(queues)
    gpu_count = max(1, guaranteed_amounts(queues)[QueueName("root")].get(GPU, 0) // 1000 + extra)
    node, runs = machine("n", gpu_count), list[Running]()

    def books() -> QuotaUsage:
        return QuotaUsage.of(queues, [node], runs, {}, T0)

    for number, which in enumerate(arrivals):
        if (
            len(runs) < gpu_count
            and books().refusal(gang("next", 1, queue=(leaf := named[which % len(named)]), cpus=0)) is None
        ):
            runs.append(running_on(f"r{number}", "n", (len(runs),), ran_s=1000 - number, queue=leaf))
    waiting = gang("waits", gpus, queue=named[wants % len(named)], cpus=0)
    assume(books().find_lender(waiting)[0] is not None)
    cluster = make_cluster(queues, {"n": gpu_count}, *runs, pending=(waiting,))
    for preemption in cluster.run_cycle().preempt:
        cluster.evict(preemption.gang)
    cluster.run_cycle()
    assert waiting.id in cluster.running


@pytest.mark.parametrize("first", ["vision", "data"])
def test_queue_reclaims_only_resources_of_its_guarantee(first: str) -> None:
    """`vision` has both GPUs guaranteed, `data` four of 64 CPUs; a run of each requests 2 GPUs and a CPU."""
    queues = tree(
        replace(queue("vision"), guarantee={GPU: 2000}), replace(queue("data"), guarantee={CPU: 4000})
    )
    cluster = ClusterModel({node.id: node for node in [machine("n", 2)]}, queues)
    second = "data" if first == "vision" else "vision"
    cluster.submit(gang(first, 2, queue=first))
    cluster.run_cycle()
    cluster.now += seconds(1000)
    cluster.submit(gang(second, 2, queue=second, user="bob"))
    preempted_gangs = []
    for _ in range(4):
        victims = [preemption.gang for preemption in cluster.run_cycle().preempt]
        preempted_gangs += victims
        cluster.now += seconds(100)
        for victim in victims:
            cluster.evict(victim)
    assert preempted_gangs == ([] if first == "vision" else ["data"])
    assert [*cluster.running] == ["vision"]
