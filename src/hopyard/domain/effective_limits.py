"""Effective limits of a tree of queues: ancestors, guarantee and limit of each queue."""

from __future__ import annotations

from collections import Counter

from hopyard.domain.ids import QueueName
from hopyard.domain.queue import GPU, GPU_OF, Amounts, QueueTree


def queue_path(tree: QueueTree, queue: QueueName) -> tuple[QueueName, ...]:
    """The queue and all above it, the queue first. () when there is no such queue."""
    found: list[QueueName] = []
    at: QueueName | None = queue
    while at is not None and at in tree.queues:
        found.append(at)
        at = tree.queues[at].parent
    return tuple(found)


def child_queues(tree: QueueTree) -> dict[QueueName | None, list[QueueName]]:
    """The queues right below each, by name; under None those that are below no other.
    Leaves have no entry."""
    found: dict[QueueName | None, list[QueueName]] = {}
    for name in sorted(tree.queues):
        found.setdefault(tree.queues[name].parent, []).append(name)
    return found


def guaranteed_amounts(tree: QueueTree) -> dict[QueueName, Amounts]:
    """What each queue is sure of. A queue that does not name a resource is sure of what those right below it
    are sure of."""
    below: dict[QueueName, Counter[str]] = {name: Counter() for name in tree.queues}
    found: dict[QueueName, Amounts] = {}
    for name in reversed(list(tree.queues)):  # children before parents
        queue = tree.queues[name]
        found[name] = {**below[name], **queue.guarantee}
        if queue.parent is not None:
            below[queue.parent].update(found[name])
    return found


def guaranteed_gpus(tree: QueueTree) -> dict[QueueName, int]:
    """Thousandths of GPUs, of whatever model, that each queue is sure of: those of its models count as GPUs
    too, so this is the larger of what it is sure of in `gpu` and of what it is sure of in all `gpu:MODEL`
    together."""
    sure = guaranteed_amounts(tree)
    below: Counter[QueueName] = Counter()
    found: dict[QueueName, int] = {}
    for name in reversed(list(tree.queues)):  # children before parents
        queue = tree.queues[name]
        models = sum(amount for resource, amount in sure[name].items() if resource.startswith(GPU_OF))
        found[name] = max(queue.guarantee.get(GPU, below[name]), models)
        if queue.parent is not None:
            below[queue.parent] += found[name]
    return found


def maximum_amounts(tree: QueueTree) -> dict[QueueName, Amounts]:
    """The most that each queue may ever use, by its own maximum and by what it may borrow beyond its
    guarantee."""
    sure, gpus = guaranteed_amounts(tree), guaranteed_gpus(tree)
    found: dict[QueueName, Amounts] = {}
    for name, queue in tree.queues.items():
        limits = dict(queue.maximum)
        for resource, beyond in queue.borrow_limit.items():
            borrowed = (gpus[name] if resource == GPU else sure[name].get(resource, 0)) + beyond
            limits[resource] = min(limits.get(resource, borrowed), borrowed)
        found[name] = limits
    return found


def effective_submitters(tree: QueueTree, queue: QueueName) -> tuple[str, ...]:
    """Returns the users that may submit to the queue: its own list, else the list of its nearest ancestor.
    () means all users."""
    return next(
        (tree.queues[name].submitters for name in queue_path(tree, queue) if tree.queues[name].submitters), ()
    )


def effective_admins(tree: QueueTree, queue: QueueName) -> tuple[str, ...]:
    """Returns the administrators of the queue and of its ancestors, without the server's owner."""
    return tuple(dict.fromkeys(user for name in queue_path(tree, queue) for user in tree.queues[name].admins))
