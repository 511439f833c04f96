"""The order of YARN's capacity scheduler: queues by the used share of their guarantee, first come, first
served inside a queue."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from hopyard.domain.amounts import total_amounts
from hopyard.domain.cluster import Plan, Snapshot
from hopyard.domain.effective_limits import child_queues, queue_path
from hopyard.domain.ids import QueueName
from hopyard.domain.queue import Amounts
from hopyard.scheduler.policies.baseline_holds import BaselineHoldCauses, BaselineHolds
from hopyard.scheduler.policies.incremental_state import IncrementalState, TentativePlan, class_of

GuaranteeUse = tuple[tuple[float, QueueName], ...]


class CapacityOrder:
    """From the top of the tree down, the child that uses the smallest part of its guarantee comes first; in a
    leaf priority, then submission. The first of a leaf that finds no place blocks its leaf, and no other.
    Nobody is preempted.

    Of several resources the fullest counts. A queue without a guarantee is taken to have its part, by weight,
    of what its parent has. Source: Apache Hadoop, Capacity Scheduler.
    """

    def __init__(self) -> None:
        self._incremental_state: IncrementalState[QueueName] = IncrementalState(lambda gang: gang.queue)

    def __call__(self, snapshot: Snapshot) -> Plan:
        known = self._incremental_state
        known.update(snapshot)
        now = TentativePlan(known, "best-fit")
        waiting = {queue: iter(gangs) for queue, gangs in known.pending.items()}
        sure = dict(_effective_guarantees(snapshot)) if waiting else {}
        full: set[object] = set()  # of these shapes none fits any more

        def fullness(queue: QueueName) -> GuaranteeUse:
            levels = reversed(queue_path(snapshot.queues, queue))
            return tuple(
                (_fraction_used(now.quota_usage.used(level), sure[level]), level) for level in levels
            )

        line = sorted(waiting, key=fullness)
        while line:
            queue = line.pop(0)
            gang = next(waiting[queue], None)
            if gang is None:
                continue
            if known.never_fits_cause(gang) is not None or now.quota_usage.refusal(gang) is not None:
                line.insert(0, queue)  # it delays no other gang
            elif class_of(gang) not in full and now.try_start(gang) is not None:
                line = sorted([queue, *line], key=fullness)
            elif not now.quota_usage.closed_models(gang):
                full.add(class_of(gang))
        return Plan(
            snapshot.version,
            tuple(now.placed),
            BaselineHolds(snapshot.pending, now.placed, BaselineHoldCauses(now, known.never_fits_cause)),
        )


def _fraction_used(used: Amounts, guarantee: Amounts) -> float:
    return max(
        (
            amount / guarantee[name] if guarantee[name] else inf
            for name, amount in used.items()
            if amount and name in guarantee
        ),
        default=0.0,
    )


def _effective_guarantees(snapshot: Snapshot) -> Iterator[tuple[QueueName, Amounts]]:
    """What each queue is sure of, resource by resource."""
    tree, below = snapshot.queues, child_queues(snapshot.queues)
    found: dict[QueueName | None, Amounts] = {
        None: total_amounts(node for node in snapshot.nodes.values() if node.schedulable)
    }
    for name, queue in tree.queues.items():  # parents before children
        siblings = sum(tree.queues[one].weight for one in below[queue.parent])
        part = {
            resource: int(amount * queue.weight / siblings)
            for resource, amount in found[queue.parent].items()
        }
        found[name] = {**part, **queue.guarantee}
        yield name, found[name]
