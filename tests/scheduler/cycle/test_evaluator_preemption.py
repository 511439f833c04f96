"""Evaluators and the runs that they follow: none waits for the other."""

from __future__ import annotations

from typing import Any

import pytest

from hopyard.domain.gang import Gang, NodeSelector
from hopyard.domain.ids import GangId, NodeId, PoolName
from hopyard.scheduler.cycle.preemption_requests import GANG_SEARCH_BUDGET
from hopyard.scheduler.explain.preemption_messages import preemption_message
from tests.scheduler.cluster_model import gang, machine, queue, seconds, tree
from tests.scheduler.cycle.preemption_cluster import make_cluster, preempted_gangs, running_on

SHARED = tree(queue("root"), queue("a", "root", guarantee=4), queue("b", "root", guarantee=4))


@pytest.mark.parametrize("options", [{}, {"priority": 90}, {"queue": "b"}, {"preemptible": False}])
def test_evaluator_is_preempted_for_the_run_that_it_follows(options: dict[str, object]) -> None:
    evaluator = running_on("judge", "n", (0,), follows="train", **{"queue": "a", **options})
    other = running_on("other", "n", (1,), queue="a")
    train, stranger = gang("train", 1, queue="a"), gang("stranger", 1, queue="a")
    nodes = {"n": 2}
    assert preempted_gangs(make_cluster(SHARED, nodes, evaluator, other, pending=(stranger,))) == set()
    cluster = make_cluster(SHARED, nodes, evaluator, other, pending=(train,))
    (preemption,) = cluster.run_cycle().preempt
    assert (preemption.gang, preemption.for_gang) == ("judge", "train")
    assert preemption_message(preemption.cause) == ("it evaluates run train, which waits for its resources")


@pytest.mark.parametrize("count", [1, 12])
@pytest.mark.parametrize("others", [{}, {"queue": "b"}, {"user": "bob"}])
def test_runs_ahead_do_not_keep_an_evaluator_from_its_end(count: int, others: dict[str, Any]) -> None:
    """The evaluator waits for its run, which comes after runs that wait for the end of the evaluator."""
    judge = running_on("judge", "n", (0, 1), follows="train", queue="a")
    waiting = [gang(f"other{i}", 2, at=-100, **{"queue": "a", **others}) for i in range(count)]
    cluster = make_cluster(SHARED, {"n": 2}, judge, pending=(*waiting, gang("train", 2, queue="a")))
    (preemption,) = cluster.run_cycle().preempt
    assert (preemption.gang, preemption.for_gang) == ("judge", "train")
    cluster.now += seconds(5)
    assert not cluster.run_cycle().place
    cluster.evict(GangId("judge"))
    assert [placement.gang.id for placement in cluster.run_cycle().place] == ["train"]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("others", [{}, {"queue": "b"}, {"user": "bob"}])
def test_run_starts_beside_its_evaluator_before_a_larger_run_that_waits_for_both(
    count: int, others: dict[str, Any]
) -> None:
    """The larger run ahead waits for the end of the evaluator, which waits for its run."""
    judge = running_on("judge", "n", (0,), follows="train", queue="a")
    large = [gang(f"large{i}", 4, at=-100, **{"queue": "a", **others}) for i in range(count)]
    cluster = make_cluster(SHARED, {"n": 4}, judge, pending=tuple(large))
    assert not cluster.run_cycle().place
    cluster.now += seconds(5)
    cluster.submit(gang("train", 1, queue="a"))
    new_plan = cluster.run_cycle()
    assert not new_plan.preempt
    assert [placement.gang.id for placement in new_plan.place] == ["train"]
    assert [promise.gang for promise in new_plan.promises] == ["large0"]
    cluster.now += seconds(5)
    assert not cluster.run_cycle().place
    for ended in ("train", "judge"):
        cluster.finish(GangId(ended))
    assert [placement.gang.id for placement in cluster.run_cycle().place] == ["large0"]


def test_run_starts_beside_its_evaluator_before_a_larger_run_that_waits_for_their_quota() -> None:
    judge = running_on("judge", "n", (0,), follows="train", queue="a")
    queues = tree(queue("root"), queue("a", "root", maximum=4))
    large = gang("large", 4, at=-1000, queue="a")
    for name, expected in (("train", ["train"]), ("other", [])):
        cluster = make_cluster(queues, {"n": 8}, judge, pending=(large, gang(name, 1, queue="a")))
        new_plan = cluster.run_cycle()
        assert [placement.gang.id for placement in new_plan.place] == expected
        assert not new_plan.preempt


def test_run_starts_beside_its_evaluator_before_runs_that_come_after_a_larger_run() -> None:
    judge = running_on("judge", "n", (0,), follows="train", queue="a", limit_s=1000)
    waiting = [
        gang("large", 4, at=-100, queue="a", user="bob", limit_s=100),
        gang("medium", 2, at=-50, queue="a"),
    ]
    cluster = make_cluster(SHARED, {"n": 4}, judge, pending=tuple(waiting))
    assert [promise.gang for promise in cluster.run_cycle().promises] == ["large", "medium"]
    cluster.now += seconds(5)
    cluster.submit(gang("train", 3, queue="a"))
    assert [placement.gang.id for placement in cluster.run_cycle().place] == ["train"]


def test_promise_that_needs_no_evaluator_binds_its_run() -> None:
    """The larger run starts after the other run, also if the evaluator does not end before."""
    judge = running_on("judge", "n", (0,), follows="train", queue="a", limit_s=110)
    other = running_on("other", "n", (1, 2), queue="a", limit_s=200)
    large = gang("large", 5, at=-100, queue="a")
    cluster = make_cluster(SHARED, {"n": 6}, judge, other, pending=(large,))
    assert not cluster.run_cycle().place
    cluster.now += seconds(5)
    cluster.submit(gang("train", 2, queue="a"))
    new_plan = cluster.run_cycle()
    assert not new_plan.place
    assert not new_plan.preempt


def test_evaluator_stays_where_its_end_does_not_help() -> None:
    evaluator = running_on("judge", "n", (0,), follows="train", queue="a")
    large, small = gang("train", 3, queue="a"), gang("train", 1, queue="a")
    assert preempted_gangs(make_cluster(SHARED, {"n": 2}, evaluator, pending=(large,))) == set()
    assert preempted_gangs(make_cluster(SHARED, {"n": 2}, evaluator, pending=(small,))) == set()


def test_evaluator_that_follows_a_run_preempts_none() -> None:
    running = running_on("train", "n", (0,), queue="a", priority=10)
    for follows, expected in (("train", set()), ("other", set()), (None, {"train"})):
        judge = gang("judge", 1, queue="a", priority=90, follows=follows)
        assert preempted_gangs(make_cluster(SHARED, {"n": 1}, running, pending=(judge,))) == expected


def waiting_in_pool(pool: str, gpus: int, **options: Any) -> list[Gang]:
    """More gangs of different shapes than one cycle searches victims for."""
    where = NodeSelector((PoolName(pool),))
    return [
        gang(f"ahead{i}", gpus, cpus=1 + i / 100, user=f"u{i}", where=where, at=-100, **options)
        for i in range(GANG_SEARCH_BUDGET[1] + 20)
    ]


def test_gangs_that_may_preempt_nothing_use_no_searches_while_an_evaluator_runs() -> None:
    """Otherwise the gang that may preempt a run is not examined."""
    judge = running_on("judge", "n", (0,), follows="train", queue="a", priority=90)
    low = running_on("low", "n", (1,), queue="a", priority=10)
    full = running_on("full", "m", tuple(range(16)), queue="a", priority=90)
    queues = tree(queue("root"), queue("a", "root"), queue("b", "root"))
    ahead, high = waiting_in_pool("m", 1, queue="b"), gang("high", 1, queue="a", priority=80)
    cluster = make_cluster(queues, {"n": 2, "m": 16}, judge, low, full, pending=(*ahead, high))
    cluster.nodes[NodeId("m")] = machine("m", 16, pool="m")
    assert preempted_gangs(cluster) == {"low"}


def test_searches_for_gangs_ahead_do_not_keep_a_run_from_preempting_its_evaluator() -> None:
    judge = running_on("judge", "n", (0, 1), follows="train", queue="a", priority=90)
    low = running_on("low", "m", (0,), queue="a", priority=30)
    high = running_on("high", "m", (1,), queue="a", priority=90)
    ahead, train = waiting_in_pool("m", 2, queue="a", priority=80), gang("train", 2, queue="a", priority=20)
    queues = tree(queue("root"), queue("a", "root"))
    cluster = make_cluster(queues, {"n": 2, "m": 2}, judge, low, high, pending=(*ahead, train))
    cluster.nodes[NodeId("m")] = machine("m", 2, pool="m")
    assert preempted_gangs(cluster) == {"judge"}
