"""What each queue received, and what it was entitled to: its part, by weight, of the cluster at every moment at which it wanted it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hopyard.domain.gang import Gang
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import GPU, QueueTree
from hopyard.domain.resources import WHOLE_GPU


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


def leaf_weights(tree: QueueTree) -> dict[QueueName, float]:
    """Each leaf's part of the cluster: at each level of the tree by guarantee where siblings have any, else by weight."""
    parents = {queue.parent for queue in tree.queues.values() if queue.parent is not None}
    return {name: _part(tree, name) for name in tree.queues if name not in parents}


def _part(tree: QueueTree, name: QueueName) -> float:
    queue = tree.queues[name]
    siblings = [one for one in tree.queues.values() if one.parent == queue.parent]
    guaranteed = sum(one.guarantee.get(GPU, 0) for one in siblings)
    part = queue.guarantee.get(GPU, 0) / guaranteed if guaranteed else queue.weight / sum(one.weight for one in siblings)
    return part if queue.parent is None else part * _part(tree, queue.parent)


class FairShares:
    """Sums over time, in thousandths of a GPU (of a core, on a cluster without GPUs) times microseconds, by queue."""

    def __init__(self, tree: QueueTree, *, capacity: int, by_gpu: bool) -> None:
        self._weights = {name: max(weight, 1e-9) for name, weight in leaf_weights(tree).items()}
        self._capacity, self._by_gpu = capacity, by_gpu
        self._wanted: dict[QueueName, int] = dict.fromkeys(self._weights, 0)
        self._used: dict[QueueName, int] = dict.fromkeys(self._weights, 0)
        self.received: dict[QueueName, float] = dict.fromkeys(self._weights, 0.0)
        self.entitled: dict[QueueName, float] = dict.fromkeys(self._weights, 0.0)
        self._now: Mapping[QueueName, float] | None = None  # what they are entitled to, until somebody wants something else

    def demand_of(self, gang: Gang) -> int:
        if not self._by_gpu:
            return sum(role.replicas * role.resources.cpu_milli for role in gang.roles)
        return sum(role.replicas * (role.resources.gpus * WHOLE_GPU or role.resources.gpu_milli) for role in gang.roles)

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
            active = [name for name, amount in self._wanted.items() if amount]
            weights = [self._weights.get(name, 1e-9) for name in active]
            self._now = dict(
                zip(active, entitlements(self._capacity, [self._wanted[name] for name in active], weights), strict=True)
            )
        for name, share in self._now.items():
            self.entitled[name] = self.entitled.get(name, 0.0) + share * us
        for name in self._now:
            self.received[name] = self.received.get(name, 0.0) + self._used.get(name, 0) * us


def jain(values: Sequence[float]) -> float:
    """1 where all are equal, 1/n where one has everything (Jain, Chiu and Hawe, DEC TR-301, 1984). 1 for none."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0
