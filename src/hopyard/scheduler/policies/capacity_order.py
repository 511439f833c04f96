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
    """From the root of the tree down, the child that uses the smallest part of its guarantee comes first; in
    a leaf, priority, then submission. The first gang of a leaf that does not fit blocks its leaf, and no
    other. No run is preempted.

    The resource with the highest utilisation counts. A queue without a guarantee is assumed to have its part,
    by weight, of the guarantee of its parent. Source: Apache Hadoop, Capacity Scheduler.
    """

    def __init__(self) -> None:
        self._incremental_state: IncrementalState[QueueName] = IncrementalState(lambda gang: gang.queue)

    def __call__(self, snapshot: Snapshot) -> Plan:
        state = self._incremental_state
        state.update(snapshot)
        tentative_plan = TentativePlan(state, "best-fit")
        pending = {queue: iter(gangs) for queue, gangs in state.pending.items()}
        guarantees = dict(_effective_guarantees(snapshot)) if pending else {}
        full: set[object] = set()  # shapes of which no gang fits any more

        def fullness(queue: QueueName) -> GuaranteeUse:
            levels = reversed(queue_path(snapshot.queues, queue))
            return tuple(
                (_fraction_used(tentative_plan.quota_usage.used(level), guarantees[level]), level)
                for level in levels
            )

        order = sorted(pending, key=fullness)
        while order:
            queue = order.pop(0)
            gang = next(pending[queue], None)
            if gang is None:
                continue
            if (
                state.never_fits_cause(gang) is not None
                or tentative_plan.quota_usage.refusal(gang) is not None
            ):
                order.insert(0, queue)  # it delays no other gang
            elif class_of(gang) not in full and tentative_plan.try_start(gang) is not None:
                order = sorted([queue, *order], key=fullness)
            elif not tentative_plan.quota_usage.closed_models(gang):
                full.add(class_of(gang))
        return Plan(
            snapshot.version,
            tuple(tentative_plan.placed),
            BaselineHolds(
                snapshot.pending,
                tentative_plan.placed,
                BaselineHoldCauses(tentative_plan, state.never_fits_cause),
            ),
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
    """Yields the effective guarantee of each queue, parents first."""
    tree, children = snapshot.queues, child_queues(snapshot.queues)
    guarantees: dict[QueueName | None, Amounts] = {
        None: total_amounts(node for node in snapshot.nodes.values() if node.schedulable)
    }
    for name, queue in tree.queues.items():  # parents before children
        siblings = sum(tree.queues[sibling].weight for sibling in children[queue.parent])
        inherited = {
            resource: int(amount * queue.weight / siblings)
            for resource, amount in guarantees[queue.parent].items()
        }
        guarantees[name] = {**inherited, **queue.guarantee}
        yield name, guarantees[name]
