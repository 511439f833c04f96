"""One sentence says why another queue gets more, from the numbers of the scheduler."""

from __future__ import annotations

from dataclasses import replace

from hopyard.domain.cluster import Running, Snapshot
from hopyard.domain.gang import Gang
from hopyard.domain.ids import QueueName, Version
from hopyard.domain.queue import Queue
from hopyard.scheduler.explain.queue_comparison import explain_share
from tests.scheduler.queue_trees import T0, cluster, gang, queue, running, tree


def explain(queues: list[Queue], runs: list[Running], name: str, pending: list[Gang] | None = None) -> str:
    snapshot = Snapshot(
        Version(1),
        T0,
        {node.id: node for node in cluster(gpus=8)},
        pending=tuple(pending or ()),
        running=tuple(runs),
        queues=tree(*queues),
    )
    return explain_share(snapshot, QueueName(name))


def test_queue_without_waiting_runs_demands_nothing() -> None:
    queues = [queue("a"), queue("b")]
    text = explain(queues, [running(gang("r", "a", gpus=3))], "b")
    assert text == "a uses 3 GPUs, and b 0 GPUs, because no run waits in b."


def test_limit_of_the_queue_comes_before_all_else() -> None:
    queues = [queue("a", guarantee={"gpu": 4}), queue("b", maximum={"gpu": 1})]
    runs = [running(gang("r", "a", gpus=4)), running(gang("s", "b", gpus=1), 4)]
    text = explain(queues, runs, "b", [gang("w", "b", gpus=1)])
    assert text == (
        "a uses 4 GPUs, and b 1 GPU, because the next run of b requests 1 GPU; queue b uses 1 of at most "
        "1 GPU."
    )


def test_larger_guarantee_is_used() -> None:
    queues = [queue("a", guarantee={"gpu": 6}), queue("b", guarantee={"gpu": 2}), queue("c")]
    runs = [running(gang("r", "a", gpus=6)), running(gang("s", "b", gpus=2), 6)]
    waiting = [gang("w", "b", gpus=1), gang("x", "c", gpus=1)]
    assert explain(queues, runs, "b", waiting) == (
        "a uses 6 GPUs, and b 2 GPUs, because a uses 6 of 6 GPUs of its guarantee, and the guarantee of b "
        "is 2 GPUs."
    )
    assert explain(queues, runs, "c", waiting).endswith("of its guarantee, and c has no guarantee.")


def test_borrowed_capacity_is_reclaimed() -> None:
    queues = [queue("a", guarantee={"gpu": 4}), queue("b", guarantee={"gpu": 4})]
    text = explain(queues, [running(gang("r", "a", gpus=8))], "b", [gang("w", "b", gpus=2)])
    assert text == (
        "a uses 8 GPUs, and b 0 GPUs, because a borrows 4 GPUs, and b reclaims from it what the next run of "
        "its guarantee needs."
    )


def test_weights_decide_between_queues_that_borrow() -> None:
    queues = [queue("a", weight=3), queue("b", weight=1)]
    runs = [running(gang("r", "a", gpus=6)), running(gang("s", "b", gpus=2), 6)]
    equal = explain(queues, runs, "b", [gang("w", "b", gpus=1)])
    assert "b is served first as soon as capacity is free" in equal
    assert "25.0% for b (weight 1) and 25.0% for a (weight 3)" in equal
    queues[0] = replace(queues[0], weight=6)
    assert "12.5% for a (weight 6)" in explain(queues, runs, "b", [gang("w", "b", gpus=1)])
    assert "is served first, 25.0% for b" in explain(queues, runs, "b", [gang("w", "b", gpus=1)])


def test_queue_is_compared_where_its_path_gets_less() -> None:
    queues = [queue("top"), queue("a", "top"), queue("b", "top"), queue("prod")]
    runs = [running(gang("r", "a", gpus=2)), running(gang("s", "prod", gpus=4), 2)]
    assert explain(queues, runs, "b").startswith("a uses 2 GPUs, and b 0 GPUs")
    assert explain(queues, runs, "a").startswith("prod uses 4 GPUs, and top 2 GPUs")


def test_largest_and_only_queue_say_so() -> None:
    runs = [running(gang("r", "a", gpus=4))]
    queues = [queue("a"), queue("b")]
    assert explain(queues, runs, "a") == "No queue beside a gets more: it uses 4 GPUs, 50% of the cluster."
    assert explain(queues, [], "a") == "No queue beside a uses anything."
    assert explain(queues[:1], runs, "a") == "a uses 4 GPUs and is the only queue."
    assert explain(queues[:1], [], "a") == "a is the only queue."
