"""The numbers of a report, compared with known values and laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.domain.gang import Assignment, Gang, Placement, Role
from hopyard.domain.ids import GangId, NodeId, QueueName
from hopyard.domain.queue import GPU, Queue, QueueTree
from hopyard.domain.resources import Resources
from hopyard.simulator.allocation_audit import AllocationAudit, OvercommitError
from hopyard.simulator.clock import START_TIME
from hopyard.simulator.fairness import EntitlementCalculator, entitlements, jain_index
from hopyard.simulator.fragmentation import RequestMix
from hopyard.simulator.report import distribution, quantile
from tests.simulator.workloads import GIB, node


def placement(request: Resources, *gpus: int, on: str = "n0", milli: int = 1000) -> Placement:
    gang = Gang(GangId("g"), (Role("worker", 1, request),), START_TIME)
    return Placement(gang, (Assignment(0, NodeId(on), gpus, milli),))


class TestFairness:
    def test_remaining_capacity_is_shared_by_weight(self) -> None:
        assert entitlements(10, [2, 10, 10], [1, 1, 1]) == [2, 4, 4]
        assert entitlements(12, [2, 10, 10], [1, 1, 3]) == [2, 2.5, 7.5]
        assert entitlements(10, [1, 2], [1, 1]) == [1, 2]
        assert entitlements(10, [], []) == []

    @given(
        st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5)), min_size=1, max_size=8),
        st.integers(1, 100),
    )
    def test_max_min_fairness(self, demands: list[tuple[int, int]], capacity: int) -> None:
        """No capacity is left while demand is unmet, and no unmet demand has less per weight than another."""
        wants, weights = [float(want) for want, _ in demands], [float(weight) for _, weight in demands]
        shares = entitlements(capacity, wants, weights)
        assert sum(shares) == pytest.approx(min(capacity, sum(wants)))
        assert all(share <= want + 1e-9 for share, want in zip(shares, wants, strict=True))
        for share, want, weight in zip(shares, wants, weights, strict=True):
            if share < want - 1e-9:
                assert all(
                    share / weight >= other / theirs - 1e-6
                    for other, theirs in zip(shares, weights, strict=True)
                )

    def test_jain_index_values(self) -> None:
        assert jain_index([1, 1, 1, 1]) == 1
        assert jain_index([1, 0, 0, 0]) == 0.25
        assert jain_index([]) == 1

    def test_guarantees_come_first_then_weights_within_limits(self) -> None:
        """Of 16 GPUs, a has 8 guaranteed (through its children), b has 4, and c none, but c may use the
        rest."""
        queues = [
            Queue(QueueName("a")),
            Queue(QueueName("b"), guarantee={GPU: 4}),
            Queue(QueueName("c"), weight=3),
            Queue(QueueName("a1"), QueueName("a"), guarantee={GPU: 6}),
            Queue(QueueName("a2"), QueueName("a"), guarantee={GPU: 2}, maximum={GPU: 3}),
        ]
        entitled = EntitlementCalculator(QueueTree({queue.name: queue for queue in queues}), GPU)

        def of(**wants: float) -> dict[str, float]:
            return {
                str(name): share
                for name, share in entitled.entitlements_of(
                    {QueueName(name): want for name, want in wants.items()}, 16
                ).items()
            }

        assert of(a1=16, a2=16, b=16, c=16) == {
            "a1": pytest.approx(6.4),
            "a2": pytest.approx(2.4),
            "b": pytest.approx(4.8),
            "c": pytest.approx(2.4),
        }
        assert of(a1=16, c=16) == {"a1": 10, "c": 6}
        assert of(a2=16, c=1) == {"a2": 3, "c": 1}
        assert of(c=16) == {"c": 16}
        assert of(a1=0, b=2) == {"b": 2}

    @given(
        st.lists(
            st.tuples(
                st.integers(0, 9), st.integers(1, 4), st.sampled_from([None, 3, 8]), st.integers(0, 20)
            ),
            min_size=1,
            max_size=6,
        ),
        st.integers(1, 30),
    )
    def test_all_allowed_demand_is_served(
        self, queue_data: list[tuple[int, int, int | None, int]], capacity: int
    ) -> None:
        """By queue: guarantee, weight, maximum, demand."""
        named = {QueueName(f"q{at}"): one for at, one in enumerate(queue_data)}
        queues = {
            name: Queue(
                name, weight=weight, guarantee={GPU: sure}, maximum={GPU: max(limit, sure)} if limit else {}
            )
            for name, (sure, weight, limit, _) in named.items()
        }
        wants = {name: float(want) for name, (*_, want) in named.items()}
        result = EntitlementCalculator(QueueTree(queues), GPU).entitlements_of(wants, capacity)
        allowed = {
            name: min(wants[name], max(limit, sure) if limit else wants[name])
            for name, (sure, _, limit, _) in named.items()
        }
        assert sum(result.values()) == pytest.approx(min(capacity, sum(allowed.values())))
        assert all(share <= allowed[name] + 1e-9 for name, share in result.items())
        if sum(sure for sure, *_ in queue_data) <= capacity:
            assert all(
                result.get(name, 0) >= min(sure, wants[name]) - 1e-9 for name, (sure, *_) in named.items()
            )


class TestAllocationAudit:
    def test_audit_counts_allocations_and_releases(self) -> None:
        audit = AllocationAudit([node(gpus=2, cpus=8)])
        held = placement(Resources(3000, GIB, 2), 0, 1)
        audit.allocate(held)
        assert (audit.gpu_used, audit.cpu_used, audit.gpu.tolist(), audit.cpu.tolist()) == (
            2000,
            3000,
            [[0, 0]],
            [5000],
        )
        audit.release(held)
        assert (audit.gpu_used, audit.cpu_used, audit.gpu.tolist(), audit.cpu.tolist()) == (
            0,
            0,
            [[1000, 1000]],
            [8000],
        )

    @pytest.mark.parametrize(
        "extra",
        [
            placement(Resources(1000, 0, 1), 0),
            placement(Resources(9000, 0)),
            placement(Resources(0, 600 * GIB)),
        ],
    )
    def test_audit_refuses_overcommitment(self, extra: Placement) -> None:
        audit = AllocationAudit([node(gpus=2, cpus=8)])
        audit.allocate(placement(Resources(1000, 0, 0, gpu_milli=400), 0, milli=400))
        with pytest.raises(OvercommitError):
            audit.allocate(extra)


class TestFragmentation:
    def test_empty_node_has_no_fragmentation(self) -> None:
        assert (
            RequestMix(
                [Role("w", 1, Resources(1000, 0, 8)), Role("w", 1, Resources(1000, 0, 1))]
            ).fragmentation(AllocationAudit([node()]))
            == 0
        )

    def test_fragmentation_of_a_known_case(self) -> None:
        """Of two nodes with 2 GPUs, the first has one GPU half in use.

        Three of four runs request 2 GPUs, one requests half a GPU.
        """
        shapes = RequestMix(
            [Role("large", 3, Resources(1000, 0, 2)), Role("small", 1, Resources(1000, 0, 0, gpu_milli=500))]
        )
        audit = AllocationAudit([node("n0", gpus=2), node("n1", gpus=2)])
        audit.allocate(placement(Resources(1000, 0, 0, gpu_milli=500), 0, milli=500))
        # free: 1.5 and 2 GPUs. Fragmented for the large runs: 1.5 of the first node; for the small one: none.
        assert shapes.fragmentation(audit) == pytest.approx(0.75 * 1.5 / 3.5)
        audit.allocate(placement(Resources(0, 0, 0, gpu_milli=200), 0, milli=200))
        # now 0.3 of a GPU is fragmented for the small run
        assert shapes.fragmentation(audit) == pytest.approx((0.75 * 1.3 + 0.25 * 0.3) / 3.3)

    def test_gpus_without_free_cpus_are_fragmented(self) -> None:
        shapes, audit = (
            RequestMix([Role("w", 1, Resources(4000, 0, 1))]),
            AllocationAudit([node(cpus=8, gpus=2)]),
        )
        audit.allocate(placement(Resources(6000, 0)))
        assert shapes.fragmentation(audit) == 1

    def test_lost_nodes_have_no_fragmentation(self) -> None:
        audit = AllocationAudit([node()])
        audit.set_ready(NodeId("n0"), False)
        assert RequestMix([Role("w", 1, Resources(1000, 0, 9))]).fragmentation(audit) == 0


def test_distribution_statistics() -> None:
    result = distribution([3.0, 1.0, 2.0, 4.0])
    assert (result.count, result.mean, result.median, result.most) == (4, 2.5, 2.5, 4.0)
    assert result.p99 == pytest.approx(3.97)
    assert distribution([]).count == 0
    assert quantile([5.0], 0.99) == 5.0
