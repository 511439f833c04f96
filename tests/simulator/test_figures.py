"""The figures of a report, by hand and against what they must be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.gang import Assignment, Gang, Placement, Role
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.domain.queue import Queue, QueueTree
from hopyard.domain.resources import Resources
from hopyard.simulator.clock import START
from hopyard.simulator.fairness import entitlements, jain, leaf_weights
from hopyard.simulator.fragments import Shapes
from hopyard.simulator.ledger import Ledger, OverCommitted
from hopyard.simulator.report import quantile, spread

from .plays import GIB, node


def placement(request: Resources, *gpus: int, on: str = "n0", milli: int = 1000) -> Placement:
    gang = Gang(GangId("g"), (Role("worker", 1, request),), START)
    return Placement(gang, (Assignment(0, NodeId(on), gpus, milli),))


class TestFairness:
    def test_what_is_left_over_goes_to_who_wants_it_by_weight(self) -> None:
        assert entitlements(10, [2, 10, 10], [1, 1, 1]) == [2, 4, 4]
        assert entitlements(12, [2, 10, 10], [1, 1, 3]) == [2, 2.5, 7.5]
        assert entitlements(10, [1, 2], [1, 1]) == [1, 2]
        assert entitlements(10, [], []) == []

    @given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5)), min_size=1, max_size=8), st.integers(1, 100))
    def test_max_min_fairness(self, asked: list[tuple[int, int]], capacity: int) -> None:
        """Nothing is left while somebody wants more, and nobody who got less than it wants has less per weight than another."""
        wants, weights = [float(want) for want, _ in asked], [float(weight) for _, weight in asked]
        shares = entitlements(capacity, wants, weights)
        assert sum(shares) == pytest.approx(min(capacity, sum(wants)))
        assert all(share <= want + 1e-9 for share, want in zip(shares, wants, strict=True))
        for share, want, weight in zip(shares, wants, weights, strict=True):
            if share < want - 1e-9:
                assert all(share / weight >= other / theirs - 1e-6 for other, theirs in zip(shares, weights, strict=True))

    def test_jain(self) -> None:
        assert jain([1, 1, 1, 1]) == 1
        assert jain([1, 0, 0, 0]) == 0.25
        assert jain([]) == 1

    def test_weights_of_leaves(self) -> None:
        queues = [
            Queue(QueueName("a"), guarantee={"gpu": 12_000}),
            Queue(QueueName("b"), guarantee={"gpu": 4_000}),
            Queue(QueueName("a1"), QueueName("a"), weight=1),
            Queue(QueueName("a2"), QueueName("a"), weight=2),
        ]
        assert leaf_weights(QueueTree({queue.name: queue for queue in queues})) == {"b": 0.25, "a1": 0.25, "a2": 0.5}


class TestLedger:
    def test_it_counts_and_forgets(self) -> None:
        ledger = Ledger([node(gpus=2, cpus=8)])
        held = placement(Resources(3000, GIB, 2), 0, 1)
        ledger.take(held)
        assert (ledger.gpu_used, ledger.cpu_used, ledger.gpu.tolist(), ledger.cpu.tolist()) == (2000, 3000, [[0, 0]], [5000])
        ledger.give_back(held)
        assert (ledger.gpu_used, ledger.cpu_used, ledger.gpu.tolist(), ledger.cpu.tolist()) == (0, 0, [[1000, 1000]], [8000])

    @pytest.mark.parametrize(
        "more", [placement(Resources(1000, 0, 1), 0), placement(Resources(9000, 0)), placement(Resources(0, 600 * GIB))]
    )
    def test_it_lets_nobody_have_what_is_not_there(self, more: Placement) -> None:
        ledger = Ledger([node(gpus=2, cpus=8)])
        ledger.take(placement(Resources(1000, 0, 0, gpu_milli=400), 0, milli=400))
        with pytest.raises(OverCommitted):
            ledger.take(more)


class TestFragments:
    def test_nothing_is_lost_on_an_empty_machine(self) -> None:
        assert (
            Shapes([Role("w", 1, Resources(1000, 0, 8)), Role("w", 1, Resources(1000, 0, 1))]).fragmentation(Ledger([node()]))
            == 0
        )

    def test_by_hand(self) -> None:
        """On the first of two machines of 2 GPUs, one GPU is half taken. Three of four runs ask for 2 GPUs, one for half of one."""
        shapes = Shapes([Role("large", 3, Resources(1000, 0, 2)), Role("small", 1, Resources(1000, 0, 0, gpu_milli=500))])
        ledger = Ledger([node("n0", gpus=2), node("n1", gpus=2)])
        ledger.take(placement(Resources(1000, 0, 0, gpu_milli=500), 0, milli=500))
        # free: 1.5 and 2. Of no use to the large ones: all 1.5 of the first; to small ones: nothing.
        assert shapes.fragmentation(ledger) == pytest.approx(0.75 * 1.5 / 3.5)
        ledger.take(placement(Resources(0, 0, 0, gpu_milli=200), 0, milli=200))
        # 0.3 of a GPU are of no use to the small ones now
        assert shapes.fragmentation(ledger) == pytest.approx((0.75 * 1.3 + 0.25 * 0.3) / 3.3)

    def test_gpus_without_a_cpu_beside_them_are_of_no_use(self) -> None:
        shapes, ledger = Shapes([Role("w", 1, Resources(4000, 0, 1))]), Ledger([node(cpus=8, gpus=2)])
        ledger.take(placement(Resources(6000, 0)))
        assert shapes.fragmentation(ledger) == 1

    def test_lost_machines_have_nothing_free(self) -> None:
        ledger = Ledger([node()])
        ledger.set_ready(NodeId("n0"), False)
        assert Shapes([Role("w", 1, Resources(1000, 0, 9))]).fragmentation(ledger) == 0


def test_spreads() -> None:
    found = spread([3.0, 1.0, 2.0, 4.0])
    assert (found.count, found.mean, found.median, found.most) == (4, 2.5, 2.5, 4.0)
    assert found.p99 == pytest.approx(3.97)
    assert spread([]).count == 0
    assert quantile([5.0], 0.99) == 5.0
