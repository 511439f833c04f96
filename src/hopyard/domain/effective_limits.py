"""Effective limits of a tree of queues: ancestors, guarantee and limit of each queue."""

from __future__ import annotations

from collections import Counter

from hopyard.domain.ids import QueueName
from hopyard.domain.queue import GPU, GPU_OF, Amounts, QueueTree


def queue_path(tree: QueueTree, queue: QueueName) -> tuple[QueueName, ...]:
    """Returns the queue and its ancestors, the queue first; () for an unknown queue."""
    path: list[QueueName] = []
    current: QueueName | None = queue
    while current is not None and current in tree.queues:
        path.append(current)
        current = tree.queues[current].parent
    return tuple(path)


def child_queues(tree: QueueTree) -> dict[QueueName | None, list[QueueName]]:
    """Returns the children of each queue, sorted by name; None has the root queues. Leaves have no entry."""
    children: dict[QueueName | None, list[QueueName]] = {}
    for name in sorted(tree.queues):
        children.setdefault(tree.queues[name].parent, []).append(name)
    return children


def guaranteed_amounts(tree: QueueTree) -> dict[QueueName, Amounts]:
    """Returns the guarantee of each queue. A resource without a guarantee gets the sum of the children's
    guarantees."""
    children_sums: dict[QueueName, Counter[str]] = {name: Counter() for name in tree.queues}
    guarantees: dict[QueueName, Amounts] = {}
    for name in reversed(list(tree.queues)):  # children before parents
        queue = tree.queues[name]
        guarantees[name] = {**children_sums[name], **queue.guarantee}
        if queue.parent is not None:
            children_sums[queue.parent].update(guarantees[name])
    return guarantees


def guaranteed_gpus(tree: QueueTree) -> dict[QueueName, int]:
    """Returns the guaranteed GPUs of each queue in thousandths, over all models.

    Guaranteed GPUs of a model count as GPUs, too. So this is the larger of the guarantee of `gpu` and the sum
    of the guarantees of all `gpu:MODEL`.
    """
    guarantees = guaranteed_amounts(tree)
    children_sums: Counter[QueueName] = Counter()
    gpus: dict[QueueName, int] = {}
    for name in reversed(list(tree.queues)):  # children before parents
        queue = tree.queues[name]
        models = sum(amount for resource, amount in guarantees[name].items() if resource.startswith(GPU_OF))
        gpus[name] = max(queue.guarantee.get(GPU, children_sums[name]), models)
        if queue.parent is not None:
            children_sums[queue.parent] += gpus[name]
    return gpus


def maximum_amounts(tree: QueueTree) -> dict[QueueName, Amounts]:
    """Returns the most that each queue may use, by its own maximum and by its guarantee plus borrow limit."""
    guarantees, gpus = guaranteed_amounts(tree), guaranteed_gpus(tree)
    maximums: dict[QueueName, Amounts] = {}
    for name, queue in tree.queues.items():
        limits = dict(queue.maximum)
        for resource, borrow_limit in queue.borrow_limit.items():
            borrowed = (gpus[name] if resource == GPU else guarantees[name].get(resource, 0)) + borrow_limit
            limits[resource] = min(limits.get(resource, borrowed), borrowed)
        maximums[name] = limits
    return maximums


def effective_submitters(tree: QueueTree, queue: QueueName) -> tuple[str, ...]:
    """Returns the users that may submit to the queue: its own list, else the list of its nearest ancestor.
    () means all users."""
    return next(
        (tree.queues[name].submitters for name in queue_path(tree, queue) if tree.queues[name].submitters), ()
    )


def effective_admins(tree: QueueTree, queue: QueueName) -> tuple[str, ...]:
    """Returns the administrators of the queue and of its ancestors, without the server's owner."""
    return tuple(dict.fromkeys(user for name in queue_path(tree, queue) for user in tree.queues[name].admins))
