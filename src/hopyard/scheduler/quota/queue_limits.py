"""A tree of queues, prepared for being asked thousands of times a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hopyard.domain.effective_limits import child_queues, guaranteed_amounts, maximum_amounts, queue_path
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import GPU_OF, Amounts, Queue, QueueTree

NO_AMOUNTS: Amounts = {}


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """What never changes while a tree stands.

    paths: of every queue, itself and those above it. guarantees, maximums: guarantee and limit of every
    queue. non_lendable: the part of a guarantee that is never lent. non_lendable_names: resources of which
    somebody keeps some. guaranteed_resources: resources of which somebody is sure of some. limited_levels,
    user_limited_levels, limited_gpu_models: of every leaf, the levels of its path that limit anything, and
    the models of GPUs that they limit. unlimited_leaves: leaves whose gangs are never refused.
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
        sure, largest = guaranteed_amounts(tree), maximum_amounts(tree)
        kept = {name: _non_lendable(queue, sure[name]) for name, queue in tree.queues.items()}
        kept_names = frozenset(name for amounts in kept.values() for name in amounts)
        paths = {name: queue_path(tree, name) for name in tree.queues}
        below = child_queues(tree)
        leaves = frozenset(name for name in tree.queues if name not in below)
        caps = {leaf: _limited_levels(paths[leaf], largest) for leaf in leaves}
        of_users = {name: queue.user_limit for name, queue in tree.queues.items()}
        user_caps = {leaf: _limited_levels(paths[leaf], of_users) for leaf in leaves}
        models = {leaf: _limited_gpu_models(caps[leaf] + user_caps[leaf], kept_names) for leaf in leaves}
        return cls(
            tree, leaves, paths, sure, largest, kept, kept_names,
            frozenset(name for amounts in sure.values() for name, amount in amounts.items() if amount),
            caps, user_caps, models,
            frozenset(leaf for leaf in leaves if not (caps[leaf] or user_caps[leaf] or kept_names)),
        )  # fmt: skip

    def path(self, queue: QueueName) -> tuple[QueueName, ...]:
        """A queue that is not in the tree (any more) stands alone, with no guarantee and no limit."""
        return self.paths.get(queue) or (queue,)

    def covered_resources(self, queue: QueueName, used: Amounts, requested: Amounts) -> list[str]:
        """The resources asked for that the queue is sure of, if it has guarantees left for all of them; else
        nothing."""
        sure = self.guarantees.get(queue, NO_AMOUNTS)
        named = []
        for name, amount in requested.items():
            of_this = sure.get(name)
            if of_this:
                if used.get(name, 0) + amount > of_this:
                    return []
                named.append(name)
        return named


def _non_lendable(queue: Queue, guarantee: Amounts) -> Amounts:
    kept = {name: guarantee.get(name, 0) - lent for name, lent in queue.lend_limit.items()}
    return {name: amount for name, amount in kept.items() if amount > 0}


def _limited_levels(
    queues: Iterable[QueueName], limits: Mapping[QueueName, Amounts]
) -> tuple[tuple[QueueName, Amounts], ...]:
    return tuple((queue, limits[queue]) for queue in queues if limits[queue])


def _limited_gpu_models(
    levels: Iterable[tuple[QueueName, Amounts]], non_lendable: Iterable[str]
) -> frozenset[str]:
    named = {name for _, amounts in levels for name in amounts} | set(non_lendable)
    return frozenset(name.removeprefix(GPU_OF) for name in named if name.startswith(GPU_OF))
