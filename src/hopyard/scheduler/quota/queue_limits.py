"""The limits of a queue tree, prepared for thousands of look-ups per plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hopyard.domain.effective_limits import child_queues, guaranteed_amounts, maximum_amounts, queue_path
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import GPU_OF, Amounts, Queue, QueueTree

NO_AMOUNTS: Amounts = {}


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """The values that depend only on the queue tree.

    paths: each queue with its ancestors. guarantees, maximums: guarantee and limit of each queue.
    non_lendable: the part of a guarantee that is never lent. non_lendable_names: resources of which any queue
    has a non-lendable part. guaranteed_resources: resources that any queue has a guarantee for.
    limited_levels, user_limited_levels, limited_gpu_models: for each leaf, the levels of its path that have
    limits, and the GPU models that they limit. unlimited_leaves: leaves whose gangs are never refused.
    """

    tree: QueueTree
    leaves: frozenset[QueueName]
    paths: Mapping[QueueName, tuple[QueueName, ...]]
    guarantees: Mapping[QueueName, Amounts]
    maximums: Mapping[QueueName, Amounts]
    non_lendable: Mapping[QueueName, Amounts]
    non_lendable_names: frozenset[str]
    guaranteed_resources: frozenset[str]
    limited_levels: Mapping[QueueName, tuple[tuple[QueueName, Amounts], ...]]
    user_limited_levels: Mapping[QueueName, tuple[tuple[QueueName, Amounts], ...]]
    limited_gpu_models: Mapping[QueueName, frozenset[str]]
    unlimited_leaves: frozenset[QueueName]

    @classmethod
    def of(cls, tree: QueueTree) -> QueueLimits:
        guarantees, maximums = guaranteed_amounts(tree), maximum_amounts(tree)
        non_lendable = {name: _non_lendable(queue, guarantees[name]) for name, queue in tree.queues.items()}
        non_lendable_names = frozenset(name for amounts in non_lendable.values() for name in amounts)
        paths = {name: queue_path(tree, name) for name in tree.queues}
        children = child_queues(tree)
        leaves = frozenset(name for name in tree.queues if name not in children)
        limited_levels = {leaf: _limited_levels(paths[leaf], maximums) for leaf in leaves}
        user_limits = {name: queue.user_limit for name, queue in tree.queues.items()}
        user_limited_levels = {leaf: _limited_levels(paths[leaf], user_limits) for leaf in leaves}
        models = {
            leaf: _limited_gpu_models(limited_levels[leaf] + user_limited_levels[leaf], non_lendable_names)
            for leaf in leaves
        }
        return cls(
            tree, leaves, paths, guarantees, maximums, non_lendable, non_lendable_names,
            frozenset(name for amounts in guarantees.values() for name, amount in amounts.items() if amount),
            limited_levels, user_limited_levels, models,
            frozenset(
                leaf
                for leaf in leaves
                if not (limited_levels[leaf] or user_limited_levels[leaf] or non_lendable_names)
            ),
        )  # fmt: skip

    def path(self, queue: QueueName) -> tuple[QueueName, ...]:
        """Returns the queue and its ancestors. A removed queue has no ancestors, no guarantee and no
        limit."""
        return self.paths.get(queue) or (queue,)

    def covered_resources(self, queue: QueueName, used: Amounts, requested: Amounts) -> list[str]:
        """Returns the requested resources for which the queue has a guarantee, if its unused guarantees cover
        all of them; else an empty list."""
        guarantees = self.guarantees.get(queue, NO_AMOUNTS)
        covered = []
        for name, amount in requested.items():
            guarantee = guarantees.get(name)
            if guarantee:
                if used.get(name, 0) + amount > guarantee:
                    return []
                covered.append(name)
        return covered


def _non_lendable(queue: Queue, guarantee: Amounts) -> Amounts:
    amounts = {name: guarantee.get(name, 0) - lent for name, lent in queue.lend_limit.items()}
    return {name: amount for name, amount in amounts.items() if amount > 0}


def _limited_levels(
    queues: Iterable[QueueName], limits: Mapping[QueueName, Amounts]
) -> tuple[tuple[QueueName, Amounts], ...]:
    return tuple((queue, limits[queue]) for queue in queues if limits[queue])


def _limited_gpu_models(
    levels: Iterable[tuple[QueueName, Amounts]], non_lendable: Iterable[str]
) -> frozenset[str]:
    names = {name for _, amounts in levels for name in amounts} | set(non_lendable)
    return frozenset(name.removeprefix(GPU_OF) for name in names if name.startswith(GPU_OF))
