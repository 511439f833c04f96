"""Which queues a workload needs, and whether they are there."""

from __future__ import annotations

from hopyard.config.suggest import unknown_name_hints
from hopyard.domain.queue import SINGLE_QUEUE_TREE, Queue, QueueTree
from hopyard.errors import SpecError
from hopyard.simulator.workload import Workload


def workload_queue_tree(workload: Workload) -> QueueTree:
    """A leaf for each queue that the workload names, all alike."""
    names = sorted(
        {one.spec.queue for one in workload.runs if one.spec.queue is not None} | {SINGLE_QUEUE_TREE.default}
    )
    return QueueTree({name: Queue(name) for name in names})


def check_queues(workload: Workload, tree: QueueTree) -> None:
    """Raises SpecError when a run names a queue that is not there, or in which none waits."""
    leaves = tree.queues.keys() - {queue.parent for queue in tree.queues.values()}
    for one in workload.runs:
        queue = one.spec.queue or tree.default
        if queue not in leaves:
            where = ": ".join(filter(None, (workload.source or workload.name, workload.location_of(one))))
            what = "is divided into others" if queue in tree.queues else "is not in the tree of queues"
            hints = unknown_name_hints(queue, sorted(leaves), subject="queues")
            raise SpecError(
                f"{where}: the queue `{queue}` {what}",
                hints=(*hints, "`--queue NAME` puts all runs into one"),
            )
