"""Laws of every queue tree, for any usage."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.domain.effective_limits import child_queues, guaranteed_amounts, maximum_amounts, queue_path
from hopyard.domain.gang import Gang
from hopyard.domain.hold_reason import HoldReason
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


def requested_amount(gang: Gang, name: str) -> int:
    request = gang.roles[0].resources
    return gang.size * (request.gpus * 1000 if name == "gpu" else request.cpu_milli)


def total_amount(runs: list[Gang], name: str) -> int:
    return sum(requested_amount(run, name) for run in runs)


def cluster_size(of: QueueTree, extra: int = 0) -> dict[str, int]:
    """Returns the size of a cluster with the sum of all guarantees, plus `extra`."""
    sure = guaranteed_amounts(of)
    return {
        f"{name}s": sum(sure[top].get(name, 0) for top in child_queues(of)[None]) // 1000 + extra
        for name in RESOURCES
    }


def fill(usage: QuotaUsage, pending: list[Gang], *, gpus: int, cpus: int) -> list[Gang]:
    """Starts the gangs that fit and have quota, in this order."""
    started: list[Gang] = []
    for new in pending:
        fits = (
            total_amount([*started, new], "gpu") <= gpus * 1000
            and total_amount([*started, new], "cpu") <= cpus * 1000
        )
        if fits and usage.refusal(new) is None:
            usage.charge(running(new).placement)
            started.append(new)
    return started


@law
@given(st.data())
def test_credit_undoes_charge_in_any_order(data: st.DataObject) -> None:
    queues = data.draw(queue_trees())
    usage = quota_usage(queues)
    remaining, credited = data.draw(gangs(queues)), data.draw(gangs(queues))
    for one in remaining:
        usage.charge(running(one).placement)
    before = usage.copy()
    for drawn in credited:
        usage.charge(running(drawn).placement)
    assert (usage == before) == (
        not any(requested_amount(drawn, name) for drawn in credited for name in RESOURCES)
    )
    for drawn in data.draw(st.permutations(credited)):
        usage.credit(running(drawn).placement)
    assert usage == before
    assert usage == quota_usage(queues, *data.draw(st.permutations(remaining)))


@law
@given(st.data())
def test_cached_answers_equal_new_answers(data: st.DataObject) -> None:
    """Answers are cached until the next charge, also in independent copies."""
    queues = data.draw(queue_trees())
    size = cluster_size(queues, data.draw(st.integers(0, 6)))
    asking = data.draw(gangs(queues))
    usages: list[tuple[QuotaUsage, list[Gang]]] = [(quota_usage(queues, **size), [])]
    for _ in range(data.draw(st.integers(1, 8))):
        books_of, charged = usages[data.draw(st.integers(0, len(usages) - 1))]
        match data.draw(st.sampled_from(["charge", "charge all", "credit", "copy"])):
            case "charge" if asking:
                charged.append(data.draw(st.sampled_from(asking)))
                books_of.charge(running(charged[-1]).placement)
            case "charge all":
                books_of.charge_all(running(drawn).placement for drawn in asking)
                charged += asking
            case "credit" if charged:
                books_of.credit(running(charged.pop()).placement)
            case _:
                usages.append((books_of.copy(), [*charged]))
        for known, inside in usages:
            fresh = quota_usage(queues, *inside, **size)
            for drawn in asking:
                assert known.refusal(drawn) == fresh.refusal(drawn)
                assert known.queue_key(drawn.queue, drawn) == fresh.queue_key(drawn.queue, drawn)


@law
@given(st.data())
def test_usage_stays_within_the_limits_of_every_level_and_user(data: st.DataObject) -> None:
    queues = data.draw(queue_trees())
    size = cluster_size(queues, data.draw(st.integers(0, 12)))
    usage = quota_usage(queues, **size)
    started = fill(usage, data.draw(gangs(queues)), **size)
    limits = maximum_amounts(queues)
    for name, one in queues.queues.items():
        inside = [run for run in started if name in queue_path(queues, run.queue)]
        for resource in RESOURCES:
            assert (
                usage.used(name).get(resource, 0)
                == total_amount(inside, resource)
                <= limits[name].get(resource, 10**9)
            )
            for user in "abc":
                assert total_amount(
                    [run for run in inside if run.user == user], resource
                ) <= one.user_limit.get(resource, 10**9)


@law
@given(st.data())
def test_unlent_quota_of_a_queue_is_always_available_to_it(data: st.DataObject) -> None:
    """At any moment, without preemptions, each queue can use the rest of what it does not lend."""
    queues = data.draw(queue_trees())
    size = cluster_size(queues, data.draw(st.integers(0, 6)))
    started = fill(quota_usage(queues, **size), data.draw(gangs(queues)), **size)
    sure, below, limits = guaranteed_amounts(queues), child_queues(queues), maximum_amounts(queues)

    def taken(name: QueueName, resource: str) -> int:
        used = sum(taken(child, resource) for child in below.get(name, ())) or total_amount(
            [run for run in started if run.queue == name], resource
        )
        lent = queues.queues[name].lend_limit.get(resource)
        return used if lent is None else max(used, sure[name].get(resource, 0) - lent)

    for resource in RESOURCES:
        assert sum(taken(name, resource) for name in below[None]) <= size[f"{resource}s"] * 1000
        for name in queues.queues:
            assert taken(name, resource) <= limits[name].get(resource, 10**9)


@law
@given(st.data())
def test_queue_gets_its_guarantee_after_reclaiming(data: st.DataObject) -> None:
    queues = data.draw(queue_trees())
    size = cluster_size(queues, data.draw(st.integers(0, 4)))
    usage = quota_usage(queues, **size)
    started = fill(usage, data.draw(gangs(queues)), **size)
    below, sure = child_queues(queues), guaranteed_amounts(queues)
    leaf = data.draw(st.sampled_from([name for name in queues.queues if name not in below]))
    unused = {name: sure[leaf].get(name, 0) - usage.used(leaf).get(name, 0) for name in RESOURCES}
    wants = gang(
        "probe",
        leaf,
        gpus=max(unused["gpu"], 0) // 1000,
        cpus=max(unused["cpu"], 0) / 1000,
        user="nobody before",
    )
    if not requested_amount(wants, "gpu") + requested_amount(wants, "cpu"):
        return

    def may_start() -> bool:
        refused = usage.refusal(wants)
        fits = all(
            total_amount([*started, wants], name) <= size[f"{name}s"] * 1000
            for name in RESOURCES
            if requested_amount(wants, name)
        )
        return fits and (refused is None or refused.reason is HoldReason.USER_LIMIT)

    while not may_start():
        owing = [
            run
            for run in started
            if run.queue in usage.reclaimable_queues(wants) and usage.is_borrowed(running(run))
        ]
        assert owing, "nothing is reclaimable for it, but it may not start"
        usage.credit(running(owing[0]).placement)
        started.remove(owing[0])


@law
@given(st.data())
def test_usage_within_the_guarantee_is_not_reclaimable(data: st.DataObject) -> None:
    queues = data.draw(queue_trees())
    size = cluster_size(queues, 4)
    usage = quota_usage(queues, **size)
    started = fill(usage, data.draw(gangs(queues)), **size)
    sure = guaranteed_amounts(queues)
    for wants in data.draw(gangs(queues, size=5)):
        owing = usage.reclaimable_queues(wants)
        assert not owing & set(queue_path(queues, wants.queue))
        assert owing == {
            name for name in {run.queue for run in started} if usage.is_reclaimable_from(name, wants)
        }
        assert not owing or usage.may_reclaim(wants.queue)
        for name in owing:
            assert any(usage.used(name).get(r, 0) > sure[name].get(r, 0) for r in RESOURCES)
    for run in started:
        above = [
            r
            for r in RESOURCES
            if requested_amount(run, r) and usage.used(run.queue).get(r, 0) > sure[run.queue].get(r, 0)
        ]
        assert usage.is_borrowed(running(run)) == any(
            any(limits.get(r) for limits in sure.values()) for r in above
        )


@law
@given(st.data())
def test_queue_order_does_not_depend_on_input_order(data: st.DataObject) -> None:
    queues = data.draw(queue_trees())
    runs = data.draw(gangs(queues))
    wanting = data.draw(gangs(queues, size=8))
    machines = cluster(gpus=16, cpus=64)
    first = QuotaUsage.of(queues, machines, [running(run) for run in runs], {}, T0)
    second = QuotaUsage.of(
        queues, machines[::-1], [running(run) for run in data.draw(st.permutations(runs))], {}, T0
    )
    assert [first.queue_key(g.queue, g) for g in wanting] == [second.queue_key(g.queue, g) for g in wanting]
    assert [first.user_key(g.queue, g.user) for g in wanting] == [
        second.user_key(g.queue, g.user) for g in wanting
    ]
    assert [first.refusal(g) for g in wanting] == [second.refusal(g) for g in wanting]
    keys = sorted(first.queue_key(g.queue, g) for g in wanting)  # all can be compared
    assert len(set(keys)) >= len({g.queue for g in wanting})


@law
@given(st.data())
def test_tree_without_limits_refuses_no_gang(data: st.DataObject) -> None:
    wanting = [
        gang(f"g{i}", "default", gpus=gpus, cpus=gpus)
        for i, gpus in enumerate(data.draw(st.lists(st.integers(0, 50))))
    ]
    usage = quota_usage(SINGLE_QUEUE_TREE)
    for drawn in wanting:
        assert usage.refusal(drawn) is None
        assert not usage.closed_models(drawn)
        assert not usage.reclaimable_queues(drawn)
        usage.charge(running(drawn).placement)
        assert not usage.is_borrowed(running(drawn))


def share_cluster(of: QueueTree, shapes: dict[str, Gang], *, gpus: int, cpus: int) -> QuotaUsage:
    """Starts one gang of the first queue at a time, with endless demand, until the first queue finds no
    capacity."""
    usage = quota_usage(of, gpus=gpus, cpus=cpus)
    started: list[Gang] = []
    while True:
        name = min(shapes, key=lambda n: usage.queue_key(QueueName(n), shapes[n]))
        if any(
            total_amount([*started, shapes[name]], r) > 1000 * total
            for r, total in (("gpu", gpus), ("cpu", cpus))
        ):
            return usage
        started.append(shapes[name])
        usage.charge(running(shapes[name]).placement)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 6), st.sampled_from([0.5, 1.0, 2.0, 3.0])),
        min_size=2,
        max_size=5,
    )
)
def test_dominant_shares_are_equal_by_weight_and_sharing_is_no_loss(
    demands: list[tuple[int, int, float]],
) -> None:
    """Equal dominant shares and sharing incentive (Ghodsi et al., NSDI'11), within one gang, since gangs are
    indivisible."""
    gpus, cpus = 60, 240
    queues = tree(*(queue(f"q{i}", weight=weight) for i, (_, _, weight) in enumerate(demands)))
    shapes = {f"q{i}": gang(f"g{i}", f"q{i}", gpus=g, cpus=c) for i, (g, c, _) in enumerate(demands)}
    usage = share_cluster(queues, shapes, gpus=gpus, cpus=cpus)
    of_one = {
        name: max(requested_amount(one, "gpu") / gpus, requested_amount(one, "cpu") / cpus) / 1000
        for name, one in shapes.items()
    }
    shares = {}
    for name, weight in ((f"q{i}", weight) for i, (_, _, weight) in enumerate(demands)):
        used = usage.used(QueueName(name))
        shares[name] = max(used.get("gpu", 0) / gpus, used.get("cpu", 0) / cpus) / 1000 / weight
        of_one[name] /= weight
    for name, share in shares.items():
        assert all(share <= other + of_one[name] + 1e-9 for other in shares.values())
    weights = sum(weight for _, _, weight in demands)
    largest = max(of_one[name] * weight for name, (_, _, weight) in zip(shapes, demands, strict=True))
    assert min(shares.values()) >= (1 - largest) / weights - max(of_one.values()) - 1e-9


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 4))
def test_share_of_a_branch_does_not_depend_on_its_number_of_queues(leaves: int, gpus: int) -> None:
    queues = tree(
        queue("one"), queue("many"), *(queue(f"m{i}", "many") for i in range(leaves)), queue("only", "one")
    )
    shapes = {
        name: gang(name, name, gpus=gpus, cpus=1) for name in ["only", *(f"m{i}" for i in range(leaves))]
    }
    usage = share_cluster(queues, shapes, gpus=60, cpus=240)
    one, many = usage.used(QueueName("one"))["gpu"], usage.used(QueueName("many"))["gpu"]
    assert abs(one - many) <= gpus * 1000
    parts = [usage.used(QueueName(f"m{i}")).get("gpu", 0) for i in range(leaves)]
    assert max(parts) - min(parts) <= gpus * 1000


@settings(max_examples=60, deadline=None)
@given(st.floats(1, 1e9), st.floats(0, 1e7), st.floats(60, 1e7))
def test_past_usage_decays_with_its_half_life(past: float, later_s: float, half_life_s: float) -> None:
    name = QueueName("q")
    queues = QueueTree({name: Queue(name)}, name, half_life_s)
    used = {(name, "busy"): PastUsage(past, T0)}

    def score(after_s: float, user: str = "busy") -> float:
        return QuotaUsage.of(queues, cluster(gpus=8), (), used, T0 + timedelta(seconds=after_s)).user_key(
            name, user
        )[0]

    assert score(0) >= score(later_s)
    assert abs(score(half_life_s) / score(0) - 0.5) < 1e-6
    assert score(0) > score(0, "new") == 0
    assert score(-later_s) == score(0)  # a clock that runs backwards fades nothing
