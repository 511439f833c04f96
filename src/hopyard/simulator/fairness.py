"""Computes what each queue received, and its entitlement: its share of the cluster at every moment with
demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hopyard.domain.amounts import total_amounts
from hopyard.domain.cluster import Node
from hopyard.domain.effective_limits import child_queues, guaranteed_amounts, maximum_amounts
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import CPU, GPU, GPU_OF, MEMORY, Amounts, QueueTree
from hopyard.scheduler.quota.requests import GpuModels, gpu_milli_upper_bound


def entitlements(capacity: float, demands: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Returns weighted max-min fair shares: no share exceeds its demand, and the rest goes to the others by
    weight (Bertsekas and Gallager, Data Networks, 6.5.2)."""
    shares = [0.0] * len(demands)
    remaining, remaining_weight = capacity, sum(weights)
    for index in sorted(
        range(len(demands)), key=lambda position: (demands[position] / weights[position], position)
    ):
        shares[index] = (
            min(demands[index], remaining * weights[index] / remaining_weight)
            if remaining_weight > 0
            else 0.0
        )
        remaining -= shares[index]
        remaining_weight -= weights[index]
    return shares


class EntitlementCalculator:
    """Computes entitlements at each level of the tree: first the guarantees of the child queues, then the
    rest by weight. No queue gets more than the requests of its runs or its maximum. This is the scheduler's
    sharing (docs/concepts/scheduling.md) without users and held capacity."""

    def __init__(self, tree: QueueTree, resource: str) -> None:
        self._tree, self._children = tree, child_queues(tree)
        self._guarantees = {
            name: amounts.get(resource, 0) for name, amounts in guaranteed_amounts(tree).items()
        }
        self._maximums = {
            name: amounts[resource] for name, amounts in maximum_amounts(tree).items() if resource in amounts
        }

    def entitlements_of(self, demands: Mapping[QueueName, float], capacity: float) -> dict[QueueName, float]:
        """Returns the entitlement of each leaf with demand, in the unit of `demands`."""
        total: dict[QueueName, float] = {}
        for name in reversed([*self._tree.queues]):  # children before parents
            demand = (
                sum(total[child] for child in self._children[name])
                if name in self._children
                else demands.get(name, 0)
            )
            total[name] = min(demand, self._maximums.get(name, demand))
        shares: dict[QueueName, float] = {}
        self._divide(None, capacity, total, shares)
        return {name: shares[name] for name in demands if demands[name] and name in shares}

    def _divide(
        self,
        parent: QueueName | None,
        capacity: float,
        demands: Mapping[QueueName, float],
        shares: dict[QueueName, float],
    ) -> None:
        names = [name for name in self._children.get(parent, ()) if demands[name]]
        guaranteed = [min(demands[name], self._guarantees[name]) for name in names]
        if sum(guaranteed) > capacity:  # the guarantees exceed the capacity
            guaranteed = entitlements(
                capacity, guaranteed, [max(self._guarantees[name], 1) for name in names]
            )
        open_demands = [demands[name] - share for name, share in zip(names, guaranteed, strict=True)]
        by_weight = entitlements(
            capacity - sum(guaranteed),
            open_demands,
            [max(self._tree.queues[name].weight, 1e-9) for name in names],
        )
        for name, guaranteed_share, weighted_share in zip(names, guaranteed, by_weight, strict=True):
            shares[name] = guaranteed_share + weighted_share
            self._divide(name, shares[name], demands, shares)


class FairShareAccounting:
    """Sums over time by queue, times microseconds, of the one resource by which the queue is measured.
    Amounts are named as in `domain.queue`.

    A queue is measured in GPUs where all its runs request some, and otherwise in its dominant resource: the
    one of which its runs request the largest part of the cluster, weighted by their compute time (after
    Ghodsi et al., Dominant Resource Fairness, NSDI'11).
    """

    def __init__(self, tree: QueueTree, nodes: Sequence[Node]) -> None:
        self._tree, self._gpu_models = tree, GpuModels.of(nodes)
        totals = total_amounts(nodes)
        self._capacity = {
            name: totals[name] for name in sorted(totals, key=_measure_order) if not name.startswith(GPU_OF)
        }
        self._expected_demand: dict[QueueName, Counter[str]] = {}
        self._without_gpu: set[QueueName] = set()
        self.measured_resource: dict[QueueName, str] = {}
        self._calculators: dict[str, EntitlementCalculator] = {}  # by the resource that measures a queue
        self._demand: dict[str, dict[QueueName, int]] = {}
        self._used: dict[QueueName, int] = {}
        self.received: dict[QueueName, float] = {}
        self.entitled: dict[QueueName, float] = {}
        # valid until a demand changes
        self._current_entitlements: Mapping[QueueName, float] | None = None

    def add_expected(self, queue: QueueName, demand: Amounts, seconds: float) -> None:
        """Adds a run that will be submitted and computes for so long. All runs are added before the first
        submission."""
        planned = self._expected_demand.setdefault(queue, Counter())
        for name, amount in demand.items():
            planned[name] += amount * max(round(seconds), 1)
        if not demand.get(GPU):
            self._without_gpu.add(queue)

    def choose_measures(self) -> None:
        """Chooses the resource of each queue, after all runs were added."""
        for queue, planned in self._expected_demand.items():
            shares = {
                name: planned[name] / capacity for name, capacity in self._capacity.items() if planned[name]
            }
            if shares:
                self.measured_resource[queue] = (
                    GPU
                    if GPU in shares and queue not in self._without_gpu
                    else max(shares, key=shares.__getitem__)
                )
        for name in set(self.measured_resource.values()):
            self._calculators[name], self._demand[name] = EntitlementCalculator(self._tree, name), {}

    def demand_of(self, gang: Gang) -> Amounts:
        """Returns the largest demand of the gang. A share by memory counts as on the card where it is
        largest."""
        demand = _non_gpu_demand(gang)
        demand[GPU] = sum(
            role.replicas * gpu_milli_upper_bound(role.resources, self._gpu_models) for role in gang.roles
        )
        return demand

    def add_demand(self, queue: QueueName, demand: Amounts, sign: int = 1) -> None:
        """Records that a run was submitted (1) or ended (-1)."""
        for name, demands in self._demand.items():
            demands[queue] = demands.get(queue, 0) + sign * demand.get(name, 0)
        self._current_entitlements = None

    def add_usage(self, queue: QueueName, placement: Placement, sign: int = 1) -> None:
        """Records that a run of the queue started (1) or stopped (-1), by what it holds: less than its
        request where it is elastic."""
        name = self.measured_resource.get(queue)
        if name is None:
            return
        if name == GPU:
            amount = sum(assignment.gpu_milli * len(assignment.gpus) for assignment in placement.assignments)
        else:
            amount = _non_gpu_demand(placement.gang)[name]
        self._used[queue] = self._used.get(queue, 0) + sign * amount

    def advance(self, us: int) -> None:
        if us <= 0:
            return
        if self._current_entitlements is None:
            self._current_entitlements = {
                queue: share
                for name, calculator in self._calculators.items()
                for queue, share in calculator.entitlements_of(
                    self._demand[name], self._capacity[name]
                ).items()
                if self.measured_resource[queue] == name
            }
        for queue, share in self._current_entitlements.items():
            self.entitled[queue] = self.entitled.get(queue, 0.0) + share * us
            self.received[queue] = self.received.get(queue, 0.0) + self._used.get(queue, 0) * us


def _measure_order(resource: str) -> tuple[bool, bool, bool, str]:
    """Returns the order of resources with equal demand: GPUs before cores, cores before memory, memory before
    others."""
    return resource != GPU, resource != CPU, resource != MEMORY, resource


def _non_gpu_demand(gang: Gang) -> Counter[str]:
    demand: Counter[str] = Counter()
    for role in gang.roles:
        demand[CPU] += role.replicas * role.resources.cpu_milli
        demand[MEMORY] += role.replicas * role.resources.memory_bytes
        for name, amount in role.resources.extras:
            demand[name] += role.replicas * amount
    return demand


def jain_index(values: Sequence[float]) -> float:
    """Returns Jain's index of fairness: 1 if all values are equal, 1/n if one value has everything (Jain,
    Chiu and Hawe, DEC TR-301, 1984). Returns 1 for no values."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
