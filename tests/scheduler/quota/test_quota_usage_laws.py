"""What holds for every tree of queues, whoever uses it."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.cluster import HoldReason
from hopyard.domain.effective_limits import child_queues, guaranteed_amounts, maximum_amounts, queue_path
from hopyard.domain.gang import Gang
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import SINGLE_QUEUE_TREE, PastUsage, Queue, QueueTree
from hopyard.scheduler.quota.quota_usage import QuotaUsage
from tests.scheduler.queue_trees import (
    T0,
    cluster,
    gang,
    gangs,
    queue,
    queue_trees,
    quota_usage,
    running,
    tree,
)

law = settings(max_examples=150, deadline=None)
RESOURCES = ("gpu", "cpu")


def asks(one: Gang, name: str) -> int:
    request = one.roles[0].resources
    return one.size * (request.gpus * 1000 if name == "gpu" else request.cpu_milli)


def sums(runs: list[Gang], name: str) -> int:
    return sum(asks(one, name) for one in runs)


def size_of(of: QueueTree, extra: int = 0) -> dict[str, int]:
    """A cluster that has what all guarantees together promise, and `extra` more."""
    sure = guaranteed_amounts(of)
    return {
        f"{name}s": sum(sure[top].get(name, 0) for top in child_queues(of)[None]) // 1000 + extra
        for name in RESOURCES
    }


def fill(books: QuotaUsage, wanting: list[Gang], *, gpus: int, cpus: int) -> list[Gang]:
    """Start whoever may and fits, in this order."""
    started: list[Gang] = []
    for one in wanting:
        fits = sums([*started, one], "gpu") <= gpus * 1000 and sums([*started, one], "cpu") <= cpus * 1000
        if fits and books.refusal(one) is None:
            books.charge(running(one).placement)
            started.append(one)
    return started


@law
@given(st.data())
def test_credit_undoes_charge_in_any_order(data: st.DataObject) -> None:
    of = data.draw(queue_trees())
    books = quota_usage(of)
    kept, gone = data.draw(gangs(of)), data.draw(gangs(of))
    for one in kept:
        books.charge(running(one).placement)
    before = books.copy()
    for one in gone:
        books.charge(running(one).placement)
    assert (books == before) == (not any(asks(one, name) for one in gone for name in RESOURCES))
    for one in data.draw(st.permutations(gone)):
        books.credit(running(one).placement)
    assert books == before
    assert books == quota_usage(of, *data.draw(st.permutations(kept)))


@law
@given(st.data())
def test_cached_answers_equal_new_answers(data: st.DataObject) -> None:
    """Answers are remembered until somebody is charged, also by copies that go their own way."""
    of = data.draw(queue_trees())
    size = size_of(of, data.draw(st.integers(0, 6)))
    asking = data.draw(gangs(of))
    books: list[tuple[QuotaUsage, list[Gang]]] = [(quota_usage(of, **size), [])]
    for _ in range(data.draw(st.integers(1, 8))):
        books_of, there = books[data.draw(st.integers(0, len(books) - 1))]
        match data.draw(st.sampled_from(["charge", "charge all", "credit", "copy"])):
            case "charge" if asking:
                there.append(data.draw(st.sampled_from(asking)))
                books_of.charge(running(there[-1]).placement)
            case "charge all":
                books_of.charge_all(running(one).placement for one in asking)
                there += asking
            case "credit" if there:
                books_of.credit(running(there.pop()).placement)
            case _:
                books.append((books_of.copy(), [*there]))
        for known, inside in books:
            anew = quota_usage(of, *inside, **size)
            for one in asking:
                assert known.refusal(one) == anew.refusal(one)
                assert known.queue_key(one.queue, one) == anew.queue_key(one.queue, one)


@law
@given(st.data())
def test_usage_stays_within_the_limits_of_every_level_and_user(data: st.DataObject) -> None:
    of = data.draw(queue_trees())
    size = size_of(of, data.draw(st.integers(0, 12)))
    books = quota_usage(of, **size)
    started = fill(books, data.draw(gangs(of)), **size)
    limits = maximum_amounts(of)
    for name, one in of.queues.items():
        inside = [run for run in started if name in queue_path(of, run.queue)]
        for resource in RESOURCES:
            assert (
                books.used(name).get(resource, 0)
                == sums(inside, resource)
                <= limits[name].get(resource, 10**9)
            )
            for user in "abc":
                assert sums([run for run in inside if run.user == user], resource) <= one.user_limit.get(
                    resource, 10**9
                )


@law
@given(st.data())
def test_unlent_quota_of_a_queue_is_always_available_to_it(data: st.DataObject) -> None:
    """Without anybody being asked to make room, at any moment: room is left for what each queue keeps and
    does not use."""
    of = data.draw(queue_trees())
    size = size_of(of, data.draw(st.integers(0, 6)))
    started = fill(quota_usage(of, **size), data.draw(gangs(of)), **size)
    sure, below, limits = guaranteed_amounts(of), child_queues(of), maximum_amounts(of)

    def taken(name: QueueName, resource: str) -> int:
        used = sum(taken(child, resource) for child in below.get(name, ())) or sums(
            [run for run in started if run.queue == name], resource
        )
        lent = of.queues[name].lend_limit.get(resource)
        return used if lent is None else max(used, sure[name].get(resource, 0) - lent)

    for resource in RESOURCES:
        assert sum(taken(name, resource) for name in below[None]) <= size[f"{resource}s"] * 1000
        for name in of.queues:
            assert taken(name, resource) <= limits[name].get(resource, 10**9)


@law
@given(st.data())
def test_queue_gets_its_guarantee_after_reclaiming(data: st.DataObject) -> None:
    of = data.draw(queue_trees())
    size = size_of(of, data.draw(st.integers(0, 4)))
    books = quota_usage(of, **size)
    started = fill(books, data.draw(gangs(of)), **size)
    below, sure = child_queues(of), guaranteed_amounts(of)
    leaf = data.draw(st.sampled_from([name for name in of.queues if name not in below]))
    left = {name: sure[leaf].get(name, 0) - books.used(leaf).get(name, 0) for name in RESOURCES}
    wants = gang(
        "probe", leaf, gpus=max(left["gpu"], 0) // 1000, cpus=max(left["cpu"], 0) / 1000, user="nobody before"
    )
    if not asks(wants, "gpu") + asks(wants, "cpu"):
        return

    def may_start() -> bool:
        refused = books.refusal(wants)
        fits = all(
            sums([*started, wants], name) <= size[f"{name}s"] * 1000
            for name in RESOURCES
            if asks(wants, name)
        )
        return fits and (refused is None or refused.reason is HoldReason.USER_LIMIT)

    while not may_start():
        owing = [
            one
            for one in started
            if one.queue in books.reclaimable_queues(wants) and books.is_borrowed(running(one))
        ]
        assert owing, "nobody owes it anything, and yet it may not start"
        books.credit(running(owing[0]).placement)
        started.remove(owing[0])


@law
@given(st.data())
def test_usage_within_the_guarantee_is_not_reclaimable(data: st.DataObject) -> None:
    of = data.draw(queue_trees())
    size = size_of(of, 4)
    books = quota_usage(of, **size)
    started = fill(books, data.draw(gangs(of)), **size)
    sure = guaranteed_amounts(of)
    for wants in data.draw(gangs(of, size=5)):
        owing = books.reclaimable_queues(wants)
        assert not owing & set(queue_path(of, wants.queue))
        assert owing == {
            name for name in {one.queue for one in started} if books.is_reclaimable_from(name, wants)
        }
        assert not owing or books.may_reclaim(wants.queue)
        for name in owing:
            assert any(books.used(name).get(r, 0) > sure[name].get(r, 0) for r in RESOURCES)
    for one in started:
        above = [
            r
            for r in RESOURCES
            if asks(one, r) and books.used(one.queue).get(r, 0) > sure[one.queue].get(r, 0)
        ]
        assert books.is_borrowed(running(one)) == any(
            any(limits.get(r) for limits in sure.values()) for r in above
        )


@law
@given(st.data())
def test_queue_order_does_not_depend_on_input_order(data: st.DataObject) -> None:
    of = data.draw(queue_trees())
    runs = data.draw(gangs(of))
    wanting = data.draw(gangs(of, size=8))
    machines = cluster(gpus=16, cpus=64)
    one = QuotaUsage.of(of, machines, [running(run) for run in runs], {}, T0)
    other = QuotaUsage.of(
        of, machines[::-1], [running(run) for run in data.draw(st.permutations(runs))], {}, T0
    )
    assert [one.queue_key(g.queue, g) for g in wanting] == [other.queue_key(g.queue, g) for g in wanting]
    assert [one.user_key(g.queue, g.user) for g in wanting] == [
        other.user_key(g.queue, g.user) for g in wanting
    ]
    assert [one.refusal(g) for g in wanting] == [other.refusal(g) for g in wanting]
    keys = sorted(one.queue_key(g.queue, g) for g in wanting)  # all can be compared
    assert len(set(keys)) >= len({g.queue for g in wanting})


@law
@given(st.data())
def test_tree_without_limits_refuses_no_gang(data: st.DataObject) -> None:
    wanting = [
        gang(f"g{i}", "default", gpus=gpus, cpus=gpus)
        for i, gpus in enumerate(data.draw(st.lists(st.integers(0, 50))))
    ]
    books = quota_usage(SINGLE_QUEUE_TREE)
    for one in wanting:
        assert books.refusal(one) is None
        assert not books.closed_models(one)
        assert not books.reclaimable_queues(one)
        books.charge(running(one).placement)
        assert not books.is_borrowed(running(one))


def shared_out(of: QueueTree, shapes: dict[str, Gang], *, gpus: int, cpus: int) -> QuotaUsage:
    """Everybody always wants one more; whoever comes first gets it, until somebody who comes first finds no
    room."""
    books = quota_usage(of, gpus=gpus, cpus=cpus)
    started: list[Gang] = []
    while True:
        name = min(shapes, key=lambda n: books.queue_key(QueueName(n), shapes[n]))
        if any(
            sums([*started, shapes[name]], r) > 1000 * total for r, total in (("gpu", gpus), ("cpu", cpus))
        ):
            return books
        started.append(shapes[name])
        books.charge(running(shapes[name]).placement)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 6), st.sampled_from([0.5, 1.0, 2.0, 3.0])),
        min_size=2,
        max_size=5,
    )
)
def test_dominant_shares_are_equal_by_weight_and_sharing_is_no_loss(
    wanted: list[tuple[int, int, float]],
) -> None:
    """Ghodsi et al., NSDI'11: equal dominant shares, and sharing incentive; up to one gang, since gangs are
    not divided."""
    gpus, cpus = 60, 240
    of = tree(*(queue(f"q{i}", weight=weight) for i, (_, _, weight) in enumerate(wanted)))
    shapes = {f"q{i}": gang(f"g{i}", f"q{i}", gpus=g, cpus=c) for i, (g, c, _) in enumerate(wanted)}
    books = shared_out(of, shapes, gpus=gpus, cpus=cpus)
    of_one = {
        name: max(asks(one, "gpu") / gpus, asks(one, "cpu") / cpus) / 1000 for name, one in shapes.items()
    }
    shares = {}
    for name, weight in ((f"q{i}", weight) for i, (_, _, weight) in enumerate(wanted)):
        used = books.used(QueueName(name))
        shares[name] = max(used.get("gpu", 0) / gpus, used.get("cpu", 0) / cpus) / 1000 / weight
        of_one[name] /= weight
    for name, share in shares.items():
        assert all(share <= other + of_one[name] + 1e-9 for other in shares.values())
    weights = sum(weight for _, _, weight in wanted)
    largest = max(of_one[name] * weight for name, (_, _, weight) in zip(shapes, wanted, strict=True))
    assert min(shares.values()) >= (1 - largest) / weights - max(of_one.values()) - 1e-9


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4))
def test_share_of_a_branch_does_not_depend_on_its_number_of_queues(leaves: int, gpus: int) -> None:
    of = tree(
        queue("one"), queue("many"), *(queue(f"m{i}", "many") for i in range(leaves)), queue("only", "one")
    )
    shapes = {
        name: gang(name, name, gpus=gpus, cpus=1) for name in ["only", *(f"m{i}" for i in range(leaves))]
    }
    books = shared_out(of, shapes, gpus=60, cpus=240)
    one, many = books.used(QueueName("one"))["gpu"], books.used(QueueName("many"))["gpu"]
    assert abs(one - many) <= gpus * 1000
    parts = [books.used(QueueName(f"m{i}")).get("gpu", 0) for i in range(leaves)]
    assert max(parts) - min(parts) <= gpus * 1000


@settings(max_examples=60, deadline=None)
@given(st.floats(1, 1e9), st.floats(0, 1e7), st.floats(60, 1e7))
def test_past_usage_decays_with_its_half_life(past: float, later_s: float, half_life_s: float) -> None:
    name = QueueName("q")
    of = QueueTree({name: Queue(name)}, name, half_life_s)
    used = {(name, "busy"): PastUsage(past, T0)}

    def score(after_s: float, user: str = "busy") -> float:
        return QuotaUsage.of(of, cluster(gpus=8), (), used, T0 + timedelta(seconds=after_s)).user_key(
            name, user
        )[0]

    assert score(0) >= score(later_s)
    assert abs(score(half_life_s) / score(0) - 0.5) < 1e-6
    assert score(0) > score(0, "new") == 0
    assert score(-later_s) == score(0)  # a clock that runs backwards fades nothing
