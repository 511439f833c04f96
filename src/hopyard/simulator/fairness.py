"""What each queue received, and what it was entitled to: its part of the cluster at every moment at which it
wanted it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hopyard.domain.amounts import totals
from hopyard.domain.cluster import Node
from hopyard.domain.gang import Gang, Placement
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import CPU, GPU, GPU_OF, MEMORY, Amounts, QueueTree
from hopyard.domain.quota import children, guarantees, most
from hopyard.scheduler.fairness.ask import Cards, in_full


def entitlements(capacity: float, wants: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Weighted max-min fair shares: nobody gets more than it wants, and what is left over goes to the others
    by weight (Bertsekas and Gallager, Data Networks, 6.5.2)."""
    shares = [0.0] * len(wants)
    left, weight = capacity, sum(weights)
    for at in sorted(range(len(wants)), key=lambda i: (wants[i] / weights[i], i)):
        shares[at] = min(wants[at], left * weights[at] / weight) if weight > 0 else 0.0
        left -= shares[at]
        weight -= weights[at]
    return shares


class Entitled:
    """At each level of the tree first what the queues right below are sure of, then by weight what is left,
    to none more than its runs ask for or it may use at most. As the scheduler shares
    (docs/concepts/scheduling.md), without users and what is kept."""

    def __init__(self, tree: QueueTree, resource: str) -> None:
        self._tree, self._below = tree, children(tree)
        self._sure = {name: amounts.get(resource, 0) for name, amounts in guarantees(tree).items()}
        self._most = {name: amounts[resource] for name, amounts in most(tree).items() if resource in amounts}

    def of(self, wants: Mapping[QueueName, float], capacity: float) -> dict[QueueName, float]:
        """Of each leaf that wants any, in the unit of `wants`."""
        total: dict[QueueName, float] = {}
        for name in reversed([*self._tree.queues]):  # children before parents
            want = (
                sum(total[below] for below in self._below[name])
                if name in self._below
                else wants.get(name, 0)
            )
            total[name] = min(want, self._most.get(name, want))
        found: dict[QueueName, float] = {}
        self._divide(None, capacity, total, found)
        return {name: found[name] for name in wants if wants[name] and name in found}

    def _divide(
        self,
        above: QueueName | None,
        capacity: float,
        wants: Mapping[QueueName, float],
        found: dict[QueueName, float],
    ) -> None:
        names = [name for name in self._below.get(above, ()) if wants[name]]
        sure = [min(wants[name], self._sure[name]) for name in names]
        if sum(sure) > capacity:  # more was guaranteed than there is
            sure = entitlements(capacity, sure, [max(self._sure[name], 1) for name in names])
        more = [wants[name] - share for name, share in zip(names, sure, strict=True)]
        rest = entitlements(
            capacity - sum(sure), more, [max(self._tree.queues[name].weight, 1e-9) for name in names]
        )
        for name, least, beyond in zip(names, sure, rest, strict=True):
            found[name] = least + beyond
            self._divide(name, found[name], wants, found)


class FairShares:
    """Sums over time by queue, times microseconds, of the one resource that the queue is measured in; amounts
    as `domain.queue` names them.

    A queue is measured in GPUs where all its runs ask for some, and otherwise in its dominant resource: the
    one of which its runs want the largest part of the cluster, by how long they compute (after Ghodsi et al.,
    Dominant Resource Fairness, NSDI'11)."""

    def __init__(self, tree: QueueTree, nodes: Sequence[Node]) -> None:
        self._tree, self._cards = tree, Cards.of(nodes)
        there = totals(nodes)
        self._capacity = {
            name: there[name] for name in sorted(there, key=_place) if not name.startswith(GPU_OF)
        }
        self._planned: dict[QueueName, Counter[str]] = {}
        self._without_gpu: set[QueueName] = set()
        self.measures: dict[QueueName, str] = {}
        self._entitled: dict[str, Entitled] = {}  # by what any queue is measured in, and so are those below
        self._wanted: dict[str, dict[QueueName, int]] = {}
        self._used: dict[QueueName, int] = {}
        self.received: dict[QueueName, float] = {}
        self.entitled: dict[QueueName, float] = {}
        # what they are entitled to, until somebody wants something else
        self._now: Mapping[QueueName, float] | None = None

    def expect(self, queue: QueueName, demand: Amounts, seconds: float) -> None:
        """A run will come that computes for so long. All are told before the first of them comes."""
        planned = self._planned.setdefault(queue, Counter())
        for name, amount in demand.items():
            planned[name] += amount * max(round(seconds), 1)
        if not demand.get(GPU):
            self._without_gpu.add(queue)

    def begin(self) -> None:
        """All that come were told."""
        for queue, planned in self._planned.items():
            parts = {name: planned[name] / of for name, of in self._capacity.items() if planned[name]}
            if parts:
                self.measures[queue] = (
                    GPU
                    if GPU in parts and queue not in self._without_gpu
                    else max(parts, key=parts.__getitem__)
                )
        for name in set(self.measures.values()):
            self._entitled[name], self._wanted[name] = Entitled(self._tree, name), {}

    def demand_of(self, gang: Gang) -> Amounts:
        """As large as it may be; a share by memory as on the card where it is the largest."""
        found = _beside_gpus(gang)
        found[GPU] = sum(role.replicas * in_full(role.resources, self._cards) for role in gang.roles)
        return found

    def wants(self, queue: QueueName, demand: Amounts, sign: int = 1) -> None:
        """A run came (1) or went (-1)."""
        for name, wanted in self._wanted.items():
            wanted[queue] = wanted.get(queue, 0) + sign * demand.get(name, 0)
        self._now = None

    def gets(self, queue: QueueName, placement: Placement, sign: int = 1) -> None:
        """A run of it started (1) or stopped (-1): what it holds, which is less than it asks for where it is
        elastic."""
        name = self.measures.get(queue)
        if name is None:
            return
        if name == GPU:
            held = sum(assignment.gpu_milli * len(assignment.gpus) for assignment in placement.assignments)
        else:
            held = _beside_gpus(placement.gang)[name]
        self._used[queue] = self._used.get(queue, 0) + sign * held

    def pass_by(self, us: int) -> None:
        if us <= 0:
            return
        if self._now is None:
            self._now = {
                queue: share
                for name, entitled in self._entitled.items()
                for queue, share in entitled.of(self._wanted[name], self._capacity[name]).items()
                if self.measures[queue] == name
            }
        for queue, share in self._now.items():
            self.entitled[queue] = self.entitled.get(queue, 0.0) + share * us
            self.received[queue] = self.received.get(queue, 0.0) + self._used.get(queue, 0) * us


def _place(resource: str) -> tuple[bool, bool, bool, str]:
    """Of two that are wanted alike, GPUs are named before cores, and these before memory and anything
    else."""
    return resource != GPU, resource != CPU, resource != MEMORY, resource


def _beside_gpus(gang: Gang) -> Counter[str]:
    found: Counter[str] = Counter()
    for role in gang.roles:
        found[CPU] += role.replicas * role.resources.cpu_milli
        found[MEMORY] += role.replicas * role.resources.memory_bytes
        for name, amount in role.resources.extras:
            found[name] += role.replicas * amount
    return found


def jain(values: Sequence[float]) -> float:
    """1 where all are equal, 1/n where one has everything (Jain, Chiu and Hawe, DEC TR-301, 1984).
    1 for none."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
