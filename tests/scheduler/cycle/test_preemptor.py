"""Who makes room: as few GPU-seconds as any set of runs that would do, and only by right."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hopyard.domain.cluster import HoldReason, Running
from hopyard.domain.effective_limits import guaranteed_amounts
from hopyard.domain.gang import Assignment, Gang, Placement
from hopyard.domain.ids import AttemptId, GangId, NodeId, QueueName
from hopyard.domain.queue import CPU, GPU, QueueTree
from hopyard.scheduler.cycle.cluster_state import ClusterState
from hopyard.scheduler.cycle.preemptor import Preemptor
from hopyard.scheduler.cycle.victim_search import Victim, gpu_weight_of, unsaved_gpu_seconds
from hopyard.scheduler.placement.capacity import Capacity
from hopyard.scheduler.quota.quota_usage import QuotaUsage
from tests.scheduler.worlds import T0, World, gang, leaves, machine, queue, seconds, tree

SHARED = tree(queue("root"), queue("a", "root", sure=4), queue("b", "root", sure=4))


def held(
    name: str,
    node: str,
    gpus: tuple[int, ...],
    *,
    ran_s: float = 100,
    saved_s: float | None = None,
    **more: object,
) -> Running:
    """A run that holds these GPUs, began `ran_s` ago and was saved `saved_s` ago."""
    one = gang(name, len(gpus), cpus=0, **more)  # type: ignore[arg-type]
    placement = Placement(one, (Assignment(0, NodeId(node), gpus),))
    saved = None if saved_s is None else T0 - seconds(saved_s)
    return Running(placement, T0 - seconds(ran_s), AttemptId(f"{name}.1"), T0 - seconds(ran_s), saved)


def world(queues: QueueTree, nodes: dict[str, int], *runs: Running, pending: tuple[Gang, ...] = ()) -> World:
    found = World({NodeId(name): machine(name, gpus) for name, gpus in nodes.items()}, queues)
    found.running = {run.gang.id: run for run in runs}
    found.originals = {run.gang.id: run.gang for run in runs}
    found.attempts.update({run.gang.id: 1 for run in runs})
    found.submit(*pending)
    return found


def asked(found: World) -> set[str]:
    return {preemption.gang for preemption in found.turn().preempt}


def test_the_one_who_loses_least_makes_room() -> None:
    runs = [held("old", "n", (0, 1), ran_s=900, priority=10), held("new", "n", (2, 3), ran_s=30, priority=10)]
    assert asked(world(tree(queue("default")), {"n": 4}, *runs, pending=(gang("g", 2, priority=90),))) == {
        "new"
    }


def test_a_run_that_was_preempted_before_is_asked_after_others() -> None:
    runs = [
        held("back", "n", (0, 1), ran_s=1, priority=10),
        held("other", "n", (2, 3), ran_s=300, priority=10),
    ]
    again = replace(runs[0], placement=replace(runs[0].placement, gang=replace(runs[0].gang, preemptions=1)))
    pending = (gang("g", 2, priority=90),)
    assert asked(world(tree(queue("default")), {"n": 4}, *runs, pending=pending)) == {"back"}
    assert asked(world(tree(queue("default")), {"n": 4}, again, runs[1], pending=pending)) == {"other"}


def test_what_is_saved_is_not_lost() -> None:
    runs = [
        held("old", "n", (0, 1), ran_s=900, saved_s=5, priority=10),
        held("new", "n", (2, 3), ran_s=30, priority=10),
    ]
    assert asked(world(tree(queue("default")), {"n": 4}, *runs, pending=(gang("g", 2, priority=90),))) == {
        "old"
    }


def test_one_large_run_rather_than_many_small_ones_that_lose_more() -> None:
    small = [held(f"s{i}", "n", (i,), ran_s=50, priority=10) for i in range(4)]
    large = held("large", "m", (0, 1, 2, 3), ran_s=30, priority=10)
    assert asked(
        world(tree(queue("default")), {"n": 4, "m": 4}, *small, large, pending=(gang("g", 4, priority=90),))
    ) == {"large"}


def test_nobody_makes_room_for_an_equal() -> None:
    runs = [held("one", "n", (0, 1))]
    found = world(tree(queue("default")), {"n": 2}, *runs, pending=(gang("g", 2),))
    assert asked(found) == set()


def test_nobody_makes_room_where_it_would_not_help() -> None:
    runs = [held("low", "n", (0,), priority=10), held("high", "n", (1,), priority=90)]
    found = world(tree(queue("default")), {"n": 2}, *runs, pending=(gang("g", 2, priority=50),))
    wanted = found.turn()
    assert not wanted.preempt
    assert wanted.hold[0].reason is HoldReason.NO_CAPACITY


def test_nobody_makes_room_who_may_not_be_preempted() -> None:
    runs = [held("sure", "n", (0, 1), priority=10, preemptible=False)]
    assert (
        asked(world(tree(queue("default")), {"n": 2}, *runs, pending=(gang("g", 2, priority=90),))) == set()
    )


def test_a_queue_takes_back_what_it_lent_and_no_more() -> None:
    runs = [held(f"a{i}", "n", (i,), ran_s=100 - i, queue="a") for i in range(8)]
    found = world(SHARED, {"n": 8}, *runs, pending=tuple(gang(f"b{i}", 1, queue="b", at=i) for i in range(6)))
    assert asked(found) == {"a4", "a5", "a6", "a7"}


def test_the_lender_is_named_who_is_sure_of_it() -> None:
    """Which is the team here: its queue is sure of one GPU only, and its run asks for two."""
    tree_of_teams = tree(
        queue("root"),
        queue("team", "root", sure=4),
        queue("one", "team", sure=1),
        queue("two", "team"),
        queue("other", "root"),
    )
    runs = [held(f"o{i}", "n", (i,), queue="other") for i in range(4)]
    found = world(tree_of_teams, {"n": 4}, *runs, pending=(gang("g", 2, queue="one"),))
    reasons = {preemption.reason for preemption in found.turn().preempt}
    assert reasons == {"queue other uses more than its guarantee; run g reclaims what queue team lent"}


def test_a_queue_within_its_guarantee_gives_nothing_back() -> None:
    runs = [held(f"a{i}", "n", (i,), queue="a") for i in range(4)]
    assert asked(world(SHARED, {"n": 4}, *runs, pending=(gang("b", 1, queue="b"),))) == set()


def test_a_queue_that_would_borrow_takes_nothing_back() -> None:
    runs = [held(f"a{i}", "n", (i,), queue="a") for i in range(8)]
    assert asked(world(SHARED, {"n": 8}, *runs, pending=(gang("b", 5, queue="b"),))) == set()


def test_who_is_within_its_guarantee_waits_for_room_although_its_queue_keeps_some_of_it() -> None:
    """Not for its queue: that others hold what they borrowed forbids it nothing."""
    queues = tree(queue("root"), queue("a", "root", sure=4), queue("b", "root", sure=4, lend=2))
    runs = [held(f"a{i}", "n", (i,), queue="a", preemptible=False) for i in range(6)]
    within, beyond = gang("b4", 4, queue="b"), gang("a3", 3, queue="a")
    holds = world(queues, {"n": 8}, *runs, pending=(within, beyond)).turn().hold
    assert {hold.gang: hold.reason for hold in holds} == {
        "b4": HoldReason.NO_CAPACITY,
        "a3": HoldReason.QUOTA,
    }


@pytest.mark.parametrize(("lends", "leave"), [(0, {"g0", "g1", "g2"}), (1, {"g1", "g2", "g3"})])
def test_what_a_queue_keeps_of_the_guarantee_above_it_is_not_there_for_those_beside_it(
    lends: int, leave: set[str]
) -> None:
    queues = tree(
        queue("root"), queue("a", "root", sure=3), queue("team", "root"), queue("guest", "team"),
        queue("inner", "team", sure=3, lend=lends),
    )  # fmt: skip
    runs = [held(f"g{i}", "n", (i,), ran_s=100 - i, queue="guest") for i in range(3 + lends)]
    found = world(queues, {"n": 6}, *runs, pending=(gang("a3", 3, queue="a"),))
    assert asked(found) == leave
    for name in leave:
        found.leave(GangId(name))
    assert [placement.gang.id for placement in found.turn().place] == ["a3"]
    found.submit(gang("i2", 3 - lends, queue="inner"))
    wanted = found.turn()
    assert ([placement.gang.id for placement in wanted.place], wanted.preempt) == (["i2"], ())


@pytest.mark.parametrize("closed_cpus", [0, 512])
def test_who_is_cheaper_to_ask_does_not_depend_on_machines_that_are_closed(closed_cpus: int) -> None:
    """4 of 8 CPUs are as much as 2 of 4 GPUs: more than the one GPU that the other holds; of 520 CPUs they
    would be next to nothing."""
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
    found = world(
        tree(queue("default")), {}, on_cpus, on_gpu, pending=(gang("urgent", 0, cpus=4, priority=90),)
    )
    found.nodes = {NodeId("n"): machine("n", 4, cpus=8)}
    if closed_cpus:
        found.nodes[NodeId("z")] = replace(machine("z", 0, cpus=closed_cpus), cordoned=True)
    assert asked(found) == {"gpu"}


@pytest.mark.parametrize("lends", [None, 1, 0])
def test_what_came_first_within_a_team_does_not_hide_what_it_borrowed(lends: int | None) -> None:
    """`x` is sure of nothing, and came before `y`, which is sure of all that the team is."""
    queues = tree(
        queue("root"),
        queue("a", "root", sure=2),
        queue("team", "root"),
        queue("x", "team"),
        queue("y", "team", sure=1, lend=lends),
    )
    runs = [held("x1", "n", (0,), ran_s=500, queue="x"), held("y1", "n", (1,), ran_s=400, queue="y")]
    assert asked(world(queues, {"n": 3}, *runs, pending=(gang("a2", 2, queue="a"),))) == {"x1"}


def test_who_borrows_beside_a_keeper_does_not_start_before_who_is_sure_of_it() -> None:
    queues = tree(
        queue("root"),
        queue("z", "root", sure=3),
        queue("team", "root"),
        queue("guest", "team"),
        queue("inner", "team", sure=3, lend=0),
    )
    guests = [gang(f"g{i}", 1, queue="guest") for i in range(3)]
    found = world(queues, {"n": 6}, pending=(*guests, *(gang(f"z{i}", 1, queue="z", at=1) for i in range(3))))
    wanted = found.turn()
    assert [placement.gang.id for placement in wanted.place] == ["z0", "z1", "z2"]
    assert found.turn().preempt == ()
    found.submit(gang("i3", 3, queue="inner", at=2))
    assert [placement.gang.id for placement in found.turn().place] == ["i3"]


def test_a_queue_whose_runs_are_older_than_those_below_it_gives_back_what_it_borrowed() -> None:
    queues = tree(
        queue("root"),
        queue("a", "root", sure=3),
        queue("team", "root"),
        queue("guest", "team"),
        queue("inner", "team", sure=3, lend=0),
    )
    runs = [held(f"r{i}", "n", (i,), ran_s=100 - i, queue="team") for i in range(3)]
    assert asked(world(queues, {"n": 6}, *runs, pending=(gang("a3", 3, queue="a"),))) == {"r0", "r1", "r2"}


def test_who_waits_for_the_first_that_were_asked_asks_no_others() -> None:
    runs = [held(f"a{i}", "n", (i,), ran_s=100 - i, queue="a") for i in range(8)]
    found = world(SHARED, {"n": 8}, *runs, pending=(gang("b", 2, queue="b"),))
    assert asked(found) == {"a6", "a7"}
    for _ in range(3):
        found.now += seconds(1)
        wanted = found.turn()
        assert not wanted.preempt
        assert wanted.hold[0].reason is HoldReason.PREEMPTING
    found.leave(GangId("a6"))  # one of two
    found.submit(gang("thief", 1, queue="a", priority=99))
    assert not found.turn().place
    found.leave(GangId("a7"))
    assert [placement.gang.id for placement in found.turn().place] == ["b"]


def test_who_is_leaving_for_another_reason_is_waited_for() -> None:
    leaving = replace(held("a", "n", (0, 1), priority=10), stopping=True)
    runs = [leaving, held("b", "n", (2, 3), ran_s=1, priority=10)]
    assert (
        asked(world(tree(queue("default")), {"n": 4}, *runs, pending=(gang("g", 2, priority=90),))) == set()
    )


def test_what_was_expected_to_end_soon_and_did_not_is_asked_after_all() -> None:
    """Who ends soon as far as can be expected is not asked at first.
    Nothing happens when it goes on, so time alone has to be enough."""
    found = world(
        tree(queue("default")),
        {"n": 4},
        held("low", "n", (0, 1, 2, 3), ran_s=5, priority=10),
        pending=(gang("g", 4, priority=90),),
    )
    found.durations = {"all": (20.0,) * 10}
    assert asked(found) == set()
    for _ in range(8):
        wanted = found.turn()
        if wanted.preempt:
            break
        assert wanted.next_cycle_at is not None
        found.now = wanted.next_cycle_at
    assert [one.gang for one in wanted.preempt] == ["low"]
    assert found.now - T0 < seconds(180)


@pytest.mark.parametrize(
    ("took", "limit_s", "waits"),
    [((20.0,) * 9 + (5000.0,) * 3, None, False), ((), 35.0, True), ((), 900.0, False)],
)
def test_who_comes_first_waits_for_ends_that_are_sure_and_for_no_guess(
    took: tuple[float, ...], limit_s: float | None, waits: bool
) -> None:
    """Most runs alike take 20 s, but some take far longer; one with a time limit is gone by then."""
    low = held("low", "n", (0, 1, 2, 3), ran_s=5, priority=10, limit_s=limit_s)
    found = world(tree(queue("default")), {"n": 4}, low, pending=(gang("g", 4, priority=90),))
    found.durations = {"all": took} if took else {}
    assert asked(found) == (set() if waits else {"low"})


@pytest.mark.parametrize("most", [None, 5])
def test_nobody_is_asked_for_room_that_a_third_may_take(most: int | None) -> None:
    """`large` needs three cards: the free ones of n and o with that of `low`, or those of n alone once
    `equal` has ended, which is expected in 3 s, but not sure. Were `low` asked to leave and only n kept free,
    `small` would take o's; where `equal` went on, it would be asked next, `low` would take what it leaves,
    and so on in turn. most: that the queue may use, which `large` may only once `low` has left."""
    found = world(
        tree(queue("default", most=most)),
        {"n": 3, "m": 1, "o": 1},
        held("equal", "n", (0, 1), ran_s=17, priority=50),
        held("low", "m", (0,), ran_s=5, priority=10),
        pending=(gang("large", 1, replicas=3, priority=50), gang("small", 1, priority=10)),
    )
    found.durations = {"all": (20.0,) * 9 + (5000.0,) * 3}
    asked_to_leave: list[str] = []
    for _ in range(6):  # at one instant: whoever is asked leaves at once
        wanted = found.turn()
        asked_to_leave += [one.gang for one in wanted.preempt]
        for one in wanted.preempt:
            found.leave(one.gang)
    assert len(asked_to_leave) == len(set(asked_to_leave)), asked_to_leave
    assert not asked_to_leave or "large" in found.running


def test_nobody_is_asked_for_a_share_of_the_queue_that_a_third_may_take() -> None:
    """The queue may use three cards, which `large` needs, and n is free once `equal` has ended. That `low`
    ends in 15 s is expected, but not sure: were it waited for, `small` would start with what is left of the
    queue's share, and be asked next."""
    found = world(
        tree(queue("default", most=3)),
        {"n": 3, "m": 1},
        held("equal", "n", (0, 1), ran_s=17, priority=50),
        held("low", "m", (0,), ran_s=5, priority=10),
        pending=(gang("large", 3, priority=50), gang("small", 1, priority=10)),
    )
    found.durations = {"all": (20.0,) * 9 + (5000.0,) * 3}
    assert asked(found) == set()
    found.end(GangId("equal"))
    assert asked(found) == {"low"}
    found.leave(GangId("low"))
    assert [placement.gang.id for placement in found.turn().place] == ["large"]


def test_what_was_left_for_one_is_not_for_another_who_was_to_start_after_it() -> None:
    """`early` was promised the card of `low` for a minute from then, since it was to end soon, but did not:
    that leaves time for `short`."""
    found = world(
        tree(queue("root"), queue("a", "root"), queue("b", "root")),
        {"n": 1},
        held("low", "n", (0,), ran_s=5, priority=10, queue="b"),
        pending=(gang("early", 1, queue="a"),),
    )
    found.durations = {"all": (20.0,) * 10}
    assert asked(found) == set() and "early" in found.promises
    found.now += seconds(22)
    found.submit(gang("short", 1, queue="b", at=22, limit_s=10))
    assert asked(found) == {"low"}
    found.leave(GangId("low"))
    wanted = found.turn()
    assert [placement.gang.id for placement in wanted.place] == ["short"]
    assert not wanted.breaches


def test_who_others_leave_for_counts_on_all_nodes_that_they_leave() -> None:
    """Once `equal` is expected to end as soon as those who were asked, n would be enough for `wide`, if that
    came true."""
    found = world(
        tree(queue("default")),
        {"n": 2, "o": 1},
        held("low0", "n", (0,), ran_s=5, priority=10),
        held("equal", "n", (1,), ran_s=14.5, priority=50),
        held("low1", "o", (0,), ran_s=5, priority=10),
        pending=(gang("wide", 1, replicas=2, priority=50),),
    )
    found.durations = {"all": (20.0,) * 9 + (5000.0,) * 3}
    assert asked(found) == {"low0", "low1"}
    found.now += seconds(1)
    assert asked(found) == set()
    assert found.promises[GangId("wide")].nodes == ("n", "o")


@pytest.mark.parametrize("grace_s", [5.0, 60.0, 600.0])
def test_who_others_leave_for_is_not_late_before_their_grace_is_over(grace_s: float) -> None:
    low = held("low", "n", (0, 1, 2, 3), ran_s=5, priority=10)
    found = world(tree(queue("default")), {"n": 4}, low, pending=(gang("g", 4, priority=90),))
    found.grace_s = grace_s
    assert asked(found) == {"low"}
    promise = found.promises[GangId("g")]
    assert promise.has_preempted and seconds(grace_s) < promise.start_at - T0 <= seconds(
        max(grace_s, 60) + 10
    )
    for at_s in (grace_s / 2, grace_s - 1, grace_s):
        found.now = T0 + seconds(at_s)
        wanted = found.turn()
        assert not wanted.breaches and not wanted.preempt
        assert found.promises[GangId("g")] == promise
    found.submit(gang("thief", 4, priority=90, at=grace_s))
    found.leave(GangId("low"))
    assert [placement.gang.id for placement in found.turn().place] == ["g"]


def test_who_takes_longer_than_its_grace_still_leaves_for_whom_it_was_asked() -> None:
    low = held("low", "n", (0, 1, 2, 3), ran_s=5, priority=10)
    found = world(tree(queue("default")), {"n": 4}, low, pending=(gang("g", 4, priority=90),))
    assert asked(found) == {"low"}
    found.now += seconds(100)
    assert [breach.gang for breach in found.turn().breaches] == ["g"]
    found.submit(gang("thief", 4, priority=90, at=100))
    found.leave(GangId("low"))
    assert [placement.gang.id for placement in found.turn().place] == ["g"]


@pytest.mark.parametrize("grace_s", [60.0, 600.0])
def test_nobody_waits_for_one_run_that_ends_later_because_runs_may_take_long_to_leave(grace_s: float) -> None:
    """Eight runs end by themselves, one every 500 s; eight gangs that come before them need not wait for
    that."""
    nodes = {f"n{i}": 1 for i in range(8)}
    runs = [held(f"low{i}", f"n{i}", (0,), ran_s=100, priority=10, limit_s=600 + 500 * i) for i in range(8)]
    found = world(
        tree(queue("default")), nodes, *runs, pending=tuple(gang(f"g{i}", 1, priority=90) for i in range(8))
    )
    found.grace_s = grace_s
    for _ in range(20):
        found.turn()
        for one in [run.gang.id for run in found.running.values() if run.stopping]:
            found.leave(one)
        found.now += seconds(1)
    assert set(found.running) == {f"g{i}" for i in range(8)}


def test_an_elastic_gang_asks_for_its_smallest_size_only() -> None:
    runs = [held(f"low{i}", "n", (i,), ran_s=10 + i, priority=10) for i in range(4)]
    found = world(
        tree(queue("default")), {"n": 4}, *runs, pending=(gang("g", 1, replicas=4, fewest=2, priority=90),)
    )
    assert asked(found) == {"low0", "low1"}


def test_work_on_cpus_counts_by_its_part_of_the_cluster() -> None:
    nodes = [machine("n", 4, cpus=40)]
    share = Placement(gang("c", 0, cpus=10), (Assignment(0, NodeId("n")),))
    assert gpu_weight_of(nodes)(share) == 1000  # a quarter of all cores is one of four GPUs
    assert gpu_weight_of([machine("n", 0, cpus=40)])(share) == 10000
    assert gpu_weight_of(nodes)(held("g", "n", (0, 1)).placement) == 2000


@pytest.mark.parametrize(("saved_s", "expected_s"), [(None, 100.0), (40, 40.0), (400, 100.0)])
def test_what_is_lost_is_what_ran_since_it_was_saved(saved_s: float | None, expected_s: float) -> None:
    one = held("g", "n", (0, 1), ran_s=100, saved_s=saved_s)
    assert unsaved_gpu_seconds(one, T0, gpu_weight_of([machine("n", 4)])) == 2000 * expected_s * 1000
    assert (
        unsaved_gpu_seconds(
            replace(one, started_at=None, saved_at=None), T0, gpu_weight_of([machine("n", 4)])
        )
        == 0
    )
    # a clock went back
    assert unsaved_gpu_seconds(one, T0 - seconds(1000), gpu_weight_of([machine("n", 4)])) == 0


@st.composite
def crowds(draw: st.DrawFn) -> World:
    """Two queues on up to two nodes that are full, and one gang that waits."""
    sizes = draw(st.lists(st.sampled_from([1, 1, 2, 2, 3]), min_size=1, max_size=6))
    runs, at = [], {"n": 0, "m": 0}
    for index, size in enumerate(sizes):
        node = draw(st.sampled_from(["n", "m"]))
        if at[node] + size > 4:
            continue
        runs.append(
            held(
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
        queue("a", "root", sure=draw(st.integers(0, 4)), most=draw(st.sampled_from([None, 4, 6]))),
        queue("b", "root", sure=draw(st.integers(0, 4))),
    )
    waiting = gang(
        "g",
        draw(st.integers(1, 4)),
        replicas=draw(st.sampled_from([1, 1, 2])),
        queue=draw(st.sampled_from(["a", "b"])),
        cpus=0,
    )
    return world(queues, {"n": 4, "m": 4}, *runs, pending=(waiting,))


def cheapest_of_all(
    waiting: Gang, victims: list[Victim], capacity: Capacity, accounts: QuotaUsage
) -> int | None:
    """By trying every set."""
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
@given(crowds())
def test_no_set_of_runs_would_lose_less(found: World) -> None:
    snapshot = found.snapshot()
    standing = ClusterState(snapshot)
    waiting = snapshot.pending[0]
    preemptor = Preemptor(standing, standing.capacity, standing.quota_usage)
    victims = preemptor.candidate_victims(waiting)
    assume(victims)
    chosen = preemptor.find_victims(waiting, victims)
    best = cheapest_of_all(waiting, victims, standing.capacity, standing.quota_usage)
    if chosen is None:
        fits = standing.quota_usage.refusal(waiting) is None and standing.capacity.place(waiting) is not None
        assert best is None or fits
        return
    costs = {victim.running.gang.id: victim.unsaved_work for victim in victims}
    assert sum(costs[run.gang.id] for run in chosen[0]) == best
    for run in chosen[0]:  # and nobody of them could be spared
        rest = [victim for victim in victims if victim.running in chosen[0] and victim.running is not run]
        assert preemptor.find_victims(waiting, rest) is None


@settings(max_examples=100, deadline=None)
@given(crowds())
def test_only_what_was_borrowed_is_taken_back_and_its_queue_keeps_its_guarantee(found: World) -> None:
    assume(all(run.gang.preemptible for run in found.running.values()))
    snapshot = found.snapshot()
    standing = ClusterState(snapshot)
    waiting = snapshot.pending[0]
    victims = Preemptor(standing, standing.capacity, standing.quota_usage).candidate_victims(waiting)
    taken = [victim.running for victim in victims if victim.running.gang.queue != waiting.queue]
    kept = [run for run in snapshot.running if run not in taken]
    for name in {run.gang.queue for run in taken}:
        sure = snapshot.queues.queues[name].guarantee.get(GPU, 0)
        use = [
            sum(1000 * len(a.gpus) for a in run.placement.assignments)
            for run in kept
            if run.gang.queue == name
        ]
        assert sum(use) <= sure
        for run in taken:  # without it the guarantee would be used up or less; with it, it is not
            size = sum(1000 * len(a.gpus) for a in run.placement.assignments)
            assert run.gang.queue != name or sum(use) + size > sure


@settings(max_examples=40, deadline=None)
@given(crowds())
def test_what_was_only_looked_at_is_as_it_was(found: World) -> None:
    standing = ClusterState(found.snapshot())
    waiting = found.snapshot().pending[0]
    capacity, accounts = standing.capacity.copy(), standing.quota_usage.copy()
    preemptor = Preemptor(standing, standing.capacity, standing.quota_usage)
    preemptor.find_victims(waiting, preemptor.candidate_victims(waiting))
    again = Preemptor(standing, standing.capacity, standing.quota_usage)
    assert preemptor.find_victims(waiting, preemptor.candidate_victims(waiting)) == again.find_victims(
        waiting, again.candidate_victims(waiting)
    )
    assert standing.quota_usage == accounts
    for gpus in range(5):
        assert standing.capacity.place(gang("x", gpus)) == capacity.place(gang("x", gpus))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([1, 1, 2, 4]), max_size=16),
    st.lists(st.sampled_from([1, 2, 4]), min_size=1, max_size=4),
)
def test_who_is_within_its_guarantee_runs_whatever_others_borrow(
    borrowing: list[int], wanted: list[int]
) -> None:
    """On one node nothing is in the way but the borrower: after two turns all that the guarantee covers
    runs."""
    sure = tree(queue("root"), queue("a", "root", sure=0), queue("b", "root", sure=8))
    found = World({NodeId("n"): machine("n", 16)}, sure)
    found.submit(*(gang(f"a{i}", size, queue="a", cpus=0, priority=99) for i, size in enumerate(borrowing)))
    found.turn()
    found.now += seconds(100)
    total, mine = 0, []
    for i, size in enumerate(wanted):
        if total + size <= 8:
            total += size
            mine.append(gang(f"b{i}", size, queue="b", cpus=0, at=100 + i, priority=0))
    found.submit(*mine)
    for _ in range(2 * len(mine)):
        found.turn()
        for one in [run.gang.id for run in found.running.values() if run.stopping]:
            found.leave(one)
    assert {one.id for one in mine} <= found.running.keys()


@st.composite
def lending_trees(draw: st.DrawFn) -> QueueTree:
    """Queues and teams of two whose guarantees fit, with limits on what they lend."""
    sure, lend = st.sampled_from([None, 1, 2, 3]), st.sampled_from([None, None, 0, 1, 2])
    found = [queue("root")]
    for name in ("a", "b", "c")[: draw(st.integers(2, 3))]:
        if draw(st.booleans()):
            found.append(queue(name, "root", sure=draw(sure), lend=draw(lend)))
            continue
        inner = [draw(sure), draw(sure)]
        total = sum(one or 0 for one in inner)
        found.append(
            queue(name, "root", sure=draw(st.sampled_from([None, total, total + 1])), lend=draw(lend))
        )
        found += [
            queue(f"{name}{number}", name, sure=one, lend=draw(lend)) for number, one in enumerate(inner)
        ]
    return tree(*found)


@settings(max_examples=80, deadline=None)
@given(
    lending_trees(),
    st.integers(0, 1),
    st.lists(st.integers(0, 5), max_size=16),
    st.integers(0, 5),
    st.integers(1, 2),
)
def test_who_is_within_a_guarantee_gets_it_whoever_borrowed_it_and_in_which_order(
    queues: QueueTree, more: int, came: list[int], wants: int, gpus: int
) -> None:
    named = leaves(queues)
    there = max(1, guaranteed_amounts(queues)[QueueName("root")].get(GPU, 0) // 1000 + more)
    node, runs = machine("n", there), list[Running]()

    def books() -> QuotaUsage:
        return QuotaUsage.of(queues, [node], runs, {}, T0)

    for number, which in enumerate(came):
        if (
            len(runs) < there
            and books().refusal(gang("next", 1, queue=(leaf := named[which % len(named)]), cpus=0)) is None
        ):
            runs.append(held(f"r{number}", "n", (len(runs),), ran_s=1000 - number, queue=leaf))
    waiting = gang("waits", gpus, queue=named[wants % len(named)], cpus=0)
    assume(books().find_lender(waiting)[0] is not None)
    found = world(queues, {"n": there}, *runs, pending=(waiting,))
    for preemption in found.turn().preempt:
        found.leave(preemption.gang)
    found.turn()
    assert waiting.id in found.running


@pytest.mark.parametrize("first", ["vision", "data"])
def test_who_is_sure_of_other_things_takes_back_these_alone_and_nobody_takes_in_turn(first: str) -> None:
    """`vision` is sure of both GPUs, `data` of four of 64 CPUs; a run of each asks for 2 GPUs and a CPU."""
    queues = tree(
        replace(queue("vision"), guarantee={GPU: 2000}), replace(queue("data"), guarantee={CPU: 4000})
    )
    world = World({one.id: one for one in [machine("n", 2)]}, queues)
    second = "data" if first == "vision" else "vision"
    world.submit(gang(first, 2, queue=first))
    world.turn()
    world.now += seconds(1000)
    world.submit(gang(second, 2, queue=second, user="bob"))
    asked = []
    for _ in range(4):
        left = [preemption.gang for preemption in world.turn().preempt]
        asked += left
        world.now += seconds(100)
        for one in left:
            world.leave(one)
    assert asked == ([] if first == "vision" else ["data"])
    assert [*world.running] == ["vision"]
