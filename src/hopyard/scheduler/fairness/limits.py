"""A tree of queues, prepared for being asked thousands of times a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hopyard.domain.ids import QueueName
from hopyard.domain.queue import GPU_OF, Amounts, Queue, QueueTree
from hopyard.domain.quota import children, guarantees, most, path

NOTHING: Amounts = {}


@dataclass(frozen=True, slots=True)
class Limits:
    """What never changes while a tree stands.

    paths: of every queue, itself and those above it. sure, most: guarantee and limit of every queue. kept:
    the part of a guarantee that is never lent. kept_names: resources of which somebody keeps some.
    guaranteed: resources of which somebody is sure of some. caps, user_caps, models: of every leaf, the
    levels of its path that limit anything, and the models of GPUs that they limit. unlimited: leaves whose
    gangs are never refused.
    """

    tree: QueueTree
    leaves: frozenset[QueueName]
    paths: Mapping[QueueName, tuple[QueueName, ...]]
    sure: Mapping[QueueName, Amounts]
    most: Mapping[QueueName, Amounts]
    kept: Mapping[QueueName, Amounts]
    kept_names: frozenset[str]
    guaranteed: frozenset[str]
    caps: Mapping[QueueName, tuple[tuple[QueueName, Amounts], ...]]
    user_caps: Mapping[QueueName, tuple[tuple[QueueName, Amounts], ...]]
    models: Mapping[QueueName, frozenset[str]]
    unlimited: frozenset[QueueName]

    @classmethod
    def of(cls, tree: QueueTree) -> Limits:
        sure, largest = guarantees(tree), most(tree)
        kept = {name: _kept(queue, sure[name]) for name, queue in tree.queues.items()}
        kept_names = frozenset(name for amounts in kept.values() for name in amounts)
        paths = {name: path(tree, name) for name in tree.queues}
        below = children(tree)
        leaves = frozenset(name for name in tree.queues if name not in below)
        caps = {leaf: _limiting(paths[leaf], largest) for leaf in leaves}
        of_users = {name: queue.user_limit for name, queue in tree.queues.items()}
        user_caps = {leaf: _limiting(paths[leaf], of_users) for leaf in leaves}
        models = {leaf: _models(caps[leaf] + user_caps[leaf], kept_names) for leaf in leaves}
        return cls(
            tree, leaves, paths, sure, largest, kept, kept_names,
            frozenset(name for amounts in sure.values() for name, amount in amounts.items() if amount),
            caps, user_caps, models,
            frozenset(leaf for leaf in leaves if not (caps[leaf] or user_caps[leaf] or kept_names)),
        )  # fmt: skip

    def path(self, queue: QueueName) -> tuple[QueueName, ...]:
        """A queue that is not in the tree (any more) stands alone, with no guarantee and no limit."""
        return self.paths.get(queue) or (queue,)

    def within(self, queue: QueueName, used: Amounts, ask: Amounts) -> list[str]:
        """The resources asked for that the queue is sure of, if it has guarantees left for all of them; else
        nothing."""
        sure = self.sure.get(queue, NOTHING)
        named = []
        for name, amount in ask.items():
            of_this = sure.get(name)
            if of_this:
                if used.get(name, 0) + amount > of_this:
                    return []
                named.append(name)
        return named


def _kept(queue: Queue, sure: Amounts) -> Amounts:
    kept = {name: sure.get(name, 0) - lent for name, lent in queue.lend_limit.items()}
    return {name: amount for name, amount in kept.items() if amount > 0}


def _limiting(
    queues: Iterable[QueueName], limits: Mapping[QueueName, Amounts]
) -> tuple[tuple[QueueName, Amounts], ...]:
    return tuple((queue, limits[queue]) for queue in queues if limits[queue])


def _models(caps: Iterable[tuple[QueueName, Amounts]], kept: Iterable[str]) -> frozenset[str]:
    named = {name for _, amounts in caps for name in amounts} | set(kept)
    return frozenset(name.removeprefix(GPU_OF) for name in named if name.startswith(GPU_OF))
