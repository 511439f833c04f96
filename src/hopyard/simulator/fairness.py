"""What each queue received, and what it was entitled to: its part of the cluster at every moment at which it wanted it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hopyard.domain.cluster import Node
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import CPU, GPU, QueueTree
from hopyard.domain.quota import children, guarantees, most
from hopyard.scheduler.fairness.ask import Cards, in_full


def entitlements(capacity: float, wants: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Weighted max-min fair shares: nobody gets more than it wants, and what is left over goes to the others by weight
    (Bertsekas and Gallager, Data Networks, 6.5.2)."""
    shares = [0.0] * len(wants)
    left, weight = capacity, sum(weights)
    for at in sorted(range(len(wants)), key=lambda i: (wants[i] / weights[i], i)):
        shares[at] = min(wants[at], left * weights[at] / weight) if weight > 0 else 0.0
        left -= shares[at]
        weight -= weights[at]
    return shares


class Entitled:
    """At each level of the tree first what the queues right below are sure of, then by weight what is left, to none more than its
    runs ask for or it may use at most. As the scheduler shares (docs/queues.md), without users and what is kept."""

    def __init__(self, tree: QueueTree, resource: str) -> None:
        self._tree, self._below = tree, children(tree)
        self._sure = {name: amounts.get(resource, 0) for name, amounts in guarantees(tree).items()}
        self._most = {name: amounts[resource] for name, amounts in most(tree).items() if resource in amounts}

    def of(self, wants: Mapping[QueueName, float], capacity: float) -> dict[QueueName, float]:
        """Of each leaf that wants any, in thousandths."""
        total: dict[QueueName, float] = {}
        for name in reversed([*self._tree.queues]):  # children before parents
            want = sum(total[below] for below in self._below[name]) if name in self._below else wants.get(name, 0)
            total[name] = min(want, self._most.get(name, want))
        found: dict[QueueName, float] = {}
        self._divide(None, capacity, total, found)
        return {name: found[name] for name in wants if wants[name] and name in found}

    def _divide(self, above: QueueName | None, capacity: float, wants: Mapping[QueueName, float], found: dict[QueueName, float]) -> None:
        names = [name for name in self._below.get(above, ()) if wants[name]]
        sure = [min(wants[name], self._sure[name]) for name in names]
        if sum(sure) > capacity:  # more was guaranteed than there is
            sure = entitlements(capacity, sure, [max(self._sure[name], 1) for name in names])
        more = [wants[name] - share for name, share in zip(names, sure, strict=True)]
        rest = entitlements(capacity - sum(sure), more, [max(self._tree.queues[name].weight, 1e-9) for name in names])
        for name, least, beyond in zip(names, sure, rest, strict=True):
            found[name] = least + beyond
            self._divide(name, found[name], wants, found)


class FairShares:
    """Sums over time, in thousandths of a GPU (of a core, on a cluster without GPUs) times microseconds, by queue."""

    def __init__(self, tree: QueueTree, nodes: Iterable[Node], *, capacity: int, by_gpu: bool) -> None:
        self._entitled = Entitled(tree, GPU if by_gpu else CPU)
        self._capacity, self._by_gpu, self._cards = capacity, by_gpu, Cards.of(nodes)
        self._wanted: dict[QueueName, int] = {}
        self._used: dict[QueueName, int] = {}
        self.received: dict[QueueName, float] = {}
        self.entitled: dict[QueueName, float] = {}
        self._now: Mapping[QueueName, float] | None = None  # what they are entitled to, until somebody wants something else

    def demand_of(self, gang: Gang) -> int:
        """As large as it may be; a share by memory as on the card where it is the largest."""
        if not self._by_gpu:
            return sum(role.replicas * role.resources.cpu_milli for role in gang.roles)
        return sum(role.replicas * in_full(role.resources, self._cards) for role in gang.roles)

    def held(self, placement: Placement) -> int:
        """What it holds, which is less than it asks for where it is elastic."""
        if not self._by_gpu:
            return self.demand_of(placement.gang)
        return sum(assignment.gpu_milli * len(assignment.gpus) for assignment in placement.assignments)

    def wants(self, queue: QueueName, amount: int) -> None:
        """A run came (amount) or went (-amount)."""
        self._wanted[queue] = self._wanted.get(queue, 0) + amount
        self._now = None

    def gets(self, queue: QueueName, amount: int) -> None:
        """A run of it started (amount) or stopped (-amount)."""
        self._used[queue] = self._used.get(queue, 0) + amount

    def pass_by(self, us: int) -> None:
        if us <= 0:
            return
        if self._now is None:
            self._now = self._entitled.of(self._wanted, self._capacity)
        for name, share in self._now.items():
            self.entitled[name] = self.entitled.get(name, 0.0) + share * us
            self.received[name] = self.received.get(name, 0.0) + self._used.get(name, 0) * us


def jain(values: Sequence[float]) -> float:
    """1 where all are equal, 1/n where one has everything (Jain, Chiu and Hawe, DEC TR-301, 1984). 1 for none."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
