"""The order of YARN's capacity scheduler: between queues by how full their guarantee is, first come, first
served inside."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from hopyard.domain.amounts import totals
from hopyard.domain.cluster import Plan, Snapshot
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import Amounts
from hopyard.domain.quota import children, path
from hopyard.scheduler.policies.followed import Followed, Tentative, shape_of
from hopyard.scheduler.policies.holds import Holds, Reasons

Fullness = tuple[tuple[float, QueueName], ...]


class CapacityOrder:
    """From the top of the tree down, the child that uses the smallest part of its guarantee comes first; in a
    leaf priority, then submission. The first of a leaf that finds no place blocks its leaf, and no other.
    Nobody is preempted.

    Of several resources the fullest counts. A queue without a guarantee is taken to have its part, by weight,
    of what its parent has. Source: Apache Hadoop, Capacity Scheduler.
    """

    def __init__(self) -> None:
        self._known: Followed[QueueName] = Followed(lambda gang: gang.queue)

    def __call__(self, snapshot: Snapshot) -> Plan:
        known = self._known
        known.follow(snapshot)
        now = Tentative(known, "best-fit")
        waiting = {queue: iter(gangs) for queue, gangs in known.waiting.items()}
        sure = dict(_sure(snapshot)) if waiting else {}
        full: set[object] = set()  # of these shapes none fits any more

        def fullness(queue: QueueName) -> Fullness:
            levels = reversed(path(snapshot.queues, queue))
            return tuple((_part_used(now.accounts.used(level), sure[level]), level) for level in levels)

        line = sorted(waiting, key=fullness)
        while line:
            queue = line.pop(0)
            gang = next(waiting[queue], None)
            if gang is None:
                continue
            if known.hopeless(gang) is not None or now.accounts.refusal(gang) is not None:
                line.insert(0, queue)  # it stands in nobody's way
            elif shape_of(gang) not in full and now.start(gang) is not None:
                line = sorted([queue, *line], key=fullness)
            elif not now.accounts.closed_models(gang):
                full.add(shape_of(gang))
        return Plan(
            snapshot.version,
            tuple(now.placed),
            Holds(snapshot.pending, now.placed, Reasons(now, known.hopeless)),
        )


def _part_used(used: Amounts, sure: Amounts) -> float:
    return max(
        (
            amount / sure[name] if sure[name] else inf
            for name, amount in used.items()
            if amount and name in sure
        ),
        default=0.0,
    )


def _sure(snapshot: Snapshot) -> Iterator[tuple[QueueName, Amounts]]:
    """What each queue is sure of, resource by resource."""
    tree, below = snapshot.queues, children(snapshot.queues)
    found: dict[QueueName | None, Amounts] = {
        None: totals(node for node in snapshot.nodes.values() if node.open)
    }
    for name, queue in tree.queues.items():  # parents before children
        siblings = sum(tree.queues[one].weight for one in below[queue.parent])
        part = {
            resource: int(amount * queue.weight / siblings)
            for resource, amount in found[queue.parent].items()
        }
        found[name] = {**part, **queue.guarantee}
        yield name, found[name]
