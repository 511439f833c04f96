"""The parts of a scheduling cycle, each compared with a plain implementation."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.cluster import Running
from hopyard.domain.gang import Gang
from hopyard.domain.hold_reason import HoldReason
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.domain.persistent_sequence import PersistentMap
from hopyard.domain.queue import GPU
from hopyard.scheduler.cycle.cluster_state import rank_function_for
from hopyard.scheduler.cycle.fair_sharing import FairSharingOrder
from hopyard.scheduler.cycle.pending_gangs import PendingGangs, submission_order
from hopyard.scheduler.cycle.pending_iterator import PendingIterator
from hopyard.scheduler.cycle.snapshot_diff import changed_keys, diff_sequences
from hopyard.scheduler.quota.quota_usage import QuotaUsage
from tests.scheduler.cluster_model import T0, ClusterModel, gang, machine, queue, seconds, tree

some = settings(max_examples=100, deadline=None)


class Item:
    """An item that is equal only to itself."""


ITEMS = [Item() for _ in range(40)]


@some
@given(st.permutations(ITEMS), st.data())
def test_diff_contains_items_of_only_one_sequence(order_: list[Item], data: st.DataObject) -> None:
    old = tuple(data.draw(st.permutations(order_))[: data.draw(st.integers(0, 40))])
    remaining = [item for item in old if data.draw(st.integers(0, 5))]
    new = list(remaining)
    for item in ITEMS:
        if item not in old and data.draw(st.integers(0, 9)) == 0:
            new.insert(data.draw(st.integers(0, len(new))), item)
    if data.draw(st.integers(0, 3)) == 0:
        new = list(data.draw(st.permutations(new)))
    removed, added = diff_sequences(old, tuple(new))
    assert {id(item) for item in removed} == {id(item) for item in old} - {id(item) for item in new}
    assert {id(item) for item in added} == {id(item) for item in new} - {id(item) for item in old}
    assert len(removed) == len(set(map(id, removed)))
    assert len(added) == len(set(map(id, added)))


@some
@given(
    st.lists(st.tuples(st.sampled_from(["add", "drop", "look"]), st.integers(0, 39)), max_size=80),
    st.integers(1, 6),
)
def test_diff_of_persistent_sequences_equals_diff_of_tuples(steps: list[tuple[str, int]], size: int) -> None:
    waiting: PersistentMap[int, Item] = PersistentMap(size)
    before = waiting.to_sequence()
    for step, number in steps:
        if step == "add":
            waiting[number] = ITEMS[number]
        elif step == "drop":
            waiting.discard(number)
        else:
            after = waiting.to_sequence()
            removed, added = diff_sequences(before, after)
            assert sorted(map(id, removed)) == sorted({*map(id, before)} - {*map(id, after)})
            assert sorted(map(id, added)) == sorted({*map(id, after)} - {*map(id, before)})
            before = after


def test_diff_finds_changes_in_the_middle_of_a_long_sequence() -> None:
    many = tuple(Item() for _ in range(5000))
    new = Item()
    assert diff_sequences(many, (*many[:700], *many[701:])) == ([many[700]], [])
    assert diff_sequences(many, (*many[:4000], new, *many[4000:])) == ([], [new])
    assert diff_sequences(many, (*many[1:], many[0])) == ([], [])
    assert diff_sequences(many, (*many[:10], new, *many[11:])) == ([many[10]], [new])


def test_changed_keys_compares_by_identity() -> None:
    one, other = Item(), Item()
    assert changed_keys({"a": one, "b": one, "c": one}, {"a": one, "b": other, "d": one}) == ["b", "d", "c"]


LEAVES = tree(
    queue("root"),
    queue("x", "root", guarantee=2),
    queue("a", "x", guarantee=1),
    queue("b", "x"),
    queue("c", "root", time_slices=True),
)
waiting = st.lists(
    st.builds(
        lambda gpus, priority, user, at, leaf, script, served: replace(
            gang("", gpus, priority=priority, user=user, at=at, queue=leaf, script=script), served_s=served
        ),
        st.sampled_from([1, 1, 2]),
        st.sampled_from([10, 50]),
        st.sampled_from("xyz"),
        st.integers(0, 5),
        st.sampled_from("abc"),
        st.sampled_from(["", "s.py"]),
        st.sampled_from([0.0, 1000.0]),
    ),
    max_size=25,
)


def numbered(gangs: list[Gang]) -> list[Gang]:
    return [replace(one, id=GangId(f"g{number:02}")) for number, one in enumerate(gangs)]


def usage_of(running: list[Running] | None = None) -> QuotaUsage:
    return QuotaUsage.of(LEAVES, [machine("n", 8)], running or [], {}, T0)


@some
@given(waiting, st.data())
def test_pending_gangs_do_not_depend_on_insertion_order(gangs: list[Gang], data: st.DataObject) -> None:
    gangs = numbered(gangs)
    at_once = PendingGangs(gangs, rank_function_for(LEAVES))
    little_by_little = PendingGangs([], rank_function_for(LEAVES))
    strangers = numbered([gang("", 1, queue="a")] * 30)
    for drawn in data.draw(st.permutations(gangs)):
        little_by_little.add(drawn)
    for number in range(data.draw(st.integers(0, 5))):
        stranger = replace(strangers[number], id=GangId(f"x{number}"))
        little_by_little.add(stranger)
        little_by_little.remove(stranger)
    assert len(at_once) == len(little_by_little) == len(gangs)
    for line in (at_once, little_by_little):
        for name, leaf in line.queues.items():
            in_queue = [gang for gang in gangs if gang.queue == name]
            assert sum(leaf.class_counts.values()) == len(in_queue)
            for rank, users in leaf.by_rank.items():
                for user, kinds in users.items():
                    for (shape, script, limit_s), alike in kinds.items():
                        assert alike == sorted(alike, key=submission_order)
                        for equal_gang in alike:
                            assert (
                                rank_function_for(LEAVES)(equal_gang),
                                equal_gang.user,
                                equal_gang.script,
                                equal_gang.time_limit_s,
                            ) == (
                                rank,
                                user,
                                script,
                                limit_s,
                            )
                            assert line.class_of(equal_gang) is shape
                            assert shape.key == (equal_gang.roles, equal_gang.topology)
    assert {shape.key: shape.pending_count for shape in at_once.classes} == Counter(
        (gang.roles, gang.topology) for gang in gangs
    )
    assert {shape.key: shape.pending_count for shape in little_by_little.classes} == Counter(
        (gang.roles, gang.topology) for gang in gangs
    )


@some
@given(waiting)
def test_iteration_order_is_rank_then_user_then_submission(gangs: list[Gang]) -> None:
    """Without charges, the next gang is the minimum of the remaining gangs."""
    gangs = numbered(gangs)
    usage = usage_of()
    pending = PendingGangs(gangs, rank_function_for(LEAVES))
    iterator = PendingIterator(
        pending, LEAVES.queues, [QueueName(name) for name in "abc"], usage, lambda *_: False
    )
    ranking, remaining = rank_function_for(LEAVES), list(gangs)
    while (head := iterator.head()) is not None:
        firsts = {
            name: min(
                of_queue,
                key=lambda one: (
                    ranking(one),
                    usage.user_key(one.queue, one.user),
                    one.user,
                    submission_order(one),
                ),
            )
            for name in "abc"
            if (of_queue := [one for one in remaining if one.queue == name])
        }
        assert head is firsts[head.queue]
        assert head is expected_first(firsts, usage)
        remaining.remove(head)
        iterator.advance(head)
    assert not remaining


def expected_first(firsts: dict[str, Gang], accounts: QuotaUsage) -> Gang:
    """Compares the better of a and b, for their parent x, with c."""

    def key(name: str, gang: Gang) -> tuple[int, float, QueueName]:
        return accounts.fair_share_key(QueueName(name), accounts.requested(gang))

    below = [name for name in "ab" if name in firsts]
    best = {} if not below else {"x": firsts[min(below, key=lambda name: key(name, firsts[name]))]}
    if "c" in firsts:
        best["c"] = firsts["c"]
    return best[min(best, key=lambda name: key(name, best[name]))]


def test_charged_usage_moves_a_queue_back() -> None:
    usage = usage_of()
    order = FairSharingOrder(LEAVES.queues, usage)
    a, b = gang("a", 1, queue="a"), gang("b", 1, queue="b")
    order.update_heads({QueueName("a"): a})
    order.update_heads({QueueName("b"): b})
    assert order.head() is a  # has one guaranteed GPU
    cluster = ClusterModel({NodeId("n"): machine("n", 8)}, LEAVES)
    cluster.submit(gang("other", 1, queue="a"))
    usage.charge(cluster.run_cycle().place[0])
    order.update_heads({QueueName("a"): a})
    assert order.head() is b
    order.update_heads({QueueName("b"): None})
    assert order.head() is a
    order.update_heads({QueueName("a"): None})
    assert order.head() is None


def test_skipped_gangs_are_not_visited_again() -> None:
    gangs = numbered(
        [
            gang("", 1, queue="a"),
            gang("", 2, queue="a"),
            gang("", 1, queue="b"),
            gang("", 1, queue="a", user="bob"),
        ]
    )
    pending = PendingGangs(gangs, rank_function_for(LEAVES))

    def seen(walk: PendingIterator) -> set[GangId]:
        result = set()
        while (head := walk.head()) is not None:
            result.add(head.id)
            walk.advance(head)
        return result

    def walk() -> PendingIterator:
        return PendingIterator(
            pending, LEAVES.queues, [QueueName(name) for name in "abc"], usage_of(), lambda *_: False
        )

    one_gpu = pending.class_of(gangs[0])
    queue_only, user_only, everywhere = walk(), walk(), walk()
    queue_only.skip_queue(QueueName("a"), one_gpu)
    assert seen(queue_only) == {"g01", "g02"}
    user_only.skip_user(gangs[0], one_gpu)
    assert seen(user_only) == {"g01", "g02", "g03"}
    everywhere.skip_all([one_gpu])
    assert seen(everywhere) == {"g01"}


# five minutes; as long as it may run
@pytest.mark.parametrize(("limit_s", "stand_back_at"), [(3600, 360), (120, 180)])
def test_gang_starved_of_quota_is_not_overtaken_in_its_queue(limit_s: float, stand_back_at: int) -> None:
    limited = tree(queue("root"), queue("a", "root", maximum=4), queue("b", "root"))
    cluster = ClusterModel({NodeId("n"): machine("n", 16)}, limited)
    cluster.submit(*(gang(f"s{i}", 1, queue="a") for i in range(4)))
    cluster.run_cycle()
    cluster.submit(gang("large", 4, queue="a", at=1, limit_s=limit_s, script="large.py"))
    for second in range(60, 2000, 60):  # one run ends and one arrives per minute
        cluster.now = T0 + seconds(second)
        smalls = [run for run in cluster.running.values() if not run.gang.id.startswith("u")]
        cluster.finish(min(smalls, key=lambda run: (run.placed_at, run.gang.id)).gang.id)
        cluster.submit(
            gang(f"t{second}", 1, queue="a", at=second), gang(f"u{second}", 0, queue="a", at=second)
        )
        new_plan = cluster.run_cycle()
        # requests no GPU and so blocks no gang
        assert f"u{second}" in {placement.gang.id for placement in new_plan.place}
        if GangId("large") in cluster.running:
            break
        held = {hold.gang: hold for hold in new_plan.hold}
        assert (second >= stand_back_at) == (GangId(f"t{second}") in held)
        if second >= stand_back_at:
            assert held[GangId(f"t{second}")].reason is HoldReason.BEHIND
            assert held[GangId(f"t{second}")].blocked_by == ("run:large",)
    assert (cluster.started[GangId("large")] - T0).total_seconds() == stand_back_at + 3 * 60


def test_gang_above_the_queue_maximum_does_not_block_others() -> None:
    cluster = ClusterModel(
        {NodeId("n"): machine("n", 16)}, tree(queue("root"), queue("a", "root", maximum=4))
    )
    cluster.submit(gang("huge", 8, queue="a"))
    cluster.run_cycle()
    cluster.now += seconds(4000)
    cluster.submit(gang("small", 1, queue="a", at=4000))
    assert [placement.gang.id for placement in cluster.run_cycle().place] == ["small"]


def test_user_at_the_limit_does_not_block_other_users() -> None:
    limited = tree(queue("root"), queue("a", "root", user_limit={GPU: 2000}))
    cluster = ClusterModel({NodeId("n"): machine("n", 16)}, limited)
    cluster.submit(gang("mine", 1, queue="a"))
    cluster.run_cycle()
    cluster.submit(gang("two", 2, queue="a"))
    cluster.now += seconds(4000)
    cluster.submit(gang("one", 1, queue="a", at=4000), gang("bobs", 1, queue="a", user="bob", at=4000))
    new_plan = cluster.run_cycle()
    assert [placement.gang.id for placement in new_plan.place] == ["bobs"]
    held = {hold.gang: hold for hold in new_plan.hold}
    assert held[GangId("two")].reason is HoldReason.USER_LIMIT
    assert held[GangId("one")].reason is HoldReason.BEHIND
    assert held[GangId("one")].blocked_by == ("run:two",)
