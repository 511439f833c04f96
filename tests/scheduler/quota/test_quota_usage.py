"""Small queue trees: refusals and their messages, reclaimable usage, and the order of queues."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from hopyard.domain.cluster import Node, Snapshot
from hopyard.domain.gang import Gang, Role
from hopyard.domain.ids import DEFAULT_QUEUE, GangId, NodeId, QueueName, Version
from hopyard.domain.queue import SINGLE_QUEUE_TREE, PastUsage, QueueTree
from hopyard.domain.quota_causes import QueueMaximumReached
from hopyard.domain.resources import Gpu, Resources
from hopyard.scheduler.explain.quota_messages import quota_message
from hopyard.scheduler.quota.admission import QuotaRefusal
from hopyard.scheduler.quota.queue_report import queue_report, user_report
from hopyard.scheduler.quota.quota_usage import QuotaUsage
from tests.scheduler.queue_trees import LARGE_NODE, T0, cluster, gang, queue, quota_usage, running, tree


def refusal_of(usage: QuotaUsage, gang: Gang) -> tuple[str, str, str] | None:
    result = usage.refusal(gang)
    return None if result is None else (result.reason, result.queue, quota_message(result.cause))


def test_maximum_holds_for_the_queue_and_its_ancestors() -> None:
    queues = tree(queue("top", maximum={"gpu": 6}), queue("a", "top", maximum={"gpu": 4}), queue("b", "top"))
    usage = quota_usage(queues, gang("1", "a", gpus=3), gang("2", "b", gpus=2))
    assert refusal_of(usage, gang("x", "a", gpus=1)) is None
    assert refusal_of(usage, gang("x", "a", gpus=2)) == (
        "quota",
        "a",
        "requests 2 GPUs; queue a uses 3 of at most 4 GPUs",
    )
    assert refusal_of(usage, gang("x", "b", gpus=2)) == (
        "quota",
        "top",
        "requests 2 GPUs; queue top uses 5 of at most 6 GPUs",
    )
    assert refusal_of(usage, gang("x", "b", cpus=100)) is None


def test_borrow_limit_counts_from_the_guarantee_of_the_queue_or_its_children() -> None:
    queues = tree(
        queue("top", borrow_limit={"gpu": 1}),
        queue("a", "top", guarantee={"gpu": 2}),
        queue("b", "top", guarantee={"gpu": 1}, borrow_limit={"gpu": 0}),
    )
    usage = quota_usage(queues, gang("1", "a", gpus=3))
    assert refusal_of(usage, gang("x", "b", gpus=1)) is None
    detail = "requests 2 GPUs; queue b uses 0 of its 1 GPU and may borrow 0 GPUs more"
    assert refusal_of(usage, gang("x", "b", gpus=2)) == ("quota", "b", detail)
    detail = "requests 2 GPUs; queue top uses 3 of its 3 GPUs and may borrow 1 GPU more"
    assert refusal_of(usage, gang("x", "a", gpus=2)) == ("quota", "top", detail)


def test_guarantee_by_gpu_model_counts_for_the_borrow_limit() -> None:
    usage = quota_usage(tree(queue("a", guarantee={"gpu:a100": 3}, borrow_limit={"gpu": 0})))
    detail = "requests 4 GPUs; queue a uses 0 of its 3 GPUs and may borrow 0 GPUs more"
    assert refusal_of(usage, gang("x", "a", gpus=4)) == ("quota", "a", detail)


def test_unlent_quota_is_kept_at_every_level_and_counted_once() -> None:
    queues = tree(
        queue("team", guarantee={"gpu": 6}, lend_limit={"gpu": 2}),  # keeps 4
        queue("a", "team", guarantee={"gpu": 3}, lend_limit={"gpu": 0}),  # keeps 3 of these
        queue("b", "team"),
        queue("other"),
    )
    usage = quota_usage(queues, gpus=8)
    assert refusal_of(usage, gang("x", "other", gpus=4)) is None
    detail = "requests 5 GPUs; queue other may use 4 GPUs more, the rest is not lent by a, team"
    assert refusal_of(usage, gang("x", "other", gpus=5)) == ("quota", "other", detail)
    # the team may use what it keeps, but not what `a` keeps
    assert refusal_of(usage, gang("x", "b", gpus=5)) is None
    assert refusal_of(usage, gang("x", "b", gpus=6)) is not None
    usage.charge(running(gang("1", "a", gpus=3)).placement)
    assert refusal_of(usage, gang("x", "other", gpus=4)) is None
    assert refusal_of(usage, gang("x", "other", gpus=5)) is not None
    usage.charge(running(gang("2", "b", gpus=2)).placement)
    assert refusal_of(usage, gang("x", "other", gpus=3)) is None
    assert refusal_of(usage, gang("x", "other", gpus=4)) is not None


def test_refusal_names_other_queues_when_all_quota_is_lent() -> None:
    queues = tree(queue("a", guarantee={"gpu": 2}, lend_limit={"gpu": 1}), queue("b"))
    usage = quota_usage(queues, gang("1", "a", gpus=4), gpus=4)
    detail = "requests 1 GPU; queue b may use 0 GPUs more, other queues use the rest"
    assert refusal_of(usage, gang("x", "b", gpus=1)) == ("quota", "b", detail)


def test_user_limit_holds_in_a_leaf_and_over_all_leaves_of_a_parent() -> None:
    queues = tree(
        queue("top", user_limit={"gpu": 3}), queue("a", "top", user_limit={"gpu": 2}), queue("b", "top")
    )
    usage = quota_usage(queues, gang("1", "a", gpus=2, user="ann"))
    detail = "requests 1 GPU; ann uses 2 of at most 2 GPUs for one user in queue a"
    assert refusal_of(usage, gang("x", "a", gpus=1, user="ann")) == ("user-limit", "a", detail)
    assert refusal_of(usage, gang("x", "a", gpus=1, user="bob")) is None
    assert refusal_of(usage, gang("x", "b", gpus=1, user="ann")) is None
    assert refusal_of(usage, gang("x", "b", gpus=2, user="ann")) == (
        "user-limit",
        "top",
        "requests 2 GPUs; ann uses 2 of at most 3 GPUs for one user in queue top",
    )


def test_removed_and_parent_queues_take_no_runs() -> None:
    queues = tree(queue("top"), queue("a", "top"), queue("b", "top"))
    usage = quota_usage(queues, gang("1", "gone", gpus=1))
    assert refusal_of(usage, gang("x", "gone")) == ("no-queue", "gone", "queue gone no longer exists")
    assert refusal_of(usage, gang("x", "top")) == (
        "no-queue",
        "top",
        "queue top has child queues and takes no runs itself; use one of a, b",
    )
    assert usage.used(QueueName("gone"))["gpu"] == 1000


def test_gpu_models_have_their_own_limits() -> None:
    queues = tree(queue("a", maximum={"gpu:a100": 2, "gpu": 6}))
    a100s = [Node(LARGE_NODE.id, "e", 8000, 0, LARGE_NODE.gpus[:8])]
    usage = QuotaUsage.of(queues, a100s, [running(gang("1", "a", gpus=1))], {}, T0)
    assert usage.closed_models(gang("x", "a", gpus=1)) == frozenset()
    assert usage.closed_models(gang("x", "a", gpus=2)) == {"a100"}
    assert refusal_of(usage, gang("x", "a", gpus=2)) == (
        "quota",
        "a",
        "requests 2 a100 GPUs; queue a uses 1 of at most 2 a100 GPUs",
    )
    assert refusal_of(usage, gang("x", "a", gpus=2, models=("T4",))) is None
    both = QuotaUsage.of(queues, [LARGE_NODE], [running(gang("1", "a", gpus=2))], {}, T0)
    assert both.closed_models(gang("x", "a", gpus=1)) == {"a100"}
    assert both.refusal(gang("x", "a", gpus=1)) is None  # there are T4s too
    only = both.refusal(gang("x", "a", gpus=1, models=("A100",)))
    assert only == QuotaRefusal(
        QueueMaximumReached(QueueName("a"), "gpu:a100", 1000, 2000, 2000), frozenset({"a100"})
    )
    assert both.closed_models(gang("x", "a", cpus=1)) == frozenset()


def test_elastic_gang_is_bounded_by_its_quota() -> None:
    queues = tree(queue("a", maximum={"gpu": 4}))
    usage = quota_usage(queues, gang("1", "a", gpus=1))
    wants = gang("x", "a", gpus=1, replicas=8, min_replicas=2)
    assert usage.refusal(wants) is None
    assert [role.replicas for role in usage.limit_to_quota(wants).roles] == [3]
    assert usage.limit_to_quota(wants).roles[0].min_replicas == 2
    fixed = gang("x", "a", gpus=1, replicas=8)
    assert usage.limit_to_quota(fixed) is fixed
    two = Gang(
        GangId("x"),
        (Role("w", 3, Resources(0, 0, 1), 1), Role("v", 3, Resources(0, 0, 1), 1)),
        T0,
        QueueName("a"),
    )
    assert [role.replicas for role in usage.limit_to_quota(two).roles] == [2, 1]
    anywhere = replace(two, queue=DEFAULT_QUEUE)
    assert quota_usage(SINGLE_QUEUE_TREE).limit_to_quota(anywhere) is anywhere


def test_gpu_share_by_memory_counts_as_its_largest_share() -> None:
    queues = tree(queue("a", maximum={"gpu": 1}))
    cards = [Node(NodeId("n"), "e", 8000, 0, (Gpu(0, "A100", 80), Gpu(1, "T4", 16), Gpu(2, "old", 8)))]
    usage = QuotaUsage.of(queues, cards, (), {}, T0)

    def share_gang(memory: int, replicas: int, models: tuple[str, ...] = ()) -> Gang:
        return Gang(
            GangId("x"),
            (Role("w", replicas, Resources(0, gpu_memory_bytes=memory, gpu_models=models)),),
            T0,
            QueueName("a"),
        )

    assert usage.refusal(share_gang(10, 1)) is None
    assert refusal_of(usage, share_gang(10, 2)) == (
        "quota",
        "a",
        "requests 1.25 GPUs; queue a uses 0 of at most 1 GPU",
    )
    assert usage.refusal(share_gang(10, 8, ("A100",))) is None
    assert usage.refusal(share_gang(10, 9, ("A100",))) is not None


def test_nothing_is_reclaimable_without_guarantees() -> None:
    queues = tree(queue("a"), queue("b"))
    usage = quota_usage(queues, gang("1", "a", gpus=8))
    assert usage.reclaimable_queues(gang("x", "b", gpus=1)) == frozenset()
    assert not usage.is_borrowed(running(gang("1", "a", gpus=8)))


def test_borrowed_usage_is_reclaimable_by_its_lender_only() -> None:
    queues = tree(
        queue("one", guarantee={"gpu": 4}),
        queue("a", "one", guarantee={"gpu": 3}),
        queue("b", "one"),
        queue("two", guarantee={"gpu": 4}),
        queue("c", "two", guarantee={"gpu": 4}),
        queue("d", "two"),
        queue("e"),
    )
    usage = quota_usage(
        queues, gang("1", "b", gpus=4), gang("2", "c", gpus=3), gang("3", "e", gpus=1), gpus=8
    )
    # `b` in its team and `e` outside; `c` is within its guarantee
    assert usage.reclaimable_queues(gang("x", "a", gpus=3)) == {"b", "e"}
    assert usage.reclaimable_queues(gang("x", "a", gpus=4)) == frozenset()  # more than its guarantee
    assert usage.reclaimable_queues(gang("x", "c", gpus=1)) == {
        "e"
    }  # `one` as a whole stays within its guarantee
    assert usage.reclaimable_queues(gang("x", "d", gpus=1)) == {
        "e"
    }  # by the guarantee of `two`, which covers `d` too
    assert usage.reclaimable_queues(gang("x", "e", gpus=1)) == frozenset()
    assert [usage.is_borrowed(running(gang("y", name, gpus=1))) for name in "abcde"] == [
        False,
        True,
        False,
        False,
        True,
    ]
    assert usage.reclaimable_queues(gang("x", "a", cpus=1)) == frozenset()  # no queue has guaranteed CPUs


def test_usage_of_a_siblings_unlent_guarantee_is_reclaimable_by_other_queues() -> None:
    """`inner` keeps all of the guarantee of `team`, so that `guest` uses guarantees of other queues."""
    queues = tree(
        queue("a", guarantee={"gpu": 3}), queue("team"), queue("guest", "team"),
        queue("inner", "team", guarantee={"gpu": 3}, lend_limit={"gpu": 0}),
    )  # fmt: skip
    usage = quota_usage(queues, gang("1", "guest", gpus=3), gpus=6)
    assert usage.refusal(gang("x", "a", gpus=3)) is not None
    assert usage.reclaimable_queues(gang("x", "a", gpus=3)) == {"guest"}
    usage = quota_usage(queues, gang("1", "a", gpus=4), gpus=7)
    # nor may it reclaim what `inner` keeps
    assert usage.reclaimable_queues(gang("x", "guest", gpus=1)) == frozenset()
    assert usage.reclaimable_queues(gang("x", "inner", gpus=3)) == {"a"}


def test_gpu_share_by_memory_counts_unschedulable_nodes_only_as_a_fallback() -> None:
    big, small, tiny = (
        Node(NodeId(name), "e", 1, 1, (Gpu(0, name, memory << 30),))
        for name, memory in (("big", 80), ("small", 24), ("tiny", 16))
    )
    closed = replace(small, cordoned=True)
    queues = tree(queue("a", user_limit={"gpu": 0.5}))
    wants = Gang(
        GangId("x"), (Role("w", 1, Resources(0, gpu_memory_bytes=20 << 30)),), T0, QueueName("a"), user="ada"
    )
    usage = QuotaUsage.of(queues, [big, closed], (), {}, T0)
    assert refusal_of(usage, wants) is None  # a quarter of `big`
    usage.set_node(closed, small)
    assert refusal_of(usage, wants) is not None  # five sixths of `small`, where it may land now
    usage.set_node(small, closed)
    assert refusal_of(usage, wants) is None
    assert usage.requested(wants) == QuotaUsage.of(queues, [big], (), {}, T0).requested(wants)
    assert QuotaUsage.of(queues, [closed, tiny], (), {}, T0).requested(wants) == QuotaUsage.of(
        queues, [small], (), {}, T0
    ).requested(wants)


@pytest.mark.parametrize(("unlent", "lent"), [(0, 3000), (1, 2000), (3, 0)])
def test_unlent_quota_of_another_queue_is_not_free_for_the_lender(unlent: int, lent: int) -> None:
    """`guest` uses 3 GPUs; of the 3 idle ones `inner` keeps the part that it does not lend."""
    queues = tree(
        queue("a", guarantee={"gpu": 3}), queue("team"), queue("guest", "team"),
        queue("inner", "team", guarantee={"gpu": 3}, lend_limit={"gpu": unlent}),
    )  # fmt: skip
    nodes = {node.id: node for node in cluster(gpus=6, cpus=8)}
    snapshot = Snapshot(Version(1), T0, nodes, (), (running(gang("g", "guest", gpus=3)),), queues)
    result = {use.queue.name: dict(use.lent) for use in queue_report(snapshot)}
    assert result == {"a": {"gpu": lent} if lent else {}, "team": {}, "guest": {}, "inner": {}}


def test_queue_without_reclaim_waits() -> None:
    queues = tree(queue("a", guarantee={"gpu": 2}, reclaims=False), queue("b"))
    usage = quota_usage(queues, gang("1", "b", gpus=8), gpus=8)
    assert usage.reclaimable_queues(gang("x", "a", gpus=1)) == frozenset()


def test_runs_of_a_removed_queue_are_reclaimable_by_all() -> None:
    queues = tree(queue("a", guarantee={"gpu": 2}))
    usage = quota_usage(queues, gang("1", "gone", gpus=8), gpus=8)
    assert usage.reclaimable_queues(gang("x", "a", gpus=1)) == {"gone"}
    assert usage.is_borrowed(running(gang("1", "gone", gpus=8)))


def test_queue_order_is_guarantee_then_borrowed_share_by_weight() -> None:
    queues = tree(
        queue("a", guarantee={"gpu": 4}), queue("b", guarantee={"gpu": 8}), queue("c"), queue("d", weight=4)
    )
    usage = quota_usage(
        queues,
        gang("1", "a", gpus=3),
        gang("2", "b", gpus=4),
        gang("3", "c", gpus=2),
        gang("4", "d", gpus=4),
        gpus=16,
    )

    def order(**asks: int) -> list[str]:
        return sorted(
            asks, key=lambda name: usage.queue_key(QueueName(name), gang("x", name, gpus=asks[name]))
        )

    assert order(a=1, b=1, c=1, d=1) == ["b", "a", "d", "c"]
    # beyond its guarantee, `a` has borrowed nothing yet
    assert order(a=2, b=1, c=1, d=1) == ["b", "a", "d", "c"]
    assert order(a=2, b=5, c=1, d=1) == ["a", "b", "d", "c"]


def test_user_order_adds_current_and_past_usage() -> None:
    name = QueueName("default")
    week = timedelta(days=7)
    used = {
        (name, "busy"): PastUsage(0.25 * week.total_seconds(), T0),
        (name, "long-ago"): PastUsage(0.25 * week.total_seconds(), T0 - 4 * week),
    }
    runs = [running(gang("1", "default", gpus=2, user="now"))]
    usage = QuotaUsage.of(SINGLE_QUEUE_TREE, cluster(gpus=8), runs, used, T0)
    order = sorted(["now", "busy", "long-ago", "new"], key=lambda user: usage.user_key(name, user))
    assert order == ["new", "long-ago", "busy", "now"]
    assert usage.user_key(name, "now") == (0.25,)
    assert usage.user_key(name, "busy")[0] == pytest.approx(0.25 * 0.6931, rel=1e-3)


def test_charge_is_credited_exactly_after_its_node_is_removed() -> None:
    queues = tree(queue("a", maximum={"gpu:a100": 8}))
    usage = QuotaUsage.of(queues, [LARGE_NODE], (), {}, T0)
    empty = usage.copy()
    placement = running(gang("1", "a", gpus=2)).placement
    usage.charge(placement)
    usage.set_nodes([])
    assert usage.used(QueueName("a"))["gpu:a100"] == 2000
    usage.credit(placement)
    assert usage == empty


def test_copy_is_independent() -> None:
    usage = quota_usage(tree(queue("a", maximum={"gpu": 1})))
    other = usage.copy()
    other.charge(running(gang("1", "a", gpus=1)).placement)
    assert other.refusal(gang("x", "a", gpus=1)) is not None
    assert usage.refusal(gang("x", "a", gpus=1)) is None
    assert other != usage


def test_queue_report_has_borrowed_and_lent_amounts() -> None:
    queues = tree(queue("sure", guarantee={"gpu": 6}), queue("free"), queue("rest"))
    runs = tuple(
        running(gang(user, of_queue, gpus=1, user=user[0]))
        for user, of_queue in (("a1", "free"), ("a2", "free"), ("b", "free"), ("s", "sure"))
    )
    wanting = (gang("w", "sure", gpus=4), gang("v", "free", user="c"), gang("u", "lost"))
    nodes = {node.id: node for node in cluster(gpus=8, cpus=8)}
    used = {(QueueName("free"), "z"): PastUsage(1000.0, T0)}
    snapshot = Snapshot(Version(1), T0, nodes, wanting, runs, queues, used)
    result = {use.queue.name: use for use in queue_report(snapshot)}
    assert list(result) == ["free", "rest", "sure", "lost"]
    assert result["free"].borrowed["gpu"] == 3000
    # five are idle, and four are free
    assert (result["sure"].lent, result["sure"].borrowed) == ({"gpu": 1000}, {})
    assert (result["free"].running, result["free"].pending, result["lost"].pending) == (3, 1, 1)
    assert result["free"].share == 3 / 8
    assert [(row.user, row.running, row.pending) for row in user_report(snapshot, QueueName("free"))] == [
        ("c", 0, 1),
        ("z", 0, 0),
        ("b", 1, 0),
        ("a", 2, 0),
    ]


def test_runs_of_a_former_leaf_still_count_and_are_reclaimable() -> None:
    queues = tree(queue("a", guarantee={"gpu": 4}), queue("b"), queue("b1", "b"))
    usage = quota_usage(queues, gang("1", "b", gpus=6), gang("2", "b1", gpus=1), gpus=8)
    assert usage.used(QueueName("b"))["gpu"] == 7000
    assert usage.reclaimable_queues(gang("x", "a", gpus=4)) == {"b", "b1"}


def test_weights_of_parents_decide_before_those_of_children() -> None:
    queues = QueueTree(
        {
            q.name: q
            for q in (
                queue("x", weight=3.0),
                queue("y"),
                queue("x1", "x"),
                queue("x2", "x"),
                queue("y1", "y"),
            )
        }
    )
    usage = quota_usage(queues, gang("1", "x1", gpus=2), gang("2", "y1", gpus=1), gpus=8)
    order = sorted(
        ["x1", "x2", "y1"], key=lambda name: usage.queue_key(QueueName(name), gang("z", name, gpus=1))
    )
    assert order == ["x2", "x1", "y1"]
